"""How many lessons of one kind are taken a second."""

import pytest

from extproc.core.pace import _KINDS, MOST, SPAN, Pace


def taken(pace: Pace, rate: int, seconds: float, began: float = 0.0) -> int:
    """Of lessons that come evenly."""
    return sum(pace.due("m", began + step / rate) for step in range(int(rate * seconds)))


def test_of_those_that_come_seldom_all_are_taken() -> None:
    assert taken(Pace(), MOST, 10.0) == 10 * MOST


def test_the_first_are_all_taken_however_fast_they_come() -> None:
    assert taken(Pace(), 2000, SPAN) == 2000


@pytest.mark.parametrize("rate", [200, 3000])
def test_then_as_many_a_second_as_are_worth_it(rate: int) -> None:
    pace = Pace()
    taken(pace, rate, SPAN)
    # 20 seconds' worth, give or take what a span at its border may hold.
    assert taken(pace, rate, 20.0, SPAN) == pytest.approx(20 * MOST, rel=0.05)


def test_when_fewer_come_all_are_taken_again_after_a_span() -> None:
    pace = Pace()
    taken(pace, 1000, 3.0)
    taken(pace, 10, 1.5, 3.0)
    assert taken(pace, 10, 5.0, 4.5) == 50


def test_many_at_once_after_a_pause_are_judged_by_the_time_since_those_before() -> None:
    pace = Pace()
    # 100 each two seconds are 50 a second: all.
    assert sum(pace.due("m", 2.0 * burst) for burst in range(10) for _ in range(100)) == 1000


def test_of_batches_the_short_and_the_long_are_taken_alike() -> None:
    """Each second 200 answers: 160 end together, 40 over the following tenth of a second, one by one."""
    pace = Pace()
    short = long = 0
    for second in range(60):
        short += sum(pace.due("m", second) for _ in range(160))
        long += sum(pace.due("m", second + 0.1 + step / 400) for step in range(40))
    assert long / (short + long) == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize("clients", [2, 3, 4, 5, 8, 10])
def test_clients_that_take_turns_are_heard_alike(clients: int) -> None:
    pace = Pace()
    heard = [0] * clients
    for step in range(400 * 60):
        heard[step % clients] += pace.due("m", step / 400)
    assert min(heard) > 0.85 * max(heard), heard


def test_kinds_do_not_take_each_others_turns() -> None:
    pace = Pace()
    taken(pace, 5000, 2.0)
    assert pace.due("rarely", 2.0)


def test_kinds_are_bounded() -> None:
    pace = Pace()
    for kind in range(_KINDS + 10):
        assert pace.due(kind, 0.0)
    assert len(pace) == 10
