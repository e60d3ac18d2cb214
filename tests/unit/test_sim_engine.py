"""The engine model: step times worked out by hand, cache, limits, and a queue that theory knows."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.cost import prefill_work
from extproc.sim.cache import BlockCache
from extproc.sim.engine import Engine, EngineSettings
from extproc.sim.jobs import Job, Row
from tests.examples import examples

PLAIN = EngineSettings(
    prefill_speed=1000.0, prefill_doubling=math.inf, step=0.1, per_sequence=0.0, per_context=0.0, chunk=1000
)


def job(number: int, tokens: int, output: int, first_block: int = 0) -> Job:
    blocks = [first_block + i for i in range(max(-(-tokens // 512), 1))]
    return Job(number, Row(0.0, tokens, output, blocks), 0.0, 0)


def play(engine: Engine, arrivals: list[tuple[float, Job]]) -> None:
    """Submit at the times given, and run to the end."""
    waiting = sorted(arrivals, key=lambda a: a[0])
    while waiting or engine.wake < math.inf:
        if waiting and waiting[0][0] <= engine.wake:
            at, coming = waiting.pop(0)
            coming.arrived = at
            engine.submit(coming, at)
            continue
        now = engine.wake
        firsts, ended = engine.advance(now)
        for one in firsts:
            one.first = now
        for one in ended:
            one.finished = now


def test_a_lone_prompt_takes_its_work_and_a_step_then_one_step_a_token() -> None:
    engine, one = Engine("r0", PLAIN, 0.0), job(0, 500, 3)
    play(engine, [(0.0, one)])
    assert one.first == pytest.approx(0.5 + 0.1)
    assert one.finished == pytest.approx(0.6 + 2 * 0.1)
    assert engine.busy == pytest.approx(0.6)
    assert engine.is_empty


def test_a_long_prompt_is_computed_in_chunks() -> None:
    engine, one = Engine("r0", PLAIN, 0.0), job(0, 2500, 1)
    play(engine, [(0.0, one)])
    assert one.first == pytest.approx(2.5 + 3 * 0.1)  # three steps


def test_short_prompts_share_a_step() -> None:
    engine = Engine("r0", PLAIN, 0.0)
    first, second, third = job(0, 600, 1), job(1, 300, 1, 100), job(2, 300, 1, 200)
    play(engine, [(0.0, first), (0.05, second), (0.05, third)])
    assert first.first == pytest.approx(0.7)
    assert second.first == third.first == pytest.approx(0.7 + 0.6 + 0.1)


def test_a_token_further_in_costs_more() -> None:
    assert prefill_work(0, 1000, 1000.0) == 1500
    assert prefill_work(1000, 2000, 1000.0) == 2500
    assert prefill_work(0, 1000) == 1000
    engine = Engine(
        "r0", EngineSettings(prefill_speed=1000, prefill_doubling=1000, step=0.1, chunk=5000), 0.0
    )
    one = job(0, 1000, 1)
    play(engine, [(0.0, one)])
    assert one.first == pytest.approx(1.5 + 0.1 + 50e-6)


def test_an_arrival_waits_for_the_step_that_is_going_on() -> None:
    engine, one, two = Engine("r0", PLAIN, 0.0), job(0, 100, 101), job(1, 100, 1, 50)
    play(engine, [(0.0, one), (1.03, two)])
    # Prompt until 0.2, then steps of 0.1 s: that of 1.0..1.1 is going on; the prompt takes 0.2 s.
    assert two.first == pytest.approx(1.1 + 0.2)
    assert one.finished == pytest.approx(0.2 + 10.0 + 0.1)  # one of its 100 steps took 0.2 instead of 0.1


def test_context_slows_steps_down() -> None:
    engine = Engine(
        "r0", EngineSettings(prefill_speed=1e9, step=0.0, per_sequence=0.0, per_context=0.001), 0.0
    )
    one = job(0, 100, 4)
    play(engine, [(0.0, one)])
    assert one.finished - one.first == pytest.approx(0.101 + 0.102 + 0.103)


def test_full_blocks_seen_before_are_not_computed_again() -> None:
    engine, one, two = Engine("r0", PLAIN, 0.0), job(0, 1100, 1), job(1, 1100, 1)
    play(engine, [(0.0, one), (5.0, two)])
    assert (one.hit, two.hit) == (0, 1024)
    assert two.first == pytest.approx(5.0 + 0.076 + 0.1)
    assert engine.hits + engine.computed == 2200


def test_the_last_token_is_always_computed() -> None:
    engine, one, two = Engine("r0", PLAIN, 0.0), job(0, 1024, 1), job(1, 1024, 1)
    play(engine, [(0.0, one), (5.0, two)])
    assert two.hit == 1023


def test_no_more_sequences_run_than_may() -> None:
    engine = Engine(
        "r0", EngineSettings(prefill_speed=1000, prefill_doubling=math.inf, step=0.1, max_running=1), 0.0
    )
    one, two = job(0, 100, 11), job(1, 100, 1, 50)
    play(engine, [(0.0, one), (0.0, two)])
    assert one.finished == pytest.approx(one.first + 10 * 0.1, abs=0.01)
    assert two.first >= one.finished + 0.2


def test_a_prompt_waits_for_kv_room() -> None:
    engine = Engine("r0", EngineSettings(kv_tokens=2048), 0.0)
    one, two = job(0, 1500, 100), job(1, 1500, 1, 50)
    play(engine, [(0.0, one), (0.0, two)])
    assert two.first > one.finished
    assert not engine.fits(job(2, 2000, 100))


def test_an_engine_that_dies_loses_all_it_had() -> None:
    engine = Engine("r0", PLAIN, 0.0)
    jobs = [job(n, 600, 5, 10 * n) for n in range(4)]
    for one in jobs:
        engine.submit(one, 0.0)
    engine.advance(engine.wake)
    assert sorted(one.number for one in engine.drop_all()) == [0, 1, 2, 3]
    assert engine.is_empty
    assert engine.wake == math.inf
    assert engine.hits + engine.computed == 0


def test_the_least_recently_used_block_goes_first_and_a_prompts_end_before_its_beginning() -> None:
    cache = BlockCache(4)
    cache.use([1, 2])
    cache.use([3, 4])
    assert cache.leading([1, 2]) == 2
    cache.use([5])
    assert (cache.leading([1, 2]), cache.leading([3, 4]), len(cache)) == (1, 2, 4)


def test_one_replica_matches_md1_queueing_theory() -> None:
    # Prompts of one full step each: service D = 8192 / 20000 + 0.01 + 50e-6 s. At load 0.5 the mean wait of M/D/1
    # is 0.5 / (2 * 0.5) * D, so the time to first token is 1.5 D (Pollaczek-Khinchine).
    engine = EngineSettings(prefill_doubling=math.inf, per_context=0.0)
    service = 8192 / 20_000 + 0.010 + 50e-6
    means = []
    for seed in range(3):
        rng, now, arrivals = random.Random(seed), 0.0, []
        for number in range(2_500):
            now += rng.expovariate(0.5 / service)
            arrivals.append((now, Job(number, Row(now, 8192, 1, [number]), now, 0)))
        play(Engine("r0", engine, 0.0), arrivals)
        means.append(sum(one.first - at for at, one in arrivals) / len(arrivals))
    assert sum(means) / len(means) == pytest.approx(1.5 * service, rel=0.03)


@examples(30)
@given(
    st.lists(
        st.tuples(st.floats(0, 20), st.integers(1, 4000), st.integers(1, 60), st.integers(0, 3)),
        min_size=1,
        max_size=40,
    )
)
def test_any_arrivals_end_with_every_token_accounted_for(rows: list[tuple[float, int, int, int]]) -> None:
    engine = Engine("r0", EngineSettings(kv_tokens=8192, max_running=4, chunk=700), 0.0)
    jobs = [(at, job(n, tokens, out, 100 * root)) for n, (at, tokens, out, root) in enumerate(rows)]
    play(engine, jobs)
    assert engine.is_empty
    assert engine.context == 0
    assert engine.hits + engine.computed == sum(tokens for _, tokens, _, _ in rows)
    for at, one in jobs:
        assert at < one.first <= one.finished
