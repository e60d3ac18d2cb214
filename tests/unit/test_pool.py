"""Pools: candidates, restarts, and how busy a pool is."""

import math

import pytest

from extproc.core.fleet import KV_CEILING, STALE
from extproc.core.pool import Busy, Pool, has_restarted
from extproc.core.prompt import Chain
from extproc.core.sample import Sample
from extproc.core.traits import Traits
from tests.unit.counted_pool import Counted

A, B = "10.0.0.1:8000", "10.0.0.2:8000"


def pool(**traits: float) -> Pool:
    made = Pool("p", traits=Traits(**traits), now=0.0)  # type: ignore[arg-type]
    made.join(A, 0.0)
    made.join(B, 0.0)
    return made


def test_a_replica_is_stale_once_its_last_sample_is_too_old() -> None:
    p = pool(stale_after=15.0)
    p.observe(A, Sample(at=10.0, running=0))
    replica = p.get(A)
    assert replica is not None
    assert replica.excluded(24.9) is None
    assert replica.excluded(25.0) == STALE


def test_a_replica_over_the_kv_ceiling_is_no_candidate_until_it_is_below() -> None:
    p = pool(kv_ceiling=0.9)
    replica = p.observe(A, Sample(at=1.0, kv_used=0.9))
    assert replica is not None
    assert replica.excluded(1.0) == KV_CEILING
    p.observe(A, Sample(at=2.0, kv_used=0.89))
    assert replica.excluded(2.0) is None


def test_a_missing_kv_metric_is_not_an_idle_one_nor_a_full_one() -> None:
    replica = pool().observe(A, Sample(at=1.0, running=1))
    assert replica is not None
    assert replica.excluded(1.0) is None
    assert replica.headroom is not None
    assert replica.headroom < 1.0


def test_a_refused_connection_bars_a_replica_and_a_sample_brings_it_back() -> None:
    p = pool()
    replica = p.get(A)
    assert replica is not None
    p.failed(A, "connect", 0.5)
    assert replica.excluded(0.5) == "backoff"
    p.observe(A, Sample(at=1.0))
    assert replica.excluded(1.0) is None


def test_silence_bars_after_four_misses_in_a_row_and_an_odd_answer_never() -> None:
    p = pool()
    replica = p.get(A)
    assert replica is not None
    for reason in ("timeout", "timeout", "timeout", "status_404", "timeout", "broken", "timeout"):
        p.failed(A, reason, 0.5)
    assert replica.excluded(0.5) is None
    p.failed(A, "timeout", 0.5)
    assert replica.excluded(0.5) == "backoff"


def test_a_sample_does_not_end_what_the_breaker_began() -> None:
    p = pool()
    replica = p.get(A)
    assert replica is not None
    for number in range(3):
        replica.answered(str(number), 500, None, 1.0)
    assert replica.excluded(1.0) == "breaker"
    p.observe(A, Sample(at=1.5))
    assert replica.excluded(1.5) == "breaker"
    p.tick(2.0)
    assert replica.excluded(2.0) is None, "no probe is let through"
    replica.sent("probe", 2.0)
    assert replica.excluded(2.0) == "breaker", "a second probe is let through"
    replica.answered("probe", 200, None, 2.1)
    assert replica.excluded(2.1) is None


def test_pushback_leaves_it_alone_for_the_stated_time_and_the_breaker_closed() -> None:
    p = pool()
    replica = p.get(A)
    assert replica is not None
    for number in range(20):
        replica.answered(str(number), 429, 5.0, 5.0)
    assert replica.excluded(5.0) == "pushback"
    assert replica.breaker.state == "closed"
    p.tick(10.0)
    assert replica.excluded(10.0) is None


def test_a_sleeping_engine_is_no_candidate() -> None:
    replica = pool().observe(A, Sample(at=1.0, running=0, asleep=True))
    assert replica is not None
    assert replica.excluded(1.0) == "asleep"


def test_a_drained_replica_gets_nothing_and_is_gone_at_its_deadline() -> None:
    p = pool()
    replica = p.get(A)
    assert replica is not None
    assert replica.drain("operator", 1.0, deadline=5.0)
    assert replica.excluded(1.0) == "quiescing"
    p.observe(A, Sample(at=2.0))
    assert replica.excluded(2.0) == "quiescing"
    assert p.tick(4.9) == []
    assert p.tick(5.0) == [A]
    assert [r.address for r in p.replicas] == [B]


def test_a_drain_survives_a_restart_of_the_engine() -> None:
    p = pool()
    replica = p.get(A)
    assert replica is not None
    p.observe(A, Sample(at=1.0, started=100.0))
    replica.drain("operator", 1.5, deadline=50.0)
    p.observe(A, Sample(at=2.0, started=900.0))
    fresh = p.get(A)
    assert fresh is not None
    assert (fresh.incarnation, fresh.excluded(2.0), fresh.life.cause) == (2, "quiescing", "operator")
    assert fresh.life.deadline == 50.0


def test_a_joining_engine_gets_a_growing_share_of_requests() -> None:
    p = pool()
    joined = p.join("10.0.0.3:8000", 100.0, started=100.0)
    assert joined.excluded(100.0) == "warming"
    p.tick(145.0)
    assert joined.share == pytest.approx(0.75)
    p.tick(160.0)
    assert joined.share == 1.0


