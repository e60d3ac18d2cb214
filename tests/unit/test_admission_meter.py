"""Runtime tokens, the knee, and the total that follows them; values worked out by hand."""

import math

import pytest

from extproc.core.admission.adapt import FLEET, QUEUEING, RELAXED, TIGHTENED, AdaptSettings, Controller
from extproc.core.admission.meter import Meter, Reading
from extproc.core.fleet import Replica
from extproc.core.pool import Pool
from extproc.core.sample import Sample
from extproc.core.traits import Traits

#: 100,000 tokens of KV, of which 97 % may be held.
TRAITS = Traits(kv_tokens=100_000, prefill_speed=10_000, stale_after=math.inf)


def pool_of(*addresses: str) -> Pool:
    pool = Pool("pool", traits=TRAITS)
    for address in addresses:
        pool.join(address, 0.0)
    return pool


def send(pool: Pool, key: int, tokens: int, work: float, now: float) -> Replica:
    replica = pool.replicas[0]
    replica.books.send(key, work, tokens, now, replica.prefill_speed)
    return replica


def test_a_pool_carries_what_its_books_say_at_once() -> None:
    pool = pool_of("10.0.0.1:80", "10.0.0.2:80")
    send(pool, 1, 3000, 100, 0.0)
    reading = Meter(pool).look(0.0)
    assert (reading.runtime, reading.capacity, reading.replicas) == (3000, 194_000, 2)
    assert reading.pressure == pytest.approx(3000 / 194_000)


def test_requests_of_other_senders_count_as_engines_tell_them() -> None:
    pool = pool_of("10.0.0.1:80")
    send(pool, 1, 3000, 500, 0.0)
    pool.observe("10.0.0.1:80", Sample(at=0.0, kv_used=0.5, running=1))
    # Half of 100,000 held, and 500 of prompts that wait.
    assert Meter(pool).look(0.0).runtime == pytest.approx(50_500)


def test_a_replica_whose_prompts_queue_teaches_what_it_can_bear() -> None:
    pool = pool_of("10.0.0.1:80")
    meter = Meter(pool)
    send(pool, 1, 57_000, 30_000, 0.0)  # three seconds of prompt work: one second, 10,000 tokens, queues
    reading = meter.look(0.0)
    # From 97,000 a fifth of the way to 47,000.
    assert reading.capacity == pytest.approx(87_000)
    assert reading.queueing == 1
    assert meter.look(0.0).capacity == pytest.approx(79_000)


def test_however_much_waits_the_knee_is_what_the_replica_is_busy_with() -> None:
    pool = pool_of("10.0.0.1:80")
    meter = Meter(pool)
    send(pool, 1, 20_000 + 30_000 + 400_000, 20_000 + 400_000, 0.0)
    for _ in range(50):
        meter.look(0.0)
    assert meter.knee(pool.replicas[0]) == pytest.approx(50_000, rel=0.01)


def test_a_replica_that_bears_more_without_queueing_has_proved_it() -> None:
    pool = pool_of("10.0.0.1:80")
    meter = Meter(pool)
    send(pool, 1, 20_000, 30_000, 0.0)
    for _ in range(30):
        meter.look(0.0)
    assert meter.knee(pool.replicas[0]) == pytest.approx(10_000, rel=0.02)
    send(pool, 2, 30_000, 0, 10.0)
    assert meter.look(10.0).capacity == 50_000
    # All of it is carried without queueing: half a percent more is tried.
    assert meter.look(10.0).capacity == pytest.approx(50_250)


def test_one_large_prompt_is_no_queue() -> None:
    pool = pool_of("10.0.0.1:80")
    send(pool, 1, 20_000, 19_000, 0.0)
    assert Meter(pool).look(0.0).queueing == 0


def test_what_is_given_is_not_learned() -> None:
    pool = pool_of("10.0.0.1:80")
    send(pool, 1, 10_000, 20_000, 0.0)
    assert Meter(pool, given=60_000).look(0.0).capacity == 60_000


def test_a_pool_without_replicas_bears_nothing() -> None:
    reading = Meter(pool_of()).look(0.0)
    assert (reading.capacity, reading.pressure, reading.queueing) == (0, 1, 0)


# -- the total ---------------------------------------------------------------------------------------------


def reading(pressure: float, replicas: int = 1) -> Reading:
    return Reading(pressure * 1000 * replicas, 1000 * replicas, 2000 * replicas, 0.0, replicas)


