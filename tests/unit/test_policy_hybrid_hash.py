"""hybrid_hash: model-wide prefixes by the ring, conversations by the index, and an index that does not grow."""

import random

import pytest

from extproc.core.decide import decide
from extproc.core.ledger import Ledger
from extproc.core.policies import make_policy
from extproc.core.policies.hybrid_hash import HybridHash, known_until
from extproc.core.pool import Pool
from tests.unit.policy_asks import ask, chat, fleet, send

RNG = random.Random(1)
#: Tokens of one 4,096-byte piece at four bytes a token.
PIECE = 1024.0


@pytest.mark.parametrize(
    ("cached", "position"),
    [([0.0, 0.0], -1), ([PIECE, 0.0], 0), ([0.0, 2 * PIECE], 1), ([3 * PIECE - 1, 0.0], 2)],
)
def test_what_the_best_holder_has_is_a_position_in_the_chain(cached: list[float], position: int) -> None:
    assert known_until(ask(fleet(None, None), chat(1, 2, 3), cached=cached)) == position


def wide(policy: HybridHash, count: int = 17) -> None:
    """Let the piece 1 go on in `count` new ways."""
    replicas = fleet(*[None] * 8)
    for n in range(count):
        policy.choose(ask(replicas, chat(1, 1000 + n), cached=[PIECE] + [0.0] * 7), 1, RNG)


def test_a_prefix_that_went_on_in_16_new_ways_goes_to_its_home_on_the_ring() -> None:
    replicas, policy = fleet(*[None] * 8), HybridHash()
    cached = [PIECE] + [0.0] * 7
    for n in range(16):
        choice = policy.choose(ask(replicas, chat(1, 100 + n), cached=cached), 1, RNG)
        assert (choice.order, choice.reason) == ([0], "longest_match")
    hashed = [policy.choose(ask(replicas, chat(1, 200 + n), cached=cached), 1, RNG) for n in range(20)]
    assert {choice.reason for choice in hashed} == {"shared_by_hash"}
    assert len({choice.order[0] for choice in hashed}) == 1
    other = HybridHash()  # another gateway names the same home
    wide(other)
    again = other.choose(ask(replicas, chat(1, 5), cached=[0.0] * 7 + [PIECE]), 1, RNG)
    assert again.order == hashed[0].order


def test_a_conversation_under_a_model_wide_prefix_goes_to_who_holds_it() -> None:
    replicas, policy = fleet(*[None] * 8), HybridHash()
    wide(policy)
    cached = [PIECE] * 8
    cached[5] = 2 * PIECE
    choice = policy.choose(ask(replicas, chat(1, 50, 51), cached=cached), 2, RNG)
    assert (choice.order[0], choice.reason) == (5, "longest_match")


def test_a_home_above_the_bound_is_passed_over() -> None:
    replicas, policy = fleet(*[None] * 8), HybridHash()
    wide(policy)
    question = ask(replicas, chat(1, 5), cached=[PIECE] * 8)
    home = policy.choose(question, 3, RNG).order
    send(replicas[home[0]], requests=2)  # bound: max(ceil(1.25 * 3 / 8), 2) = 2
    assert policy.choose(question, 1, RNG).order == [home[1]]


def test_a_small_model_wide_prefix_is_no_reason_to_go_anywhere() -> None:
    replicas, policy = fleet(None, None), HybridHash(large=4097.0)
    wide(policy)
    send(replicas[0])
    choice = policy.choose(ask(replicas, chat(1, 5), cached=[PIECE, 0.0]), 1, RNG)
    assert (choice.order, choice.reason) == ([1], "fewest_requests")


def test_holders_above_the_bound_give_way_to_those_that_hold_less() -> None:
    replicas, policy = fleet(None, None, None), HybridHash()
    send(replicas[0], requests=2)
    question = ask(replicas, chat(1, 2, 3), cached=[2 * PIECE, PIECE, 0.0])
    assert policy.choose(question, 3, RNG).order == [1, 2, 0]


def test_unknown_prompts_go_to_the_fewest_requests() -> None:
    replicas = fleet(None, None)
    send(replicas[0])
    for prompt in (None, chat(1, 2)):
        choice = HybridHash().choose(ask(replicas, prompt), 2, RNG)
        assert (choice.order, choice.reason) == ([1, 0], "fewest_requests")


def test_several_prompts_in_one_request_go_by_the_index() -> None:
    replicas, batch = fleet(None, None), chat(1, 2)
    batch.chains.append(chat(3, 4).chains[0])
    choice = HybridHash().choose(ask(replicas, batch, cached=[0.0, 100.0]), 1, RNG)
    assert (choice.order, choice.reason) == ([1], "longest_match")


def pairs_of_a_shared_prefix(policy: str) -> tuple[int, int, Pool]:
    """Serial conversations under one 40-piece prefix -> index entries of the prefix, of all, and the pool."""
    pool, ledger, rng = Pool("p", policy=policy), Ledger(), random.Random(9)
    for i in range(8):
        pool.join(f"10.0.0.{i + 1}:8000", 0.0)
    shared = list(range(1, 41))
    for n in range(400):
        prompt = chat(*shared, rng.getrandbits(60))
        decide(pool, prompt, ledger, rng, key=n, now=n * 0.01)
        ledger.release(n, n * 0.01)
    held = [pool.index.match([key]) for key in shared]
    return sum(map(len, held)), len(pool.index), pool


def test_the_index_does_not_grow_by_a_prefix_that_everybody_shares() -> None:
    prefix, whole, _ = pairs_of_a_shared_prefix("hybrid_hash")
    spread, spread_whole, _ = pairs_of_a_shared_prefix("least_request")
    assert prefix <= 2 * 40  # where it was first, and its home
    assert whole <= 2 * 40 + 400  # and one for each conversation
    assert spread == 8 * 40
    assert whole < spread_whole


def test_what_the_policy_remembers_is_bounded() -> None:
    policy, replicas = HybridHash(prefixes=50), fleet(None, None)
    for n in range(300):
        policy.choose(ask(replicas, chat(n, n + 1), cached=[PIECE, 0.0]), 1, RNG)
    assert len(policy._partings) == 50


@pytest.mark.parametrize("name", ["often", "large", "factor", "least", "ttl", "prefixes"])
def test_settings_out_of_range_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"hybrid_hash: {name} must be within"):
        make_policy("hybrid_hash", {name: -1.0})
