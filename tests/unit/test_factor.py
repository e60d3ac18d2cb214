"""A metric that enters what a second of a replica costs."""

import math
import random

import pytest

from extproc.building import build_steering
from extproc.config import parse
from extproc.core.bias import Factor
from extproc.core.decide import decide
from extproc.core.journal import heard, told
from extproc.core.ledger import Ledger
from extproc.core.pool import Pool
from extproc.core.prompt import Chain, Prompt
from extproc.core.sample import Sample
from extproc.core.traits import Traits
from extproc.engines import get
from extproc.engines.factored import Factored
from extproc.errors import ConfigError

A, B = "10.0.0.1:8000", "10.0.0.2:8000"
TEXT = b'vllm:num_requests_running 3.0\nload{expert="0"} 150\nload{expert="1"} 250\n'


def configured(factor: str, engine: str = "vllm") -> str:
    return f"pools: [{{engine: {engine}, replicas: ['{A}', '{B}'], factor: {factor}}}]"


@pytest.mark.parametrize(
    ("value", "factor"),
    [(None, 1.0), (4.0, 1.0), (6.0, 1.5), (5.0, 1.25), (100.0, 2.0), (0.0, 0.5), (3.0, 0.75)],
)
def test_the_cost_is_a_straight_line_within_bounds(value: float | None, factor: float):
    assert Factor(neutral=4.0, weight=0.25).times(value) == factor


def test_the_metric_is_read_beside_the_engines_own_and_several_series_are_averaged():
    engine = Factored(get("vllm"), "load / 100")
    sample = engine.parse(TEXT, 5.0)
    assert (sample.running, sample.factor, sample.at) == (3.0, 2.0, 5.0)
    assert {"load", "vllm:num_requests_running"} <= set(engine.wanted)
    assert engine.recognises(TEXT)


@pytest.mark.parametrize("text", [b"vllm:num_requests_running 3\n", b"load NaN\n", b"load nonsense\n", b""])
def test_what_can_not_be_read_is_unknown(text: bytes):
    assert Factored(get("vllm"), "load").parse(text, 0.0).factor is None


def test_a_dear_replica_gets_a_request_only_when_the_other_is_much_busier():
    pool = Pool("p", traits=Traits(prefill_speed=1000.0, stale_after=math.inf, factor=Factor()), now=0.0)
    dear, cheap = pool.join(A, 0.0), pool.join(B, 0.0)
    for address, value in ((A, 3.0), (B, 1.0)):
        pool.observe(address, Sample(at=0.0, running=0.0, factor=value))
    assert (dear.cost, dear.bias, cheap.bias) == (2.0, 2.0, 1.0)
    ledger, rng = Ledger(), random.Random(1)
    ledger.charge(100, dear, 1000.0, 1000, 0.0)
    ledger.charge(101, cheap, 1500.0, 1500, 0.0)  # 1.5 s of work, against 1 s that counts twice
    assert decide(pool, None, ledger, rng, key=1, now=0.0).replica is cheap
    ledger.charge(102, cheap, 1500.0, 1500, 0.0)
    assert decide(pool, None, ledger, rng, key=2, now=0.0).replica is dear
    pool.observe(A, Sample(at=1.0, running=0.0))
    assert dear.cost == 1.0, "no longer told is unknown, and unknown is neutral"


def work_of_the_dear(arrivals: int, every: float) -> float:
    """The dear replica's share of prompts of a second each, which arrive so often, as read off the engines' text."""
    settings = parse(configured("{metric: price, neutral: 1, weight: 1}"), "test")
    (pool,) = build_steering(settings, 0.0).pools
    engine = settings.pools[0].reader
    assert isinstance(engine, Factored)
    ledger, rng, taken = Ledger(), random.Random(1), {A: 0, B: 0}
    free_at, done = {A: 0.0, B: 0.0}, dict[int, float]()
    for key in range(arrivals):
        now = key * every
        for address, price in ((A, 2), (B, 1)):
            text = b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nprice %d\n" % price
            pool.observe(address, engine.parse(text, now))
        size = int(4 * pool.traits.prefill_speed)  # four bytes a token
        prompt = Prompt(dialect="d", kind="generate", chains=[Chain([key + 1], [size])], size=size)
        decision = decide(pool, prompt, ledger, rng, key=key, now=now)
        assert decision.replica is not None
        address = decision.replica.address
        taken[address] += 1
        free_at[address] = done[key] = max(now, free_at[address]) + 1.0  # one after the other, a second each
        for old in [old for old, at in done.items() if at <= now]:
            del done[old]
            ledger.release(old, now)
    return taken[A] / arrivals


def test_the_dear_replica_is_left_alone_while_the_other_has_time_and_helps_when_it_has_none() -> None:
    idle, busy = work_of_the_dear(200, every=5.0), work_of_the_dear(200, every=0.5)
    assert idle <= 0.05
    assert 0.2 <= busy < 0.5


def test_other_gateways_hear_the_value():
    row = told(1, Sample(at=0.0, running=1.0, factor=2.5), 0.0)
    sample = heard(row, 0.0)
    assert sample is not None
    assert sample.factor == 2.5


def test_settings_make_the_rule_and_its_reader():
    settings = parse(configured("{metric: load / 100, neutral: 2, weight: 0.5, high: 3}"), "test")
    (pool,) = build_steering(settings, 0.0).pools
    assert pool.traits.factor == Factor(neutral=2.0, weight=0.5, low=0.5, high=3.0)
    reader = settings.pools[0].reader
    assert isinstance(reader, Factored)
    assert settings.pools[0].reader is reader, "made once"


def test_without_a_metric_nothing_is_read_beside():
    settings = parse(configured("{}"), "test")
    assert settings.pools[0].reader == "vllm"
    assert build_steering(settings, 0.0).pools[0].traits.factor is None


@pytest.mark.parametrize(
    ("factor", "engine", "says"),
    [
        ("{metric: 'a b'}", "vllm", "is no metric"),
        ("{metric: load}", "auto", "engine auto does not read"),
        ("{metric: load, weight: 0}", "vllm", "changes nothing"),
        ("{metric: load, low: 0}", "vllm", "low"),
    ],
)
def test_a_factor_that_can_not_be_is_refused(factor: str, engine: str, says: str):
    with pytest.raises(ConfigError, match=says):
        parse(configured(factor, engine), "test")
