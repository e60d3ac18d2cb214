"""The factor on a replica's expected cost: what it costs, and the favour of a new one whose cache is empty."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.bias import Cold, empty_share
from extproc.core.fleet import Replica
from extproc.core.policies.base import Ask, biased
from extproc.core.pool import Pool
from extproc.core.sample import Sample
from extproc.core.traits import Traits

A = "10.0.0.1:8000"
COLD = Cold(favour=0.4, span=1000.0)


@pytest.mark.parametrize(
    ("age", "empty", "factor"),
    [
        (0.0, 1.0, 0.6),
        (500.0, 1.0, 0.8),
        (500.0, 0.5, 0.9),
        (0.0, 0.0, 1.0),
        (1000.0, 1.0, 1.0),
        (math.inf, 1.0, 1.0),
        (0.0, None, 1.0),  # unknown is not empty
        (-5.0, 1.0, 0.6),
    ],
)
def test_the_favour_fades_with_age_and_with_what_fills_the_cache(
    age: float, empty: float | None, factor: float
) -> None:
    assert COLD.factor(age, empty) == pytest.approx(factor)


def test_what_was_computed_since_the_start_fills_the_cache() -> None:
    sample = Sample(at=0.0, prompt_tokens=50_000.0, hit_tokens=30_000.0, generated_tokens=5000.0)
    assert empty_share(sample, 100_000) == pytest.approx(0.75)
    assert empty_share(Sample(at=0.0, prompt_tokens=50_000.0), 100_000) == pytest.approx(0.5)
    assert empty_share(Sample(at=0.0, prompt_tokens=500_000.0), 100_000) == 0.0
    assert empty_share(Sample(at=0.0, prompt_tokens=10.0, hit_tokens=50.0), 100_000) == 1.0
    assert empty_share(Sample(at=0.0, generated_tokens=5.0), 100_000) is None
    assert empty_share(Sample(at=0.0, prompt_tokens=math.nan), 100_000) is None
    assert empty_share(None, 100_000) is None


def sample(at: float, computed: float) -> Sample:
    return Sample(at=at, prompt_tokens=computed, hit_tokens=0.0, generated_tokens=0.0, started=50.0)


def pool() -> Pool:
    return Pool("p", traits=Traits(kv_tokens=100_000, cold=COLD, costs={A: 1.5}), now=0.0)


def test_a_joining_replica_is_favoured_from_its_first_sample_and_less_as_time_goes_by() -> None:
    p = pool()
    joined = p.join("10.0.0.2:8000", 100.0, started=100.0)
    assert joined.bias == 1.0, "nothing is known of its cache"
    p.observe(joined.address, sample(100.0, 0.0))
    assert joined.bias == 1.0, "it warms up"
    p.tick(200.0)
    assert joined.bias == pytest.approx(1 - 0.4 * 0.9)
    p.tick(350.0)
    assert joined.bias == pytest.approx(1 - 0.4 * 0.75)
    p.observe(joined.address, sample(350.0, 50_000.0))
    assert joined.bias == pytest.approx(1 - 0.4 * 0.75 * 0.5)
    p.tick(1100.0)
    assert joined.bias == 1.0


def test_a_replica_that_was_found_serving_is_not_new() -> None:
    p = pool()
    found = p.join("10.0.0.2:8000", 0.0)
    p.observe(found.address, sample(1.0, 0.0))
    assert found.bias == 1.0


def test_a_restart_is_favoured_anew_and_costs_what_its_address_costs() -> None:
    p = pool()
    assert p.join(A, 0.0).bias == 1.5
    p.observe(A, sample(1.0, 80_000.0))
    p.observe(A, Sample(at=5000.0, started=900.0, prompt_tokens=0.0, hit_tokens=0.0))
    fresh = p.get(A)
    assert fresh is not None
    assert (fresh.incarnation, fresh.bias) == (2, 1.5), "it warms up"
    p.tick(5100.0)
    assert fresh.bias == pytest.approx(1.5 * (1 - 0.4 * 0.9))


@given(
    st.floats(-10, 1e6),
    st.one_of(st.none(), st.floats(allow_nan=True)),
    st.floats(0, 0.9),
    st.floats(1, 1e5),
)
def test_the_bias_stays_above_zero_and_no_favour_is_a_malus(
    age: float, computed: float | None, favour: float, span: float
) -> None:
    replica = Replica("r0", 0, Traits(cold=Cold(favour=favour, span=span)), 0.0, started=0.0)
    replica.observe(Sample(at=age, prompt_tokens=computed))
    assert 0.1 - 1e-9 <= replica.bias <= 1.0


def test_the_favour_counts_in_one_decision_of_as_many_as_there_are_candidates_and_cost_in_all() -> None:
    replicas = [Replica(f"r{i}", i, Traits(), 0.0) for i in range(4)]
    rng, ask = Random(1), Ask(replicas, [0.0] * 4, 1000.0, 100.0, 0.0, 0.0)
    assert biased([2.0, 2.0, 2.0, 2.0], ask, rng) == [2.0] * 4
    assert rng.random() == Random(1).random(), "nothing is drawn where nothing is favoured"
    replicas[2].cost, replicas[2].bias = 1.5, 1.35
    drawn = [biased([2.0, 2.0, 2.0, 2.0], ask, rng)[2] for _ in range(4000)]
    assert set(drawn) == {3.0, 2.7}
    assert drawn.count(2.7) == pytest.approx(1000, abs=100)
