"""docker-compose.yml, Dockerfile and the ready Envoy files, as far as files can be checked without Docker."""

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from extproc.addresses import parse_address
from extproc.cli import COMMANDS
from extproc.cli import main as kvsteer
from extproc.config import GatewaySettings, load
from extproc.envoyconfig import render

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
DEPLOY = ROOT / "deploy" / "compose"
#: What each foreign image runs; prometheus has its program as the entry point and takes only options.
PROGRAMS = {"envoyproxy/envoy": "envoy", "redis": "redis-server", "prom/prometheus": "--"}


def _settings() -> GatewaySettings:
    return load(DEPLOY / "kvsteer.yaml")


def _is_ours(service: dict[str, Any]) -> bool:
    return service["image"] == "kvsteer:local"


def test_the_services_are_those_the_readme_speaks_of() -> None:
    assert set(SERVICES) == {"envoy", "gateway-1", "gateway-2", "engines", "redis", "prometheus", "grafana"}


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_command_exists(name: str) -> None:
    service = SERVICES[name]
    if "command" not in service:
        assert name == "grafana"  # its image's own
        return
    command = service["command"]
    if not _is_ours(service):
        assert command[0].startswith(PROGRAMS[service["image"].partition(":")[0]])
        return
    assert command[0] in COMMANDS
    context = click.Context(kvsteer)
    subcommand = kvsteer.get_command(context, command[0])
    assert subcommand is not None
    subcommand.make_context(command[0], list(command[1:]), parent=context)  # refuses unknown options


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_services_lean_on_services_that_exist(name: str) -> None:
    needed = SERVICES[name].get("depends_on", [])
    assert set(needed) <= set(SERVICES)
    for other, rule in needed.items() if isinstance(needed, dict) else ():
        if rule["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[other]


def _read_by(name: str) -> list[str]:
    """Where paths that a service reads are written: its command, files of ours, or what its image reads anyway."""
    ours = [path.read_text() for path in (DEPLOY / "prometheus.yml", DEPLOY / "grafana-dashboards.yml")]
    provisioned = [
        f"/etc/grafana/provisioning/{folder}/kvsteer.yml" for folder in ("datasources", "dashboards")
    ]
    return [*SERVICES[name].get("command", []), *ours, *provisioned]


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_mounted_files_exist_and_are_those_the_command_reads(name: str) -> None:
    for volume in SERVICES[name].get("volumes", []):
        source, target, mode = volume.split(":")
        assert (ROOT / source).exists()
        assert mode == "ro"
        assert any(target in text for text in _read_by(name)), target


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_images_have_a_version_and_networks_are_declared(name: str) -> None:
    assert re.fullmatch(r"[a-z/-]+:(?!latest)[a-z0-9.-]+", SERVICES[name]["image"])
    assert set(SERVICES[name]["networks"]) <= set(COMPOSE["networks"])


def test_ports_are_published_on_loopback_only_and_lead_to_a_listener() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published == ["127.0.0.1:8080:8080", "127.0.0.1:9090:9090", "127.0.0.1:3000:3000"]
    assert parse_address(_settings().envoy.listen).port == 8080


def test_the_replicas_are_where_the_engines_listen() -> None:
    engines = SERVICES["engines"]
    options = dict(zip(engines["command"][1::2], engines["command"][2::2], strict=True))
    host = engines["networks"]["kvsteer"]["ipv4_address"]
    first, count = int(options["--port"]), int(options["--count"])
    listening = [f"{host}:{first + number}" for number in range(count)]
    assert [replica.address for replica in _settings().pools[0].replicas] == listening


def test_the_gateways_and_redis_are_services_on_their_ports() -> None:
    settings = _settings()
    port = parse_address(settings.grpc.address).port
    assert settings.envoy.gateways == [f"gateway-1:{port}", f"gateway-2:{port}"]
    assert settings.redis.url == "redis://redis:6379/0"


def test_prometheus_asks_every_service_where_it_answers() -> None:
    jobs = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in jobs}
    settings = _settings()
    admin = parse_address(settings.admin.address).port
    ports = [parse_address(replica.address).port for replica in settings.pools[0].replicas]
    assert targets == {
        "kvsteer": [f"gateway-1:{admin}", f"gateway-2:{admin}"],
        "envoy": [f"envoy:{parse_address(settings.envoy.admin).port}"],
        "engines": [f"engines:{port}" for port in ports],
    }


def test_grafana_finds_prometheus_and_every_dashboard() -> None:
    source = yaml.safe_load((DEPLOY / "grafana-source.yml").read_text())["datasources"][0]
    assert source["url"] == "http://prometheus:9090"
    assert source["isDefault"] is True
    titles = {json.loads(path.read_text())["title"] for path in (ROOT / "deploy" / "grafana").glob("*.json")}
    assert titles == {
        "kvsteer: fleet",
        "kvsteer: routing",
        "kvsteer: admission and tenants",
        "kvsteer: gateways and Redis",
    }


def test_a_gateway_may_drain_before_it_is_killed() -> None:
    settings = _settings().grpc
    for name in ("gateway-1", "gateway-2"):
        grace = float(SERVICES[name]["stop_grace_period"].removesuffix("s"))
        assert grace > settings.drain + settings.drain_notice


@pytest.mark.parametrize(
    "folder", sorted(str(path.parent.relative_to(ROOT)) for path in ROOT.glob("*/*/envoy.yaml"))
)
def test_ready_bootstraps_are_what_the_generator_prints(folder: str) -> None:
    """Mend with `kvsteer envoy-config -c FOLDER/kvsteer.yaml --output FOLDER/envoy.yaml`."""
    path = ROOT / folder
    assert (path / "envoy.yaml").read_text() == render(load(path / "kvsteer.yaml"))


def _instructions() -> list[list[str]]:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


def test_the_dockerfile_copies_files_that_exist_and_are_not_ignored() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"}
    copies = [words[1:-1] for words in _instructions() if words[0] == "COPY" and words[1][0] != "-"]
    sources = {source for words in copies for source in words}
    assert {"extproc", "pyproject.toml", "requirements.lock"} <= sources
    assert [source for source in sorted(sources) if not (ROOT / source).exists()] == []
    assert sources == allowed


def test_the_image_runs_the_gateway_as_nobody() -> None:
    words = {words[0]: " ".join(words[1:]) for words in _instructions()}
    assert words["ENTRYPOINT"] == '["kvsteer"]'
    assert words["CMD"] == '["serve", "-c", "/etc/kvsteer/kvsteer.yaml"]'
    assert words["USER"] == "65534:65534"


def test_the_dockerfiles_constraints_are_plain_pins() -> None:
    """What its sed makes of the lock file: pip takes constraints without hashes only beside a local package."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    kept = [re.sub(r" *\\$", "", line) for line in lines if "--hash=" not in line]
    pins = [line for line in kept if line and not line.startswith("#")]
    assert len(pins) > 20
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[^ ;]+( ; .*)?", pin)] == []