def test_a_restart_in_place_clears_what_was_believed_of_the_cache() -> None:
    p = pool()
    p.observe(A, Sample(at=1.0, started=100.0))
    first = p.get(A)
    assert first is not None
    p.index.place(first.slot, Chain([1, 2], [1024, 2048]), 1.0)
    p.observe(A, Sample(at=2.0, started=900.0))
    second = p.get(A)
    assert second is not None
    assert second.incarnation == 2
    assert p.index.match([1, 2]) == {}
    assert second in p.replicas
    assert first not in p.replicas


@pytest.mark.parametrize(
    ("before", "after", "restarted"),
    [
        (Sample(at=0, started=10.0), Sample(at=1, started=10.4), False),
        (Sample(at=0, started=10.0), Sample(at=1, started=20.0), True),
        (Sample(at=0, prompt_tokens=500), Sample(at=1, prompt_tokens=600), False),
        (Sample(at=0, prompt_tokens=500), Sample(at=1, prompt_tokens=3), True),
        (Sample(at=0, generated_tokens=500), Sample(at=1, generated_tokens=3), True),
        (Sample(at=0, prompt_tokens=500), Sample(at=1), False),
        (Sample(at=0), Sample(at=1), False),
    ],
)
def test_what_counts_as_a_restart(before: Sample, after: Sample, restarted: bool) -> None:
    assert has_restarted(before, after) is restarted


def test_leaving_and_joining_again_starts_cold() -> None:
    p = pool()
    replica = p.get(A)
    assert replica is not None
    p.index.place(replica.slot, Chain([1], [1024]), 0.0)
    p.leave(A)
    p.leave(A)
    assert [r.address for r in p.replicas] == [B]
    p.join(A, 1.0)
    assert p.index.match([1]) == {}


def test_rho_is_prompt_seconds_per_second_and_replica() -> None:
    busy = Busy(0.0)
    for second in range(1, 601):
        busy.add(1.0, float(second))  # one second of work a second
    assert busy.rho(2, 600.0) == pytest.approx(0.5, rel=0.02)
    assert busy.rho(2, 660.0) == pytest.approx(0.5 / math.e, rel=0.02), "a minute of silence divides by e"


def test_rho_starts_low_and_has_no_division_by_zero() -> None:
    busy = Busy(0.0)
    assert busy.rho(0, 0.0) == 0.0
    busy.add(0.5, 0.0)
    assert 0 < busy.rho(4, 0.0) <= 0.5


def test_rho_is_that_of_what_is_scarcer_prompt_time_or_running_slots() -> None:
    p = pool(max_running=10)
    first, second = p.replicas
    for key in range(9):
        first.books.send(key, 0, 0, 0.0, first.prefill_speed)
    first.recount()
    assert p.rho(p.replicas, 0.0) == 0.0, "nobody waits while a slot is free"
    first.books.send(9, 0, 0, 0.0, first.prefill_speed)
    first.recount()
    assert p.rho(p.replicas, 0.0) == 0.5
    assert (p.rho([first], 0.0), p.rho([second], 0.0)) == (1.0, 0.0)
    p.busy.add(0.8 * 2, 0.0)  # 0.8 s of prompts for each of two replicas in the first second
    assert p.rho(p.replicas, 0.0) == p.rho([], 0.0) == pytest.approx(0.8, rel=0.01)


def test_a_thousand_replicas_that_join_or_leave_at_once_are_arranged_once() -> None:
    pool = Counted("p")
    addresses = [f"10.0.{n >> 8}.{n & 255}:80" for n in range(1_000)]
    with pool.at_once():
        for address in addresses:
            pool.join(address, 0.0)
        assert pool.get(addresses[-1]) is not None
    assert pool.arranged == 1
    assert [r.address for r in pool.replicas] == addresses
    assert pool.ring is not None
    with pool.at_once():
        for address in addresses[1:]:
            pool.leave(address)
    assert pool.arranged == 2
    assert [r.address for r in pool.replicas] == addresses[:1]
    assert list(pool.places) == [pool.replicas[0].slot]
    assert pool.ring is None


def test_where_nobody_joined_or_left_at_once_the_list_stays_as_it_is() -> None:
    pool = Counted("p")
    pool.join("a:1", 0.0)
    with pool.at_once():
        pool.join("a:1", 0.0)
        pool.leave("b:1")
    assert pool.arranged == 1


def test_replicas_whose_time_is_up_at_once_leave_at_once() -> None:
    pool = Counted("p")
    with pool.at_once():
        for n in range(100):
            pool.join(f"10.0.0.{n}:80", 0.0).drain("operator", 0.0, 5.0)
    assert len(pool.tick(6.0)) == 100
    assert (pool.arranged, pool.replicas) == (2, [])


def test_replicas_that_joined_before_a_fault_are_arranged_all_the_same() -> None:
    pool = Pool("p")

    def faulty() -> None:
        with pool.at_once():
            pool.join("a:1", 0.0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        faulty()
    assert [r.address for r in pool.replicas] == ["a:1"]
