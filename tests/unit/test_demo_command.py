"""What kvsteer demo prints, and when; its stack of processes is played here (tests/integration has the real one)."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from extproc.cli import demo
from extproc.demo import kept
from extproc.demo.drive import Outcome, Report
from extproc.demo.processes import StackError
from extproc.demo.stack import Stack, StackSettings


class Played:
    """A stack that starts nothing; `told` says what was asked of which policy's."""

    told: list[str] = []
    folder = Path()
    gateway_ports = ((50051, 9095),)
    url = "http://127.0.0.1:8080"
    replicas = ("127.0.0.1:8001",)

    def __init__(self, settings: StackSettings) -> None:
        self.settings = settings
        self.children = {
            name: SimpleNamespace(
                name=name, running=True, pid=4711, argv=[name, "--save", ""], log=Path(name)
            )
            for name in ("redis", "engine-0", "gateway-0", "envoy")
        }

    def __enter__(self) -> "Played":
        self.told.append(f"start {self.settings.policy}")
        return self

    def check(self, but: Collection[str] = ()) -> None:
        self.told.append("check")
        for name, child in self.children.items():
            if name not in but and not child.running:
                raise StackError(f"{name} died")

    def close(self) -> None:
        self.told.append(f"close {self.settings.policy}")


async def driven(_url: str, _workload: Sequence[Any], policy: str, _progress: object) -> Report:
    """100 prompt tokens: `charged_cost` finds 80 of them in 0.1 s, `round_robin` 40 in 0.2 s."""
    ours = policy == "charged_cost"
    got = Outcome(
        ttft=0.1 if ours else 0.2, replica="r1", prompt_tokens=100, cached_tokens=80 if ours else 40
    )
    return Report(policy=policy, outcomes=[got])


@pytest.fixture(autouse=True)
def played(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    monkeypatch.setattr(demo, "Stack", Played)
    monkeypatch.setattr(demo, "drive", driven)
    Played.told, Played.folder = [], tmp_path
    return Played.told


def test_the_table_comes_before_the_wait_of_keep(monkeypatch: pytest.MonkeyPatch, played: list[str]) -> None:
    def interrupted(_seconds: float) -> None:
        played.append("waited")
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "time", SimpleNamespace(sleep=interrupted))
    result = CliRunner().invoke(demo.command, ["--keep"])
    assert result.exit_code == 0, result.output
    places = [
        result.output.index(words)
        for words in (
            "TTFT mean",
            "2.0 times shorter",
            "curl -i http://127.0.0.1:8080",
            "Ctrl-C ends it",
            "stopping",
        )
    ]
    assert places == sorted(places)
    assert played.index("waited") < played.index("close charged_cost")
    assert "close round_robin" in played[: played.index("start charged_cost")]


def test_without_keep_it_ends_after_the_table(played: list[str]) -> None:
    result = CliRunner().invoke(demo.command, [])
    assert result.exit_code == 0, result.output
    assert "TTFT mean" in result.stdout
    assert "curl" not in result.stdout
    assert played[-1] == "close charged_cost"


def test_standard_output_has_the_result_alone() -> None:
    result = CliRunner().invoke(demo.command, ["--json"])
    said = json.loads(result.stdout)
    assert said["ahead"] is True
    assert [(run["policy"], run["hit_share"], run["ttft_mean"]) for run in said["runs"]] == [
        ("round_robin", 0.4, 0.2),
        ("charged_cost", 0.8, 0.1),
    ]
    assert "starting Redis" in result.stderr


def a_kept_stack() -> Any:
    stack: Any = Played(StackSettings())
    kept.unlock(stack)
    return stack


def test_a_kept_demo_names_its_page_its_configuration_and_its_token_and_never_the_token(
    tmp_path: Path,
) -> None:
    said = kept.guide(a_kept_stack())
    token = tmp_path / "orders.token"
    assert token.stat().st_mode & 0o777 == 0o600
    assert len(token.read_text()) >= 32
    assert token.read_text() not in said
    for words in (
        "curl -s 'http://127.0.0.1:9095/decisions?last=1'",  # zsh takes a bare ? for a pattern of file names
        "replicas --admin http://127.0.0.1:9095",
        f"policy set round_robin -c {tmp_path}/kvsteer-0.yaml --why",
        f"policy rollback -c {tmp_path}/kvsteer-0.yaml --why",
        f"export KVSTEER_TOKEN_FILE={token}\n",
        "drain 127.0.0.1:8001 --admin http://127.0.0.1:9095",
        "kill 4711",
        "The page: http://127.0.0.1:9095/\n",
        f"the token in {token},",
    ):
        assert words in said, words


def test_a_kept_demo_with_a_redis_of_ones_own_does_not_say_how_to_kill_it() -> None:
    stack = a_kept_stack()
    del stack.children["redis"]
    assert "kill" not in kept.guide(stack)


def test_a_kept_gateway_reads_the_token_file() -> None:
    stack = Stack(StackSettings())
    try:
        path = kept.unlock(stack)
        stack.gateway_ports = [(50051, 9095)]
        assert stack.configuration(0)["admin"] == {"address": "127.0.0.1:9095", "token_file": str(path)}
    finally:
        stack.close()
    assert not path.exists()


def test_a_demo_that_is_not_kept_takes_orders_without_a_token(tmp_path: Path) -> None:
    assert CliRunner().invoke(demo.command, []).exit_code == 0
    assert not (tmp_path / "orders.token").exists()


def test_a_kept_demo_goes_on_without_redis_and_gateway_and_says_so_once_each() -> None:
    stack, told = a_kept_stack(), set[str]()
    assert list(kept.deaths(stack, told)) == []
    stack.children["redis"].running = False
    (death,) = kept.deaths(stack, told)
    assert death.startswith("redis died. Requests go on")
    assert "\n  redis --save ''\n" in death  # how to start it again
    assert list(kept.deaths(stack, told)) == []
    stack.children["gateway-0"].running = False
    (death,) = kept.deaths(stack, told)
    assert death.startswith("gateway-0 died. Requests go on: Envoy balances")


@pytest.mark.parametrize("name", ["engine-0", "envoy"])
def test_a_kept_demo_ends_with_what_nothing_goes_on_without(name: str) -> None:
    stack = a_kept_stack()
    stack.children[name].running = False
    with pytest.raises(StackError, match=f"{name} died"):
        list(kept.deaths(stack, set()))
