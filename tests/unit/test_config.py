"""The settings tree: a zoo of files with one fault each and the exact message, and the documentation."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from extproc.addresses import parse_address
from extproc.cli import check_config, config_docs, envoy_config
from extproc.config import GatewaySettings, load, parse
from extproc.errors import ConfigError
from extproc.quantities import Duration, Whole, show_duration, show_size
from extproc.settings.base import Settings
from tests.examples import LETTERS

ROOT = Path(__file__).resolve().parents[2]
ZOO = ROOT / "tests" / "fixtures" / "config"
ONE_POOL = 'pools: [{replicas: ["10.0.0.1:8000"]}]\n'

#: File in the zoo -> the whole message; expected.txt has one a line.
FAULTS = {line.partition(":")[0]: line for line in (ZOO / "expected.txt").read_text().splitlines()}


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_each_fault_is_told_with_line_setting_and_remedy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ZOO)
    with pytest.raises(ConfigError) as caught:
        load(name)
    assert str(caught.value) == FAULTS[name]


def test_every_file_of_the_zoo_has_its_message() -> None:
    assert {path.name for path in ZOO.glob("*.yaml")} == set(FAULTS)


@pytest.mark.parametrize("word", ["off", "false", "'off'"])
def test_feedback_is_off_with_or_without_quotes(word: str) -> None:
    """YAML 1.1 reads the bare word as false."""
    assert parse(ONE_POOL + f"feedback: {{source: {word}}}\n", "here").feedback.source == "off"


def test_several_faults_are_told_in_one_go() -> None:
    text = "envoy: {retries: 9, fallbak: random}\npools:\n  - replicas: [10.0.0.1]\n"
    with pytest.raises(ConfigError) as caught:
        parse(text, "f.yaml")
    assert str(caught.value).splitlines() == [
        "f.yaml:3: pools[0].replicas[0].address: '10.0.0.1' has no port; write host:port, IPv6 as [::1]:port",
        "f.yaml:1: envoy.retries: 9 is too large; the most is 5",
        "f.yaml:1: envoy.fallbak: is not a setting; did you mean fallback?",
    ]


def test_no_secret_is_quoted_in_a_message() -> None:
    text = ONE_POOL.replace("}]", ", metrics: {token: [s3cret]}}]") + "redis: {url: 's3cret'}\n"
    with pytest.raises(ConfigError) as caught:
        parse(text, "f.yaml")
    assert "token" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_no_secret_is_shown_by_the_settings_themselves() -> None:
    text = ONE_POOL.replace("}]", ", metrics: {token: s3cret}}]") + "redis: {url: 'redis://:s3cret@h'}\n"
    assert "s3cret" not in repr(parse(text, "f.yaml"))


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read: No such file or directory; give the path"):
        load(tmp_path / "none.yaml")


def test_a_binary_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load(tmp_path / "f.yaml")


def test_a_byte_order_mark_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text("\ufeff" + ONE_POOL)
    assert len(load(tmp_path / "f.yaml").pools) == 1


@given(st.text(LETTERS, max_size=60))
def test_any_text_that_is_no_configuration_gets_a_message(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^f\.yaml:"):
        parse(text, "f.yaml")


def test_units_and_short_forms_are_read() -> None:
    text = """
limits: {body: 4MiB, expanded_body: 8 MiB}
envoy: {message_timeout: 250ms, idle_timeout: 10m, connect_timeout: 2}
pools:
  - replicas: ["10.0.0.1:8000", {address: "[::1]:8000"}]
    policy: round_robin
