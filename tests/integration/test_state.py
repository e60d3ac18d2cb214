"""kvsteer state against two gateways and a Redis, all real."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import QUICK, until
from tests.integration.patience import bar, patient


@pytest.fixture(scope="module")
def fleet() -> Iterator[Stack]:
    stack = Stack(
        StackSettings(gateways=2, replicas=2, engine=QUICK, gateway={"redis": {"heartbeat": "200ms"}})
    )
    try:
        stack.start_redis()
        stack.settings.gateway["redis"]["url"] = stack.redis_url
        stack.start_engines()
        stack.start_gateways()
        yield stack
    finally:
        stack.close()


def kvsteer(*words: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "extproc", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=patient(60), check=False)


def admins(fleet: Stack) -> list[str]:
    return [word for _, port in fleet.gateway_ports for word in ("--admin", f"http://127.0.0.1:{port}")]


def test_redis_says_who_is_there_and_an_admin_port_what_it_believes(fleet: Stack) -> None:
    config = str(fleet.folder / "kvsteer-0.yaml")

    def asked() -> dict[str, Any]:
        return dict(json.loads(kvsteer("state", "-c", config, *admins(fleet), "--json").stdout))

    def both_told() -> bool:  # Redis may just have come back empty, by a test before this one
        return all(row["address"] for row in asked()["gateways"]) and len(asked()["gateways"]) == 2

    until(lambda: fleet.admin("/state", 1)["shared"] == "ok", 10, "the second gateway shares")
    until(both_told, 10, "both gateways told Redis of themselves")
    said = asked()
    gateways = {row["gateway"]: row for row in said["gateways"]}
    assert set(gateways) == {"gw-0", "gw-1"}
    assert gateways["gw-0"]["address"] == f"127.0.0.1:{fleet.gateway_ports[0][0]}"
    assert gateways["gw-1"]["heard"] < bar(3)
    assert [view["gateway"] for view in said["views"]] == ["gw-0", "gw-1"]
    assert {row["replica"] for row in said["views"][0]["pools"][0]["replicas"]} == set(fleet.replicas)
    text = kvsteer("state", "-c", config, *admins(fleet))
    assert text.returncode == 0
    assert "gw-1" in text.stdout
    assert "shared: ok" in text.stdout


def test_check_says_whether_views_agree_and_where_not(fleet: Stack) -> None:
    until(lambda: fleet.admin("/state", 0)["shared"] == "ok", 10, "it shares")
    agreed = kvsteer("state", "--check", *admins(fleet))
    assert (agreed.returncode, agreed.stdout) == (0, "2 gateways agree\n")
    fleet.children["redis"].kill()  # so that a drain stays with the gateway that took it
    until(lambda: fleet.admin("/state", 0)["shared"] == "degraded", 10, "redis is missed")
    until(lambda: "reached" in (fleet.admin("/readyz", 0)["shared_why"] or ""), 10, "it is said why")
    first = f"http://127.0.0.1:{fleet.gateway_ports[0][1]}"
    assert kvsteer("drain", fleet.replicas[0], "--no-wait", "--admin", first).returncode == 4  # here alone
    differing = kvsteer("state", "--check", *admins(fleet))
    assert differing.returncode == 3
    assert f"{fleet.replicas[0]}: state: quiescing at gw-0" in differing.stdout
    gone = kvsteer("state", "-c", str(fleet.folder / "kvsteer-0.yaml"))
    assert gone.returncode == 1
    assert "can't be reached" in gone.stderr
    assert kvsteer("undrain", fleet.replicas[0], "--admin", first).returncode == 4
    fleet.children["redis"].restart()


@pytest.mark.parametrize(
    "words", [["--check"], ["--check", "--admin", "http://127.0.0.1:1"], ["-c", "/nowhere"]]
)
def test_wrong_use_is_status_2(words: list[str]) -> None:
    assert kvsteer("state", *words).returncode == 2


def test_a_gateway_that_does_not_answer_is_status_1() -> None:
    assert kvsteer("state", "--admin", "http://127.0.0.1:1").returncode == 1
