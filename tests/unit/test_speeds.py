"""Speeds learned from counters: worked out by hand, on captures, and on an emulated engine's own metrics."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet import Replica
from extproc.core.sample import Sample
from extproc.core.speeds import Speeds, Stepped, busy_share
from extproc.core.traits import Traits
from extproc.engines import get
from extproc.sim.emulated.books import Books
from extproc.sim.emulated.cache import BlockPool
from extproc.sim.emulated.metrics import exposition
from extproc.sim.emulated.scheduler import Scheduler, Sequence
from extproc.sim.emulated.settings import EngineSettings
from extproc.sim.emulated.tokens import Cutter, TokenStream
from tests.examples import QUICK, examples
from tests.unit.engine_bodies import body

EMPTY = Sample(
    at=0.0,
    **dict.fromkeys(
        ("prompt_tokens", "hit_tokens", "generated_tokens", "ttft_count", "prefill_sum", "prefill_count"), 0.0
    ),
    tpot_sum=0.0,
    tpot_count=0.0,
)


def after(at: float, **counters: float) -> Sample:
    return Sample(at=at, **{**{name: getattr(EMPTY, name) for name in vars_of(EMPTY)}, **counters})


def vars_of(sample: Sample) -> list[str]:
    return [
        *("prompt_tokens", "hit_tokens", "generated_tokens", "ttft_count", "prefill_sum", "prefill_count"),
        *("tpot_sum", "tpot_count"),
    ]


def learned(*samples: Sample, prefill: float = 8000.0, decode: float = 2000.0, slots: int = 10) -> Speeds:
    speeds = Speeds(prefill, decode)
    for sample in samples:
        speeds.observe(sample, slots)
    return speeds


def test_nothing_seen_is_as_configured() -> None:
    speeds = learned()
    assert (speeds.prefill, speeds.decode) == (8000.0, 2000.0)


def test_prompt_tokens_that_were_not_cached_over_the_share_of_time_that_prefill_took() -> None:
    """10 s, 20 prompts of 1,000 tokens with 400 cached: 12,000 computed. 4 s in prefill: L = 0.4.

    Busy 1 - exp(-0.4) = 0.3297 of 10 s. The configured speed has 20 s * exp(-10 / 30) = 14.331 s left.
    (8000 * 14.331 + 12000) / (14.331 + 3.297) = 126,650 / 17.628 = 7,184.6
    """
    grown = {"prompt_tokens": 20_000.0, "hit_tokens": 8000.0, "ttft_count": 20.0}
    speeds = learned(EMPTY, after(10.0, **grown, prefill_sum=4.0, prefill_count=20.0))
    assert speeds.prefill == pytest.approx(7184.6, rel=1e-4)


@pytest.mark.parametrize(
    ("at_once", "tokens", "share"),
    [
        (0.0, 8192.0, 0.0),
        (1.3125, 8192.0, 0.75),  # 0.75 + 0.75^2 * 1; as short prompts it would be 0.731
        (0.525, 81_920.0, 0.5),  # 0.5 + 0.5^2 * 0.1: prompts of ten steps hardly overlap
        (2.0, 8192.0, 1.0),  # always two: the engine is never without
        (math.log(2), 1024.0, 0.5),  # eight fill a step: 1 - exp(-L), where steps would give 0.238
        (math.log(2), 0.0, 0.5),  # who knows how long they are
        (9.0, 8192.0, 1.0),
    ],
)
def test_how_many_prompts_are_in_prefill_at_a_time_says_how_much_of_it_the_engine_computes(
    at_once: float, tokens: float, share: float
) -> None:
    assert busy_share(at_once, tokens) == pytest.approx(share, abs=5e-4)


def test_long_prompts_share_a_step_with_the_next_in_line_only() -> None:
    """10 s, 1 prompt of 16,384 tokens, 4 s in prefill: L = 0.4 = rho + rho^2 / 2, rho = sqrt(1.8) - 1 = 0.3416.

    Busy 3.416 s. (8000 * 14.331 + 16384) / (14.331 + 3.416)
    """
    grown = {"prompt_tokens": 16_384.0, "ttft_count": 1.0, "prefill_sum": 4.0, "prefill_count": 1.0}
    assert learned(EMPTY, after(10.0, **grown)).prefill == pytest.approx(131_032 / 17.747, rel=1e-4)


def test_each_step_that_a_long_prompt_has_a_part_in_makes_output_too() -> None:
    """2 prompts of 8,192 tokens, 4 s in prefill, 0.1 s a token: 2 steps each, so a tenth of busy time is output.

    L = 0.4: rho = 1 - exp(-0.4) = 0.3297, more than the (sqrt(2.6) - 1) / 2 = 0.3062 of full steps.
    """
    grown = {"prompt_tokens": 16_384.0, "ttft_count": 2.0, "prefill_sum": 4.0, "prefill_count": 2.0}
    output = {"generated_tokens": 100.0, "tpot_sum": 10.0, "tpot_count": 100.0}
    found = learned(EMPTY, after(10.0, **grown, **output)).prefill
    assert found == pytest.approx(131_032 / (14.331 + 3.297 * 0.9), rel=1e-3)


def test_seconds_of_prefill_are_set_against_prompts_that_ended_and_not_against_those_that_began() -> None:
    """Forty prompts had their first token, ten of them have ended and told their seconds: a quarter of the tokens."""
    grown = {"prompt_tokens": 40_000.0, "ttft_count": 40.0, "prefill_sum": 1.0, "prefill_count": 10.0}
    done, took = 10_000.0, 10 * (1 - math.exp(-0.1))
    prior = 20 * math.exp(-1 / 3)
    assert learned(EMPTY, after(10.0, **grown)).prefill == pytest.approx(
        (8000 * prior + done) / (prior + took)
    )


def test_the_step_that_makes_the_first_token_is_taken_off() -> None:
    """20 prompts, 4 s in prefill, 20 ms a token; of one step each, and 12,000 / 8,192 more where prompts cross into
    the next. So 0.4293 s of the 4 are steps, and 0.8927 of 3.2968 s are prompts."""
    grown = {"prompt_tokens": 12_000.0, "ttft_count": 20.0, "prefill_sum": 4.0, "prefill_count": 20.0}
    output = {"generated_tokens": 100.0, "tpot_sum": 2.0, "tpot_count": 100.0}
    prior = 20 * math.exp(-1 / 3)
    expected = (8000 * prior + 12_000) / (prior + 0.8927 * 3.2968)
    assert learned(EMPTY, after(10.0, **grown, **output)).prefill == pytest.approx(expected, rel=1e-4)


def test_prompts_that_are_mostly_steps_say_nothing() -> None:
    """20 prompts of 60 tokens, 30 ms each, of which 20 ms are the step."""
    grown = {"prompt_tokens": 1200.0, "ttft_count": 20.0, "prefill_sum": 0.6, "prefill_count": 20.0}
    output = {"generated_tokens": 100.0, "tpot_sum": 2.0, "tpot_count": 100.0}
    assert learned(EMPTY, after(10.0, **grown, **output)).prefill == 8000.0


def test_after_a_day_of_nothing_but_output_it_is_still_a_speed() -> None:
    speeds, zeros = Speeds(8000.0, 2000.0), {**dict.fromkeys(vars_of(EMPTY), 0.0)}
    for step in range(4000):
        output = {"generated_tokens": step * 100.0, "tpot_sum": step * 2.0, "tpot_count": step * 100.0}
        speeds.observe(Sample(at=step * 25.0, running=5.0, **{**zeros, **output}), 10)
    assert speeds.prefill == pytest.approx(8000.0)


def test_an_engine_that_counts_no_prompts_is_learned_from_too() -> None:
    """llama.cpp: 3,000 tokens in 2 s of 10 s: busy 10 * (1 - exp(-0.2)) = 1.813 s."""
    samples = [
        Sample(at=at, prompt_tokens=tokens, hit_tokens=0.0, prefill_sum=spent)
        for at, tokens, spent in ((0.0, 0.0, 0.0), (10.0, 3000.0, 2.0))
    ]
    prior = 20 * math.exp(-1 / 3)
    assert learned(*samples).prefill == pytest.approx((8000 * prior + 3000) / (prior + 1.8127), rel=1e-4)


def test_tokens_far_into_a_prompt_are_more_work() -> None:
    """Prompts of 1,000 tokens, 500 cached, doubling at 1,000: 500 * (1 + 1500 / 2000) = 875 of work each."""
    grown = {"prompt_tokens": 10_000.0, "hit_tokens": 5000.0, "ttft_count": 10.0}
    speeds = Speeds(8000.0, 2000.0, doubling=1000.0)
    speeds.observe(EMPTY, 10)
    speeds.observe(after(10.0, **grown, prefill_sum=1.0, prefill_count=10.0), 10)
    prior, took = 20 * math.exp(-1 / 3), 10 * (1 - math.exp(-0.1))
    assert speeds.prefill == pytest.approx((8000 * prior + 8750) / (prior + took))


def test_first_tokens_and_counters_feed_one_estimate_and_do_not_count_twice() -> None:
    grown = {"prompt_tokens": 20_000.0, "ttft_count": 20.0, "prefill_sum": 4.0, "prefill_count": 20.0}
    speeds = learned(EMPTY)
    speeds.computed(work=12_000.0, seconds=3.0)
    expected = (8000 * 20 * math.exp(-3 / 120) + 12_000) / (20 * math.exp(-3 / 120) + 3)
    assert speeds.prefill == pytest.approx(expected)
    speeds.observe(after(10.0, **grown), 10)
    assert speeds.prefill == pytest.approx(expected), "the same prompts were counted twice"
    speeds.observe(after(20.0, **{name: 2 * value for name, value in grown.items()}), 10)
    assert speeds.prefill != pytest.approx(expected), "first tokens are silent, and so are the counters"


def test_a_full_replica_shows_its_output_speed() -> None:
    """10 of 10 slots, 20 ms between tokens: 500 tokens/s. 5 s of 2,000 and 10 s of 500, decayed by exp(-10 / 120)."""
    speeds = learned(EMPTY, after(10.0, generated_tokens=5000.0, tpot_sum=100.0, tpot_count=5000.0))
    prior = 5 * math.exp(-1 / 12)
    assert speeds.decode == pytest.approx((2000 * prior + 500 * 10) / (prior + 10))


def test_a_half_empty_replica_does_not_disprove_the_configured_output_speed() -> None:
    """2 of 10 slots at 4 ms: 500 tokens/s now, at most 10 / 0.004 = 2,500 when full; 2,000 may be right."""
    speeds = learned(EMPTY, after(10.0, generated_tokens=5000.0, tpot_sum=20.0, tpot_count=5000.0))
    assert speeds.decode == pytest.approx(2000.0)


def test_tokens_that_take_longer_than_on_a_full_replica_do() -> None:
    """2 of 10 slots at 10 ms: at most 10 / 0.01 = 1,000 when full."""
    speeds = learned(EMPTY, after(10.0, generated_tokens=2000.0, tpot_sum=20.0, tpot_count=2000.0))
    prior = 5 * math.exp(-1 / 12)
    assert speeds.decode == pytest.approx((2000 * prior + 1000 * 10) / (prior + 10))


def test_more_tokens_than_configured_are_believed() -> None:
    speeds = learned(EMPTY, after(10.0, generated_tokens=30_000.0, tpot_sum=60.0, tpot_count=30_000.0))
    assert speeds.decode == pytest.approx(
        (2000 * 5 * math.exp(-1 / 12) + 30_000) / (5 * math.exp(-1 / 12) + 10)
    )


def test_an_idle_replica_teaches_nothing() -> None:
    speeds = Speeds(8000.0, 2000.0)
    grown = {"prompt_tokens": 20_000.0, "ttft_count": 20.0, "prefill_sum": 4.0, "prefill_count": 20.0}
    speeds.observe(EMPTY, 10)
    assert speeds.observe(after(10.0, **grown), 10)
    before = speeds.prefill
    assert not any(speeds.observe(after(10.0 + step, **grown), 10) for step in range(1, 200))
    assert speeds.prefill == before


def test_unknown_hits_are_not_zero_hits() -> None:
    samples = [
        Sample(at=at, prompt_tokens=tokens, prefill_sum=spent)
        for at, tokens, spent in ((0.0, 0.0, 0.0), (10.0, 3000.0, 2.0))
    ]
    assert learned(*samples).prefill == 8000.0


def test_another_model_starts_anew_and_another_replica_of_it_does_not() -> None:
    work = {"prompt_tokens": 20_000.0, "ttft_count": 20.0, "prefill_sum": 9.0, "prefill_count": 20.0}
    speeds = Speeds(8000.0, 2000.0)
    for at, models, counters in ((0.0, ("m-v1",), {}), (10.0, ("m-v1", "x"), work), (11.0, (), work)):
        speeds.observe(Sample(at=at, models=models, **{**dict.fromkeys(vars_of(EMPTY), 0.0), **counters}), 10)
    assert speeds.prefill < 8000.0
    speeds.observe(Sample(at=12.0, models=("m-v2",), prompt_tokens=20_001.0), 10)
    assert (speeds.prefill, speeds.decode) == (8000.0, 2000.0)


def test_counters_that_ran_backwards_and_long_silence_teach_nothing() -> None:
    grown = {"prompt_tokens": 20_000.0, "ttft_count": 20.0, "prefill_sum": 4.0, "prefill_count": 20.0}
    assert learned(after(0.0, **grown), after(10.0, **{**grown, "prefill_sum": 1.0})).prefill == 8000.0
    assert learned(EMPTY, after(31.0, **grown)).prefill == 8000.0
    assert learned(after(5.0), after(4.0, **grown)).prefill == 8000.0, "a clock that went back"


def test_vllms_captures_from_idle_to_loaded() -> None:
    """26,425 prompt tokens, 5,184 of them cached, 72 first tokens: 295 computed for each; 64 ended, 18.07 s in all.

    If 20 s went by: L = 0.9034, busy 20 * (1 - exp(-0.9034)) = 11.896 s for 64 * 295.01 = 18,881 tokens. 64 steps of
    6.602 ms are 0.4225 of the 18.07 s, which leaves 11.618 s. The configured 2,000 tokens/s have 20 * exp(-20 / 30) =
    10.268 s left: (20,537 + 18,881) / 21.886 = 1,801.
    """
    speeds = Speeds(2000.0, 2000.0)
    vllm = get("vllm")
    speeds.observe(vllm.parse(body("vllm_0_32_idle.txt"), 0.0), 16)
    speeds.observe(vllm.parse(body("vllm_0_32_load.txt"), 20.0), 16)
    assert speeds.prefill == pytest.approx(1801, rel=0.001)
    # 3,707 gaps of 6.602 ms: 16 / 0.006602 = 2,423 when full, 189 now: 2,000 may be right
    assert speeds.decode == pytest.approx(2000.0)


def test_llamacpps_captures_from_idle_to_loaded() -> None:
    """5,076 tokens computed in 3.26757 s, of 10: busy 10 * (1 - exp(-0.326757)) = 2.7874 s."""
    speeds = Speeds(2000.0, 2000.0)
    llamacpp = get("llamacpp")
    speeds.observe(llamacpp.parse(body("llamacpp_idle.txt"), 0.0), 4)
    speeds.observe(llamacpp.parse(body("llamacpp_load.txt"), 10.0), 4)
    prior = 20 * math.exp(-1 / 3)
    assert speeds.prefill == pytest.approx((2000 * prior + 5076) / (prior + 2.7874), rel=1e-4)


def run(seconds: float, rho: float, tokens: int, seed: int, replica: Replica, speed: float) -> Replica:
    """An emulated engine under Poisson load, scraped twice a second through its own text."""
    settings = EngineSettings(prefill_speed=speed)
    books, pool, rng = Books(), BlockPool(settings.usable_blocks), random.Random(seed)
    scheduler, vllm = Scheduler(settings, books, pool), get("vllm")
    rate, now, coming, scrape, number = rho * speed / tokens, 0.0, 0.0, 0.0, 0
    while now < seconds:
        now = min(coming, scrape)
        scheduler.advance(now)
        if coming <= scrape:
            number += 1
            size = max(1, int(rng.expovariate(1 / tokens)))
            data = (f"{number:08d}" * size)[: size * 4].encode()
            stream = TokenStream(Cutter(4.0, settings.block_size), data, 1)
            scheduler.submit(Sequence(stream, max(1, int(rng.expovariate(0.01)))), now)
            coming += rng.expovariate(rate)
        else:
            text = exposition(settings, books, scheduler.gauges(), 1000.0, 0.0)
            replica.observe(vllm.parse(text.encode(), now))
            scrape += 0.5
    return replica


@pytest.mark.parametrize("seed", [1] if QUICK else [1, 2, 3])
@pytest.mark.parametrize(("rho", "tokens"), [(0.5, 1000), (0.7, 2000)])
def test_a_replica_at_half_its_configured_speed_is_learned_within_a_minute(
    rho: float, tokens: int, seed: int
) -> None:
    replica = Replica("r0", 0, Traits(prefill_speed=8000.0, max_running=128), 0.0)
    run(60.0, rho, tokens, seed, replica, speed=4000.0)
    assert replica.prefill_speed == pytest.approx(4000.0, rel=0.2)


def test_a_replica_as_configured_keeps_its_speed() -> None:
    replica = Replica("r0", 0, Traits(prefill_speed=8000.0, max_running=128), 0.0)
    run(60.0, 0.4, 4000, 1, replica, speed=8000.0)
    assert replica.prefill_speed == pytest.approx(8000.0, rel=0.16)  # a step


def test_a_new_incarnation_starts_as_configured() -> None:
    old = Replica("r0", 0, Traits(prefill_speed=8000.0), 0.0)
    old.learn(80_000.0, 80.0)
    assert old.prefill_speed < 4000.0
    assert Replica("r0", 1, old.traits, 90.0, incarnation=2).prefill_speed == 8000.0


def test_a_speed_moves_in_steps_and_only_when_it_is_well_off() -> None:
    speed = Stepped(1000.0)
    assert speed.follow(1100.0) == 1000.0  # 0.68 of a step of 15 %
    assert speed.follow(1115.0) == pytest.approx(1150.0)  # 0.78
    assert speed.follow(1040.0) == pytest.approx(1150.0)  # 0.72 away from the step it is on
    assert speed.follow(1e9) == pytest.approx(1000 * 1.15**15)
    assert speed.follow(1e-9) == pytest.approx(1000 / 1.15**15)
    for garbage in (math.nan, math.inf, 0.0, -1.0):
        assert speed.follow(garbage) == pytest.approx(1000 / 1.15**15)


_COUNTER = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True), st.floats(0, 1e6))


@given(st.lists(st.tuples(st.floats(0, 40), *[_COUNTER] * 8), max_size=12))
@examples(25)
def test_no_garbage_makes_a_speed_unusable(rows: list[tuple[float | None, ...]]) -> None:
    replica, now = Replica("r0", 0, Traits(prefill_speed=8000.0, decode_speed=2000.0), 0.0), 0.0
    for passed, *counters in rows:
        assert passed is not None
        now += passed
        replica.observe(Sample(at=now, **dict(zip(vars_of(EMPTY), counters, strict=True))))
        assert 8000 / 8.2 < replica.prefill_speed < 8000 * 8.2
        assert 2000 / 8.2 < replica.decode_speed < 2000 * 8.2
