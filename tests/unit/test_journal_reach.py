"""Whether a view of an index is whole, and when another snapshot is due."""

import pytest

from extproc.core.reach import Position, Reach, is_due


def reach(*read: int) -> Reach:
    made = Reach(["chat"])
    for milliseconds in read:
        made.read((milliseconds, 0))
    return made


def test_a_view_is_whole_when_the_snapshot_reaches_into_the_tail() -> None:
    made = reach()
    made.loaded("chat", (50, 0))
    assert not made.is_whole("chat"), "nothing was read yet"
    made.read((40, 0))
    made.read((60, 0))
    assert made.whole


def test_a_hole_between_snapshot_and_tail_is_mended_by_a_newer_snapshot_only() -> None:
    made = reach(51, 60)
    made.loaded("chat", (50, 0))
    assert made.has_hole("chat")
    made.loaded("chat", (50, 9))
    assert made.has_hole("chat")
    made.loaded("chat", (51, 0))
    assert made.whole
    assert not made.has_hole("chat")


def test_after_a_gap_what_was_loaded_before_does_not_count() -> None:
    made = reach(40)
    made.loaded("chat", (50, 0))
    made.gap()
    assert not made.whole
    made.read((7, 0))  # another Redis, whose clock is behind
    assert not made.whole
    made.loaded("chat", (8, 0))
    assert made.whole


def test_news_that_could_not_be_used_must_come_by_a_snapshot_made_after_them() -> None:
    made = reach(40)
    made.loaded("chat", (50, 0))
    made.missed("chat", (70, 3))
    assert not made.is_whole("chat")
    made.loaded("chat", (70, 3))
    assert made.is_whole("chat")


def test_one_pool_without_a_whole_view_is_enough() -> None:
    made = Reach(["chat", "code"])
    made.read((1, 0))
    made.loaded("chat", (1, 0))
    assert not made.whole


@pytest.mark.parametrize(
    ("snapshot", "first", "last", "due"),
    [
        (None, (0, 0), (9_000, 0), True),
        ((5_000, 0), None, (5_000, 0), True),
        ((5_000, 0), (5_000, 1), (5_100, 0), True),  # the tail was cut, and begins after it
        ((5_000, 0), (5_000, 0), (5_900, 0), False),  # 0.9 s behind: too little to write again
        ((5_000, 0), (4_000, 0), (6_000, 0), False),  # in the middle of a tail of 2 s
        ((5_000, 0), (4_000, 0), (6_001, 0), True),  # in its older half
        ((40_000, 0), (0, 0), (54_999, 0), False),
        ((40_000, 0), (0, 0), (55_000, 0), True),  # 15 s
        ((655_000, 0), (0, 0), (55_000, 0), False),  # another writer had read on
        ((655_001, 0), (0, 0), (55_000, 0), True),  # no position of this stream
        ((2**64 - 1, 2**64 - 1), (0, 0), (55_000, 0), True),
    ],
)
def test_a_snapshot_is_due_before_the_journal_leaves_it_behind(
    snapshot: Position | None, first: Position | None, last: Position, due: bool
) -> None:
    assert is_due(snapshot, first, last) is due
