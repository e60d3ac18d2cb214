"""How many lessons of one kind are taken a second."""

from extproc.core.pace import _MOST, AT_ONCE, SPAN, Pace


def test_the_first_lessons_are_all_taken_however_fast_they_come() -> None:
    pace = Pace()
    taken = [pace.due("m", 5.0) for _ in range(AT_ONCE + 3)]
    assert taken == [True] * AT_ONCE + [False] * 3


def test_after_that_one_is_taken_in_each_span() -> None:
    pace = Pace()
    for _ in range(AT_ONCE):
        pace.due("m", 0.0)
    times = [step * 0.3 * SPAN for step in range(1, 13)]
    # 0.9 spans after the last is too early, 1.2 is not.
    assert [step for step, at in enumerate(times, 1) if pace.due("m", at)] == [4, 8, 12]


def test_kinds_do_not_take_each_others_turns() -> None:
    pace = Pace()
    for _ in range(AT_ONCE):
        pace.due("often", 1.0)
    assert not pace.due("often", 1.0)
    assert pace.due("rarely", 1.0)


def test_kinds_are_bounded() -> None:
    pace = Pace()
    for kind in range(_MOST + 10):
        assert pace.due(kind, 0.0)
    assert len(pace) == 10
