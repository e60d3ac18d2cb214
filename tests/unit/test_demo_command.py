"""What kvsteer demo prints, and when; its stack of processes is played here (tests/integration has the real one)."""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from extproc.cli import demo
from extproc.demo.drive import Outcome, Report
from extproc.demo.stack import StackSettings


class Played:
    """A stack that starts nothing; `told` says what was asked of which policy's."""

    told: list[str] = []
    gateway_ports = ((50051, 9095),)
    url = "http://127.0.0.1:8080"

    def __init__(self, settings: StackSettings) -> None:
        self.settings = settings

    def __enter__(self) -> "Played":
        self.told.append(f"start {self.settings.policy}")
        return self

    def check(self) -> None:
        self.told.append("check")

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
def played(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(demo, "Stack", Played)
    monkeypatch.setattr(demo, "drive", driven)
    Played.told = []
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
