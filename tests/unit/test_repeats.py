"""Warnings of one kind are told a few times, then counted; figures worked out by hand."""

import io
import json
import logging
import queue
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from extproc.config import LogSettings
from extproc.io import logs
from extproc.io.repeats import SUMMARY, VOIDED, BoundedRepeats, LeftOut, Repeats


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    handlers = [*logging.getLogger().handlers]
    yield
    structlog.reset_defaults()
    logging.getLogger().handlers[:] = handlers


def test_ten_thousand_failing_replicas_write_sixteen_lines_and_one_that_counts_the_rest() -> None:
    repeats = Repeats()
    assert sum(repeats.tells("scraping fails", 5.0) for _ in range(10_000)) == 16
    assert repeats.due(34.9) == []
    assert repeats.due(35.0) == [LeftOut("scraping fails", 9_984, 30.0)]
    assert repeats.due(36.0) == [], "each line is counted once"


def test_while_it_lasts_a_period_has_one_line_and_one_count() -> None:
    repeats = Repeats(first=3, period=10.0)
    assert [repeats.tells("x", 0.0) for _ in range(5)] == [True, True, True, False, False]
    assert repeats.due(10.0) == [LeftOut("x", 2, 10.0)]
    assert [repeats.tells("x", 11.0) for _ in range(4)] == [True, False, False, False]
    assert repeats.due(20.0) == [LeftOut("x", 3, 10.0)]


def test_a_kind_that_was_quiet_for_a_period_is_told_in_full_again() -> None:
    repeats = Repeats(first=2, period=10.0)
    assert [repeats.tells("x", 0.0) for _ in range(3)] == [True, True, False]
    repeats.due(10.0)
    assert [repeats.tells("x", 21.0) for _ in range(3)] == [True, True, False]


def test_kinds_do_not_take_each_others_lines() -> None:
    repeats = Repeats(first=1)
    assert [repeats.tells(kind, 0.0) for kind in ("a", "a", "b")] == [True, False, True]


def test_what_is_counted_waits_for_its_line_however_late_somebody_asks() -> None:
    repeats = Repeats(first=1, period=10.0)
    for at in (0.0, 1.0, 50.0, 90.0):
        repeats.tells("x", at)
    assert repeats.due(100.0) == [LeftOut("x", 3, 100.0)]


def test_texts_without_end_take_bounded_memory() -> None:
    repeats = Repeats(first=1, period=10.0, kinds=4)
    told = sum(repeats.tells(f"fault {number}", 0.0) for number in range(100))
    assert told == 5, "four kinds, and one for all others"
    assert [(left.kind, left.count) for left in repeats.due(10.0)] == [("lines of further kinds", 95)]
    assert sum(repeats.tells(f"later {number}", 30.0) for number in range(3)) == 3, "old kinds are forgotten"


def processed(bounded: BoundedRepeats, method: str, event: str) -> bool:
    try:
        bounded(None, method, {"event": event})
    except structlog.DropEvent:
        return False
    return True


def test_lines_below_warnings_are_not_left_out() -> None:
    bounded = BoundedRepeats(repeats=Repeats(first=1), clock=lambda: 0.0)
    assert all(processed(bounded, "info", "request") for _ in range(100))
    assert [processed(bounded, "info", VOIDED) for _ in range(2)] == [True, False], "but for one that repeats"
    assert [processed(bounded, "warning", "x") for _ in range(2)] == [True, False]


def test_the_count_comes_by_itself() -> None:
    told: queue.Queue[LeftOut] = queue.Queue()
    bounded = BoundedRepeats(
        told.put, Repeats(first=1, period=0.01), clock=iter([0.0, 0.0, *[1.0] * 100]).__next__
    )
    processed(bounded, "error", "x")
    processed(bounded, "error", "x")
    assert told.get(timeout=60).count == 1


def test_what_is_not_yet_told_at_the_end_is_told_then() -> None:
    told: list[LeftOut] = []
    bounded = BoundedRepeats(told.append, Repeats(first=1, period=3600.0), clock=lambda: 7.0)
    for _ in range(3):
        processed(bounded, "error", "x")
    bounded.flush()
    assert told == [LeftOut("x", 2, 0.0)]


def lines_of(written: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written.getvalue().splitlines()]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What the log writes, at once."""
    target = io.StringIO()
    monkeypatch.setattr(logs, "_writer", lambda: target)
    logs.configure(LogSettings(format="json"))
    yield target
    logs_bounded().flush()  # nothing is left for the end of the tests


def test_the_gateways_log_is_bounded_whoever_warns(written: io.StringIO) -> None:
    for number in range(1000):
        structlog.get_logger("kvsteer").warning("scraping fails", replica=f"10.0.0.1:{number}")
    assert [line["replica"] for line in lines_of(written)] == [f"10.0.0.1:{number}" for number in range(16)]
    logs_bounded().flush()
    last = lines_of(written)[-1]
    assert (last["event"], last["like"], last["count"]) == (SUMMARY, "scraping fails", 984)


def test_what_a_library_logs_comes_in_the_same_form_and_under_the_same_bound(written: io.StringIO) -> None:
    for _ in range(100):
        logging.getLogger("some.library").error("failed for %s", "10.0.0.1")
    logging.getLogger("another").warning("fails too")
    logging.getLogger("some.library").info("not wanted")
    lines = lines_of(written)
    assert len(lines) == 17, "sixteen of one library, one of another"
    assert lines[0]["event"] == "told by some.library"
    assert lines[0]["says"] == "failed for 10.0.0.1"


def logs_bounded() -> BoundedRepeats:
    return next(one for one in structlog.get_config()["processors"] if isinstance(one, BoundedRepeats))
