"""Which replicas a decision looks at, and which of them may be chosen."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.candidates import HOLDERS, WHOLE, Ring, usable
from extproc.core.decide import _column, decide, weigh
from extproc.core.fleet import Replica
from extproc.core.ledger import Ledger
from extproc.core.pool import Pool
from extproc.core.prompt import Chain, Prompt
from extproc.core.traits import Traits


def fleet(count: int, policy: str = "charged_cost") -> Pool:
    pool = Pool("p", policy=policy)
    with pool.at_once():
        for i in range(count):
            pool.join(f"10.0.{i // 250}.{i % 250 + 1}:8000", 0.0)
    return pool


def replicas(*shares: float) -> list[Replica]:
    made = [Replica(f"r{i}", i, Traits(), 0.0) for i in range(len(shares))]
    for replica, share in zip(made, shares, strict=True):
        replica.share = share
    return made


def chat(root: int, pieces: int = 4) -> Prompt:
    chain = Chain([root * 1000 + i for i in range(pieces)], [1000 * (i + 1) for i in range(pieces)])
    return Prompt(dialect="t", kind="generate", chains=[chain], size=1000 * pieces)


def test_a_small_fleet_is_looked_at_whole_and_a_large_one_in_parts() -> None:
    assert fleet(WHOLE).ring is None
    large = fleet(WHOLE + 1)
    assert large.ring is not None
    large.leave(large.replicas[0].address)
    assert large.ring is None


@pytest.mark.parametrize("policy", ["round_robin", "session_hash", "least_tokens"])
def test_a_policy_that_does_not_say_so_is_always_asked_about_all(policy: str) -> None:
    pool = fleet(300, policy)
    decision = weigh(pool, chat(1), Random(1), key=1, now=0.0)
    assert len(decision.candidates) == 300


def test_a_large_fleets_decision_looks_at_64_others_and_at_every_holder_up_to_32() -> None:
    pool = fleet(1000)
    assert len(weigh(pool, None, Random(1), key=1, now=0.0).candidates) == WHOLE
    prompt = chat(7)
    for replica in pool.replicas[:40]:
        pool.place(replica, prompt.chains, 0.0)
    looked_at = weigh(pool, prompt, Random(1), key=1, now=0.0).candidates
    holders = [replica for replica in looked_at if replica in pool.replicas[:40]]
    assert len(looked_at) == len(set(looked_at)) <= WHOLE + HOLDERS
    assert len(holders) >= HOLDERS


def test_a_prompt_finds_the_one_replica_of_a_thousand_that_holds_it() -> None:
    pool, ledger, rng = fleet(1000), Ledger(), Random(5)
    for root in range(1, 20):
        first = decide(pool, chat(root), ledger, rng, key=root, now=0.0)
        ledger.release(root, 1.0)
        again = decide(pool, chat(root), ledger, rng, key=root, now=2.0)
        ledger.release(root, 3.0)
        assert again.replica is first.replica, f"prompt {root} lost its replica"


def test_every_replica_of_a_large_fleet_is_looked_at_sooner_or_later() -> None:
    pool, rng = fleet(400), Random(2)
    assert pool.ring is not None
    seen: Counter[str] = Counter()
    for _ in range(400):
        seen.update(replica.address for replica in pool.ring.reach({}, rng))
    assert len(seen) == 400
    assert max(seen.values()) < 3 * 64, "some are looked at much more often than 64 times of 400"


def test_the_deepest_holders_come_first_where_there_are_too_many() -> None:
    pool = fleet(200)
    assert pool.ring is not None
    held = {replica.slot: float(i) for i, replica in enumerate(pool.replicas)}
    found = {replica.slot for replica in pool.ring.reach(held, Random(1))}
    assert {replica.slot for replica in pool.replicas[-HOLDERS:]} <= found


def test_when_nobody_within_reach_may_be_chosen_the_whole_fleet_is_looked_at() -> None:
    pool = fleet(400)
    well = pool.replicas[200]
    for replica in pool.replicas:
        if replica is not well:
            replica.drain("operator", 0.0)
    decision = weigh(pool, None, Random(1), key=1, now=0.0)
    assert (decision.replica, decision.trouble) == (well, "")


def test_a_share_draw_that_leaves_nobody_is_undone() -> None:
    slow, slower = replicas(0.01, 0.01)
    for seed in range(20):
        found = usable([slow, slower], Random(seed), 0.0)
        assert found.replicas, "a request found no replica although two were well"
        assert found.trouble == ""


def test_stale_ones_serve_only_when_no_fresh_one_may_and_it_is_said() -> None:
    slow, stale = replicas(0.01, 1.0)
    stale.fresh_until = 5.0
    for seed in range(20):
        found = usable([slow, stale], Random(seed), 10.0)
        assert (found.replicas, found.trouble) == ([slow], "")
    slow.fresh_until = 5.0
    found = usable([slow, stale], Random(1), 10.0)
    assert (found.replicas, found.trouble) == ([slow, stale], "all_stale")


def test_the_rings_order_is_the_same_whoever_makes_it() -> None:
    made = [Replica(f"10.0.0.{i}:80", i, Traits(), 0.0) for i in range(100)]
    one, two = Ring(made), Ring(reversed(made))
    assert one.reach({}, Random(3)) == two.reach({}, Random(3))


@given(st.integers(1, 12), st.dictionaries(st.integers(0, 11), st.floats(1, 1e6)))
def test_tokens_held_stand_with_their_replicas_in_the_whole_fleet_and_in_any_part_of_it(
    count: int, held: dict[int, float]
) -> None:
    pool = fleet(count)
    held = {slot: tokens for slot, tokens in held.items() if slot < count}
    groups = [(tokens, tuple(s for s in held if held[s] == tokens)) for tokens in set(held.values())]
    whole, places = _column(pool, pool.replicas, groups)
    assert whole == [held.get(replica.slot, 0.0) for replica in pool.replicas]
    assert sorted(places) == [i for i, tokens in enumerate(whole) if tokens]
    turned, places = _column(pool, pool.replicas[::-1], groups)
    assert turned == whole[::-1]
    assert places == [i for i, tokens in enumerate(turned) if tokens]