"""
    settings = parse(text, "f.yaml")
    assert (settings.limits.body, settings.limits.expanded_body) == (4 * 1024 * 1024, 8 * 1024 * 1024)
    assert settings.envoy.message_timeout == 0.25
    assert settings.envoy.idle_timeout == 600.0
    assert settings.envoy.connect_timeout == 2.0
    assert [replica.address for replica in settings.pools[0].replicas] == ["10.0.0.1:8000", "[::1]:8000"]
    assert settings.pools[0].policy.name == "round_robin"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0s"), (0.25, "250ms"), (1.5, "1.5s"), (90.0, "90s"), (600.0, "10m"), (7200.0, "2h")],
)
def test_durations_are_shown_as_one_writes_them(seconds: float, text: str) -> None:
    assert show_duration(seconds) == text


@pytest.mark.parametrize(("size", "text"), [(0, "0B"), (1000, "1000B"), (1024, "1KiB"), (33554432, "32MiB")])
def test_sizes_are_shown_as_one_writes_them(size: int, text: str) -> None:
    assert show_size(size) == text


@given(st.ip_addresses(), st.integers(0, 65535))
def test_ip_addresses_have_one_canonical_form(ip: Any, port: int) -> None:
    written = f"[{ip.exploded}]:{port}" if ip.version == 6 else f"{ip}:{port}"
    address = parse_address(written)
    assert str(parse_address(str(address))) == str(address)
    expected = str(getattr(ip, "ipv4_mapped", None) or ip)
    assert (address.host, address.port, address.is_ip) == (expected, port, True)


@pytest.mark.parametrize(
    "written", ["[::ffff:10.0.0.1]:80", "[::FFFF:a00:1]:80", "[0:0:0:0:0:ffff:10.0.0.1]:80"]
)
def test_an_ipv4_address_in_ipv6_form_is_the_same_endpoint(written: str) -> None:
    assert str(parse_address(written)) == "10.0.0.1:80"
    text = f'pools: [{{replicas: ["10.0.0.1:80", "{written}"]}}]'
    with pytest.raises(ConfigError, match=r"holds 10\.0\.0\.1:80 twice; remove one"):
        parse(text, "f.yaml")


def test_reports_need_metrics_that_can_go_stale() -> None:
    for where in ("telemetry: push", "telemetry: both"):
        text = f'pools: [{{replicas: ["10.0.0.1:80"], {where}, metrics: {{enabled: false}}}}]'
        with pytest.raises(ConfigError, match=r"pools\[0\]: takes reports but metrics.enabled is false"):
            parse(text, "f.yaml")
    assert parse(text.replace("false", "true"), "f.yaml").pools[0].telemetry == "both"


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":80",
        "a:",
        "a:b",
        "a:-1",
        "a:65536",
        "a:\u0661",
        "-:80",
        "a b:80",
        "u@h:80",
        "[::1:80",
        "::1]:80",
        "[a]:80",
        "[fe80::1%eth0]:80",
        "a-:80",
        "a..b:80",
        "[1.2.3.4]:80",
        "//a:80",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write|is none|is a URL"):
        parse_address(text)


def _paths(model: type[BaseModel], path: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield path + name
        for inner in _models_in(field.annotation):
            yield from _paths(inner, f"{path}{name}{'[]' if 'list' in str(field.annotation) else ''}.")


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def test_the_documentation_names_every_setting() -> None:
    page = config_docs.document()
    paths = list(_paths(GatewaySettings))
    assert len(paths) > 60
    assert [path for path in paths if f"| `{path}` |" not in page] == []


def test_the_documentation_is_current() -> None:
    """Mend with `python -m extproc.cli.config_docs > docs/configuration.md`."""
    assert (ROOT / "docs" / "configuration.md").read_text() == config_docs.document()


class Sparse(Settings):
    """Settings that may be left out."""

    whole: Whole | None = Field(default=None, ge=0, le=1000, description="a")
    span: Duration | None = Field(default=None, description="b")
    word: Literal["x", "y"] | None = Field(default=None, description="c")
    texts: list[str] | None = Field(default=None, description="d")
    by_name: dict[str, float] = Field(default_factory=dict, description="e")


def test_settings_that_may_be_left_out_are_documented_by_what_they_take() -> None:
    """`Whole | None` was shown as numbers by name, with the default `None`."""
    rows = [line for line in config_docs.document_of(Sparse) if line.startswith("| `")]
    assert rows == [
        "| `whole` | none | whole number, 0 to 1000 | a |",
        "| `span` | none | duration | b |",
        "| `word` | none | `x`, `y` | c |",
        "| `texts` | none | list of texts | d |",
        "| `by_name` | empty | numbers by name | e |",
    ]


def test_every_setting_has_a_meaning() -> None:
    rows = [line for line in config_docs.document().splitlines() if line.startswith("| `")]
    assert [row for row in rows if row.split("|")[-2].strip() == ""] == []


def test_check_config_says_good(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(ONE_POOL)
    result = CliRunner().invoke(check_config.command, [str(tmp_path / "f.yaml")])
    assert result.exit_code == 0
    assert result.stdout == f"{tmp_path}/f.yaml: good; pools: default (1 replica)\n"


def test_check_config_takes_the_form_of_serve_too(tmp_path: Path) -> None:
    file = str(tmp_path / "f.yaml")
    (tmp_path / "f.yaml").write_text('pools: [{replicas: ["10.0.0.1:80", "10.0.0.2:80"]}]')
    for form in ([file], ["-c", file], ["--config", file]):
        result = CliRunner().invoke(check_config.command, form)
        assert (result.exit_code, result.stdout) == (0, f"{file}: good; pools: default (2 replicas)\n")
    for form in ([], [file, "-c", file]):
        refused = CliRunner().invoke(check_config.command, form)
        assert refused.exit_code == 2
        assert "name one configuration: kvsteer check-config FILE, or -c FILE as for serve" in refused.stderr


def test_check_config_says_what_is_wrong_and_exits_with_2() -> None:
    result = CliRunner().invoke(check_config.command, [str(ZOO / "too_large.yaml")])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == f"{ZOO}/too_large.yaml:2: envoy.retries: 9 is too large; the most is 5\n"


def test_check_config_refuses_what_envoy_could_not_be_told(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(ONE_POOL + "grpc: {address: '127.0.0.1:0'}\n")
    result = CliRunner().invoke(check_config.command, [str(tmp_path / "f.yaml")])
    assert result.exit_code == 2
    assert "f.yaml: grpc.address: has port 0" in result.stderr


def test_envoy_config_prints_or_writes_the_same(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(ONE_POOL)
    printed = CliRunner().invoke(envoy_config.command, ["-c", str(tmp_path / "f.yaml")])
    arguments = ["-c", str(tmp_path / "f.yaml"), "--output", str(tmp_path / "envoy.yaml")]
    written = CliRunner().invoke(envoy_config.command, arguments)
    assert (printed.exit_code, written.exit_code, written.stdout) == (0, 0, "")
    assert (tmp_path / "envoy.yaml").read_text() == printed.stdout


def test_envoy_config_prints_and_writes_eds_files(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(ONE_POOL + "envoy: {eds_dir: /etc/envoy/eds}\n")
    arguments = ["-c", str(tmp_path / "f.yaml"), "--eds"]
    printed = CliRunner().invoke(envoy_config.command, arguments)
    written = CliRunner().invoke(envoy_config.command, [*arguments, "--output", str(tmp_path / "eds")])
    assert (printed.exit_code, written.exit_code) == (0, 0)
    text = (tmp_path / "eds" / "default.yaml").read_text()
    assert printed.stdout == f"# /etc/envoy/eds/default.yaml\n---\n{text}"


def test_envoy_config_tells_faults_of_the_file_and_of_the_output(tmp_path: Path) -> None:
    faulty = CliRunner().invoke(envoy_config.command, ["-c", str(ZOO / "empty.yaml")])
    assert (faulty.exit_code, faulty.stdout) == (2, "")
    assert "holds no settings" in faulty.stderr
    (tmp_path / "f.yaml").write_text(ONE_POOL)
    arguments = ["-c", str(tmp_path / "f.yaml"), "--output", str(tmp_path / "none" / "envoy.yaml")]
    unwritable = CliRunner().invoke(envoy_config.command, arguments)
    assert unwritable.exit_code == 2
    assert "can't be written: No such file or directory" in unwritable.stderr
