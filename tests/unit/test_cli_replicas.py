"""kvsteer replicas prints what a gateway answers, whoever chose the texts in it."""

from io import StringIO
from typing import Any

from rich.console import Console

from extproc.cli.replicas import table

ROW: dict[str, Any] = {
    "pool": "chat\x1b[2J",
    "replica": "10.0.0.1:8000\n",
    "state": "healthy\x07",
    "excluded": "doubt\x1b]0;x\x07",
    "headroom": 0.5,
    "requests_in_flight": 1,
    "tokens_in_flight": 2000,
    "backlog_seconds": 0.25,
    "kv_used": None,
    "index_entries": 3,
    "cache": None,
    "sample_age": None,
}
GONE = {"pool": "chat", "replica": "10.0.0.2:8000", "state": "removed\r", "state_cause": "dead\x9bline"}


def test_control_characters_of_others_reach_no_terminal() -> None:
    made = table([ROW], [GONE])
    cells = [list(column.cells) for column in made.columns]
    assert cells[0] == ["chat?[2J", "chat"]
    assert cells[1] == ["10.0.0.1:8000?", "10.0.0.2:8000"]
    assert cells[2] == ["healthy? (doubt?]0;x?)", "removed? (dead?line)"]
    out = StringIO()
    Console(file=out, width=200, markup=False).print(made)
    assert all(letter.isprintable() or letter == "\n" for letter in out.getvalue())


def test_a_slow_replica_shows_the_share_that_it_still_gets() -> None:
    slow = {**ROW, "state": "healthy", "excluded": "slow", "share": 0.252}
    made = table([slow, {**slow, "excluded": None}, {**slow, "share": 1.0}])
    assert list(made.columns[2].cells) == [
        "healthy (slow, share 25%)",
        "healthy (share 25%)",
        "healthy (slow)",
    ]


def test_a_drained_replica_shows_who_took_it_out_and_not_its_state_twice() -> None:
    made = table([{**ROW, "state": "quiescing", "excluded": "quiescing", "state_cause": "operator"}])
    assert list(made.columns[2].cells) == ["quiescing (operator)"]


def test_a_replica_that_may_be_chosen_has_its_state_alone() -> None:
    made = table([{**ROW, "state": "healthy", "excluded": None}])
    assert list(made.columns[2].cells) == ["healthy"]


def test_why_metrics_fail_stands_beside_the_state() -> None:
    well = {**ROW, "state": "healthy", "excluded": None, "scrape_failure": "tls"}
    out = {**well, "state": "backoff", "excluded": "backoff", "scrape_failure": "connect"}
    rows = [
        well,
        {**well, "excluded": "slow", "share": 0.25, "scrape_failure": "status_404"},
        {**out, "state_cause": "metrics"},
        {**out, "state_cause": "operator"},
        {**out, "state_cause": "metrics", "scrape_failure": None},
    ]
    assert list(table(rows).columns[2].cells) == [
        "healthy (metrics: tls)",
        "healthy (slow, share 25%, metrics: status_404)",
        "backoff (metrics: connect)",
        "backoff (operator, metrics: connect)",
        "backoff (metrics)",
    ]
