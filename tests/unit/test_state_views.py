"""Where the views of two gateways differ, and how they are told."""

import copy
from typing import Any

import pytest

from extproc.cli.state import _print
from extproc.cli.state_views import differences
from extproc.cli.terminal import console
from extproc.core.pool import Pool
from extproc.io.state_page import StatePage


def view(name: str) -> dict[str, Any]:
    row = {"replica": "10.0.0.1:8000", "state": "serving", "entries": 10_000, "requests": 3, "tokens": 900}
    return {"gateway": name, "pools": [{"pool": "chat", "policy_version": 2, "replicas": [row]}]}


def test_equal_views_and_numbers_under_way_are_no_difference() -> None:
    one, other = view("a"), view("b")
    row = other["pools"][0]["replicas"][0]
    row["entries"], row["requests"], row["tokens"] = 9_001, 8, 9_092  # 999 of 10,000; 5; 8,192 apart
    assert differences(one, other) == {}


def test_every_lasting_difference_is_told_with_both_gateways() -> None:
    one, other = view("a"), view("b")
    row = other["pools"][0]["replicas"][0]
    row["entries"], row["requests"], row["state"] = 8_999, 9, "quiescing"
    other["pools"][0]["policy_version"] = 3
    extra = copy.deepcopy(row) | {"replica": "10.0.0.2:8000"}
    other["pools"][0]["replicas"].append(extra)
    one["pools"].append({"pool": "code", "policy_version": 0, "replicas": []})
    assert sorted(differences(one, other).values()) == [
        "chat: 10.0.0.1:8000: entries: 10000 at a, 8999 at b",
        "chat: 10.0.0.1:8000: requests: 3 at a, 9 at b",
        "chat: 10.0.0.1:8000: state: serving at a, quiescing at b",
        "chat: policy version: 2 at a, 3 at b",
        "chat: replica 10.0.0.2:8000: only b knows it",
        "pool code: only a knows it",
    ]


def test_the_page_shows_what_the_comparison_reads() -> None:
    pool = Pool("chat", now=0.0)
    pool.join("10.0.0.1:8000", 0.0)
    page = StatePage("gw", [pool], streams=lambda: 4, shared=lambda: ("degraded", "it can't be reached"))
    shown = page.shown()
    assert (shown["streams"], shown["shared"], shown["shared_why"]) == (4, "degraded", "it can't be reached")
    assert shown["pools"][0]["replicas"][0]["entries"] == 0
    assert differences(shown, shown) == {}


def test_brackets_and_control_characters_out_of_redis_are_printed_and_never_obeyed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lease = {"lease": "[/red]x", "holder": "[bold]\x1b[31mme", "token": 1, "until": 1.0}
    _print(console(160), {"gateways": [], "leases": [lease], "skipped": ["key 'k': holds no hash"]})
    shown, told = capsys.readouterr()
    assert told == "skipped in Redis: key 'k': holds no hash\n"
    assert "[/red]x" in shown
    assert "[bold]?[31mme" in shown