def controller(**settings: float) -> Controller:
    made = Controller(AdaptSettings(**settings), 0.0)
    assert made.start(reading(0.5)) == 1000
    return made


def run(it: Controller, total: float, pressure: float, seconds: float, *, limited: bool = True) -> float:
    for second in range(1, int(seconds) + 1):
        change = it.look(total, 2000, reading(pressure), limited, float(second))
        if change is not None:
            it.made(change)
            total = change.after
    return total


def test_above_80_percent_the_total_goes_down_one_step_in_20_seconds() -> None:
    it = controller()
    assert run(it, 1000, 0.9, 39) == 850
    (change,) = it.changes
    assert it.least(change) == 18
    assert (change.at, change.before, change.after, change.cause) == (20, 1000, 850, TIGHTENED)
    assert change.pressure == pytest.approx(0.9)


def test_below_50_percent_it_goes_up_where_it_was_a_limit() -> None:
    it = controller()
    assert run(it, 1000, 0.4, 20) == pytest.approx(1150)
    assert it.changes[0].cause == RELAXED
    assert run(controller(), 1000, 0.4, 60, limited=False) == 1000


@pytest.mark.parametrize("pressure", [0.51, 0.65, 0.79])
def test_between_them_it_stays(pressure: float) -> None:
    assert run(controller(), 1000, pressure, 200) == 1000


def test_a_hard_cap_always_holds() -> None:
    assert run(controller(cap=1200), 1000, 0.1, 200) == 1200
    assert run(controller(), 1000, 0.1, 2000) == 2000  # what the KV caches may hold


def test_it_never_goes_down_to_nothing() -> None:
    assert 10 <= run(controller(), 1000, 5.0, 4000) <= 11


def crowded(pressure: float) -> Reading:
    return reading(pressure)._replace(queueing=0.5)


def test_a_fleet_that_is_overrun_does_not_wait() -> None:
    it = controller()
    looks = [it.look(5000, 2000, crowded(3.0), True, float(second)) for second in (1, 2, 3)]
    assert looks[:2] == [None, None]
    assert looks[2] is not None
    assert (looks[2].after, looks[2].cause) == (1000, QUEUEING)
    assert it.least(looks[2]) == 2


def test_who_queues_within_what_the_fleet_bears_is_left_alone() -> None:
    it = controller()
    assert [it.look(1050, 2000, crowded(0.7), True, float(second)) for second in (1, 2, 3, 4)] == [None] * 4


def test_far_above_what_the_fleet_bears_one_step_leads_to_that() -> None:
    assert run(controller(), 5000, 0.9, 20) == 1000


def test_replicas_that_come_or_go_take_the_total_along_at_once() -> None:
    it = controller()
    change = it.look(1000, 2000, reading(0.6, replicas=2), False, 1.0)
    assert change is not None
    assert (change.after, change.cause) == (2000, FLEET)
    change = it.look(2000, 4000, reading(0.6, replicas=1), False, 2.0)
    assert change is not None
    assert (change.after, change.cause) == (1000, FLEET)


def test_a_budget_that_was_given_is_not_scaled_when_the_real_kv_cache_is_told() -> None:
    # 9,000 given, 17,000 tokens of KV cache assumed, 8,900 or 100,000 or 262,144 told: what holds is 9,000, but for
    # a cache that can't hold it; two replicas bear twice that.
    it = controller()
    given = Reading(0, 9000, 17_000, 0.0, 1, True)
    assert it.start(given) == given.basis == 9000
    for limit in (100_000, 262_144, 9100):
        assert it.look(9000, 9000, given._replace(limit=limit), False, 1.0) is None
    change = it.look(9000, 9000, given._replace(limit=4500), False, 2.0)
    assert change is not None
    assert change.after == 4500
    change = it.look(4500, 4500, given._replace(limit=100_000), False, 3.0)
    assert change is not None
    assert change.after == 9000
    change = it.look(9000, 9000, given._replace(limit=34_000, capacity=18_000, replicas=2), False, 4.0)
    assert change is not None
    assert (change.after, change.cause) == (18_000, FLEET)


def test_what_another_gateway_saw_first_is_not_done_twice() -> None:
    assert controller().look(2000, 4000, reading(0.6, replicas=2), False, 1.0) is None


def test_a_fleet_that_is_out_of_sight_changes_nothing() -> None:
    it = controller()
    assert it.look(1000, 2000, Reading(0, 0, 0, 0, 0), True, 30.0) is None
