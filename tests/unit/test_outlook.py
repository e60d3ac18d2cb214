"""What holds for every replica of a pool: found once, and found anew when one of them changes.

That it is never wrong, whatever happens to a fleet, is an invariant of tests/unit/test_fleet_life.py.
"""

from typing import Any

import pytest

from extproc.core.ledger import Ledger
from extproc.core.outlook import Outlook
from extproc.core.pool import Pool
from extproc.core.sample import Sample
from extproc.core.traits import Traits

A, B = "10.0.0.1:8000", "10.0.0.2:8000"


class Counted(Outlook):
    """Counts how often the replicas are looked at."""

    __slots__ = ("looks",)

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def _look(self, *args: Any) -> None:
        self.looks += 1
        super()._look(*args)


def pool(**traits: Any) -> tuple[Pool, Counted]:
    """Two replicas whose samples are fresh for 10 s."""
    made, outlook = Pool("p", traits=Traits(stale_after=10.0, **traits), now=0.0), Counted()
    made.outlook = outlook
    for address in (A, B):
        made.join(address, 0.0)
    return made, outlook


def test_a_fleet_that_stays_as_it_is_is_looked_at_once_until_a_sample_would_be_stale() -> None:
    p, outlook = pool()
    assert all(outlook.all_open(p.replicas, now) for now in (0.0, 5.0, 9.9))
    assert (outlook.looks, outlook.is_even) == (1, True)
    p.observe(A, Sample(at=5.0))  # A is fresh until 15, B until 10
    assert not outlook.all_open(p.replicas, 10.0), "B was not heard of for 10 s"
    assert not outlook.all_open(p.replicas, 10.1)
    assert outlook.looks == 2, "nothing changed since"


def test_samples_that_come_in_time_are_no_news() -> None:
    p, outlook = pool()
    for at in range(10):
        assert outlook.all_open(p.replicas, float(at))
        p.observe(A, Sample(at=float(at)))
        p.observe(B, Sample(at=float(at)))
    assert outlook.looks == 1


def test_a_stale_replica_that_is_heard_of_counts_at_once_also_when_its_sample_is_from_before_it_was_missed() -> (
    None
):
    p, outlook = pool()
    p.observe(A, Sample(at=8.0))
    assert not outlook.all_open(p.replicas, 11.0)
    p.observe(B, Sample(at=9.5))
    assert outlook.all_open(p.replicas, 11.1)


def test_a_sample_older_than_the_last_takes_back_freshness() -> None:
    p, outlook = pool()
    p.observe(A, Sample(at=8.0))
    p.observe(B, Sample(at=8.0))
    assert outlook.all_open(p.replicas, 8.0), "until 18"
    p.observe(A, Sample(at=1.0))
    assert not outlook.all_open(p.replicas, 11.0)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.get(A).drain("operator", 1.0),
        lambda p: p.restarted(A, 1.0),
        lambda p: p.join("10.0.0.3:8000", 1.0, started=1.0),
        lambda p: p.failed(A, "connect", 1.0),
        lambda p: p.observe(A, Sample(at=1.0, kv_used=0.99)),
        lambda p: p.observe(A, Sample(at=1.0, asleep=True)),
        lambda p: p.get(A).answered("x", 429, 5.0, 1.0),
    ],
)
def test_a_replica_that_may_not_be_chosen_for_all_requests_is_seen_at_once(change: Any) -> None:
    p, outlook = pool()
    assert outlook.all_open(p.replicas, 1.0)
    change(p)
    assert not outlook.all_open(p.replicas, 1.0)


def test_a_favoured_replica_makes_the_fleet_uneven_and_one_that_costs_more_too() -> None:
    p, outlook = pool(costs={B: 1.5})

    def is_even() -> bool:
        outlook.all_open(p.replicas, 0.0)
        return outlook.is_even

    assert not is_even()
    p.leave(B)
    assert is_even()
    p.join("10.0.0.3:8000", 0.0, started=-100.0)
    p.observe("10.0.0.3:8000", Sample(at=0.0, prompt_tokens=0.0, generated_tokens=0.0))
    assert not is_even(), "its cache is empty"


def test_a_fleet_is_crowded_from_the_request_that_takes_a_last_slot_until_it_ends() -> None:
    p, outlook = pool(max_running=1)
    ledger, a = Ledger(), p.replicas[0]
    assert not outlook.is_crowded(p.replicas)
    ledger.charge(1, a, 10.0, 20, 0.0)
    assert outlook.is_crowded(p.replicas)
    ledger.release(1, 1.0)
    assert not outlook.is_crowded(p.replicas)
    p.observe(B, Sample(at=1.0, kv_used=0.9))  # 0.8 counts as free
    assert outlook.is_crowded(p.replicas)
    p.leave(B)
    assert not outlook.is_crowded(p.replicas)


def test_nobody_is_open_in_an_empty_pool() -> None:
    assert not Outlook().all_open([], 0.0)


def test_evenness_that_nobody_looked_for_again_is_not_told() -> None:
    """Requests that name their replicas do not ask whether all are open, and so do not look."""
    p, outlook = pool()
    assert outlook.all_open(p.replicas, 0.0)
    assert outlook.is_even
    p.replicas[0].cost = 1.5
    p.replicas[0].refresh(0.0)
    assert p.replicas[0].bias == 1.5
    assert not outlook.is_even


def test_a_backlog_that_was_worked_out_at_another_speed_is_what_the_outlook_keeps() -> None:
    p, outlook = pool()
    ledger, replica = Ledger(), p.replicas[0]
    ledger.charge(1, replica, 4000.0, 4000, 0.0)
    p.presume(replica, 100_000, prefill=2000.0)
    assert replica.backlog(0.0) == 4000.0 / replica.prefill_speed
    assert outlook.loads[0] == replica.load
    assert outlook.loads[0][0] == 4000.0 / replica.prefill_speed
