"""What is believed of a replica's KV use: telemetry counts a shared prefix once, the books count it every time."""

import pytest

from extproc.core.fleet import Replica
from extproc.core.sample import Sample
from extproc.core.traits import Traits


def replica(sent: int) -> Replica:
    found = Replica("r0", 0, Traits(kv_tokens=1000), 0.0)
    found.books.send(1, 0.0, sent, 0.0, 1.0)
    found.recount()
    return found


def test_before_telemetry_the_books_are_all_there_is() -> None:
    assert replica(900).kv_load == pytest.approx(0.9)
    assert replica(900).crowded


def test_a_prefix_that_requests_share_counts_once_when_telemetry_tells() -> None:
    shared = replica(4000)
    shared.observe(Sample(at=1.0, kv_used=0.3))
    assert shared.kv_load == pytest.approx(0.3)
    assert shared.context == pytest.approx(4.0), "each step reads it for every sequence all the same"
    assert not shared.crowded


def test_what_was_sent_since_the_sample_is_added_and_what_ended_since_is_not_taken_off() -> None:
    found = replica(500)
    found.observe(Sample(at=1.0, kv_used=0.3))
    found.books.send(2, 0.0, 100, 2.0, 1.0)
    found.recount()
    assert found.kv_load == pytest.approx(0.4)
    found.books.end(2, 100, 3.0)
    found.books.end(1, 500, 3.0)
    found.recount()
    assert found.kv_load == pytest.approx(0.3)


def test_a_sample_that_does_not_know_kv_use_changes_nothing() -> None:
    found = replica(500)
    found.observe(Sample(at=1.0, running=1.0))
    assert found.kv_load == pytest.approx(0.5)
