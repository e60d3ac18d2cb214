"""What a gateway that lies, or is broken, can't do to the others by its batches."""

import json
import random
from typing import Any

import pytest

from extproc.core.cost import prefill_work
from extproc.core.decide import bind, weigh
from extproc.core.flights import Seen
from extproc.core.journal import (
    MOST_TOKENS,
    Batch,
    Engine,
    Placed,
    Refused,
    Running,
    Table,
    decode,
    encode,
    heard,
    told,
)
from extproc.core.ledger import Ledger
from extproc.core.outbox import Outbox
from extproc.core.peers import MOST
from extproc.core.pool import Pool
from extproc.core.sample import Sample
from extproc.core.shared import Shared
from extproc.core.traits import Traits

A = "10.0.0.1:8000"
ENGINES = [Engine("chat", A)]


def view() -> Shared:
    pool = Pool("chat", now=0.0, traits=Traits(kv_tokens=80_000, prefill_speed=8000.0))
    pool.join(A, 0.0)
    return Shared([pool], ("me", 1))


def say(seq: int, gateway: str = "evil", **news: Any) -> Batch:
    return Batch(gateway, 7, seq, engines=list(ENGINES), **news)


@pytest.mark.parametrize(
    "news",
    [
        {"placed": [Placed(1, 0, 1.0, 2**62, 0.0)]},
        {"placed": [Placed(1, 0, 1e12, 1, 0.0)]},
        {"table": Table(1, 0, 1, [Running(1, 0, 1.0, 2**62, 0.0)])},
        {"table": Table(1, 0, 1, [Running(1, 0, 1e12, 1, 0.0)])},
        {"table": Table(2, 0, 1, [])},  # made after the batch that tells of it: all that comes would be older
    ],
)
def test_amounts_that_no_request_can_be_are_refused(news: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        decode(encode(say(1, **news)))


def test_the_most_that_may_be_told_adds_up_to_what_can_be_shown() -> None:
    assert MOST_TOKENS * 200_000 * MOST < 2**63


def test_one_request_weighs_at_most_what_fits_into_a_replicas_cache_and_one_batch_a_minute() -> None:
    shared = view()
    pool = shared.pools["chat"]
    shared.hear(say(0, placed=[Placed(1, 0, 1e9, 1, 0.0)]), (1, 0), 0.0)
    # 80,000 tokens at 8,000 a second are 10 s; rho over a run of 1 s at least weighs 60 (1 - e^(-1/60)) = 0.99 s.
    assert pool.replicas[0].books.pending == 80_000
    assert pool.busy.rho(1, 0.0) == pytest.approx(10 / 0.9917, rel=1e-3)
    shared.hear(say(1, placed=[Placed(key, 0, 1e9, 1, 0.0) for key in range(2, 4000)]), (2, 0), 0.0)
    assert pool.busy.rho(1, 0.0) == pytest.approx(70 / 0.9917, rel=1e-3)


def test_where_later_tokens_cost_more_the_largest_prompt_weighs_more() -> None:
    pool = Pool("chat", now=0.0, traits=Traits(kv_tokens=80_000, prefill_doubling=40_000.0))
    replica = pool.join(A, 0.0)
    Shared([pool], ("me", 1)).hear(say(0, placed=[Placed(1, 0, 1e9, 1, 0.0)]), (1, 0), 0.0)
    # 80,000 tokens of 1 + 80,000 / (2 * 40,000) = 2 each.
    assert replica.books.pending == prefill_work(0, 80_000, 40_000.0) == 160_000


def test_a_gateway_whose_own_requests_are_beyond_the_bounds_is_still_heard() -> None:
    pool, ledger = Pool("chat", now=0.0), Ledger()
    pool.join(A, 0.0)
    outbox = Outbox("me", 1, [pool], ledger, lambda: None)
    ledger.listener = outbox
    decision = weigh(pool, None, random.Random(1), key=5, now=1.0)
    decision.output, decision.work = 1e15, 1e15
    assert decision.replica is not None
    bind(decision, decision.replica, ledger)
    batch = decode(encode(outbox.batch(1.0)))
    assert (batch.placed[0].tokens, batch.placed[0].work) == (MOST_TOKENS, MOST_TOKENS)
    assert batch.table is not None
    assert batch.table.rows[0].tokens == MOST_TOKENS


# -- samples -----------------------------------------------------------------------------------------------


def test_samples_and_failures_count_from_the_gateway_that_collects_only() -> None:
    shared = view()
    shared.collects = lambda pool, gateway: (pool, gateway) == ("chat", "holder")
    row = told(0, Sample(at=0.0, running=4.0, started=1e9), 0.0)
    shared.hear(say(0, sampled=[row]), (1, 0), 10.0)
    (replica,) = shared.pools["chat"].replicas
    assert (replica.sample, shared.uncalled) == (None, 1)
    shared.hear(say(0, gateway="holder", sampled=[row]), (2, 0), 10.0)
    assert replica.sample is not None


@pytest.mark.parametrize(
    ("values", "is_one"),
    [
        ({"started": 1_700_086_400.0}, True),  # a day ahead: a host's clock may be wrong
        ({"started": 1_700_086_401.0}, False),
        ({"started": -1.0}, False),
        ({"started": 1e18}, False),
        ({"kv_capacity": 10**12}, True),
        ({"kv_capacity": 10**13}, False),
        ({"prompt_tokens": 1e16}, False),
        ({"running": -1.0}, False),
        ({"running": float("nan")}, False),
    ],
)
def test_a_sample_that_no_engine_can_have_given_is_none(values: dict[str, float], is_one: bool) -> None:
    row = told(0, Sample(at=0.0, **values), 0.0)  # type: ignore[arg-type]
    assert (heard(row, 1.0, 1_700_000_000.0) is not None) is is_one


# -- numbers of batches, and of gateways -------------------------------------------------------------------


def test_a_jump_in_the_numbers_is_one_gap_and_does_not_make_deaf() -> None:
    shared = view()
    assert shared.hear(say(3), (1, 0), 1.0)
    assert not shared.hear(say(2**62), (2, 0), 1.0)
    assert shared.gaps == 1
    assert json.loads(json.dumps(shared.gaps)) == 1
    assert shared.hear(say(4), (3, 0), 1.0), "the gateway itself is heard as before"


def test_numbers_that_go_on_where_they_jumped_to_are_a_new_beginning() -> None:
    seen = Seen()
    assert [seen.add(n) for n in (5, 10_000, 10_001, 10_000, 10_002)] == [True, False, True, True, True]
    assert not seen.add(6), "far below the newest"


def crowd(shared: Shared, busy: int) -> None:
    """As many gateways as are heard, of which the first so many have a request in flight; heard one after another."""
    for number in range(MOST):
        rows = [Placed(1, 0, 1.0, 1, 0.0)] if number < busy else []
        shared.hear(say(0, gateway=f"g{number}", placed=rows), (number, 0), 1.0 + number / 1000)


def test_a_gateway_with_requests_takes_the_place_of_the_idle_one_longest_silent() -> None:
    shared = view()
    crowd(shared, busy=5)
    assert not shared.hear(say(0, gateway="idle"), (999, 0), 2.0)
    assert shared.peers.passed_over == 1
    assert shared.hear(say(1, gateway="real", placed=[Placed(1, 0, 1.0, 9, 0.0)]), (999, 1), 2.0)
    assert (shared.peers.passed_over, len(shared.peers)) == (2, MOST)
    assert ("g5", 7) not in shared.peers
    assert ("g0", 7) in shared.peers
    assert shared.missed, "its earlier batches were not heard"


def test_where_all_have_requests_a_newcomer_is_passed_over_and_counted() -> None:
    shared = view()
    crowd(shared, busy=MOST)
    assert not shared.hear(say(0, gateway="real", placed=[Placed(1, 0, 1.0, 9, 0.0)]), (999, 0), 2.0)
    assert (shared.peers.passed_over, shared.requests) == (1, MOST)
