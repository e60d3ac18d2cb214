"""What decide() makes of policies: nonsense is caught and counted, and load spreads under every one of them."""

import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from extproc.core.decide import Decision, decide
from extproc.core.ledger import Ledger
from extproc.core.policies import POLICIES, Ask, Choice
from extproc.core.policies.base import Rng
from extproc.core.policies.least_tokens import LeastTokens
from extproc.core.pool import Pool
from tests.unit.policy_asks import chat


def pool_of(count: int, policy: str = "charged_cost") -> Pool:
    pool = Pool("p", policy=policy)
    for i in range(count):
        pool.join(f"10.0.0.{i + 1}:8000", 0.0)
    return pool


# -- a policy that fails -----------------------------------------------------------------------------------


class Answers:
    """A policy that gives one answer, whatever is asked."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.answer = answer

    def choose(self, ask: Ask, picks: int, rng: Rng) -> Choice:
        answer: Choice = self.answer()
        return answer


def answered(answer: Callable[[], Any]) -> Decision:
    """A decision over three replicas of which the second has the fewest tokens in flight."""
    pool, ledger = pool_of(3), Ledger()
    for key, replica, tokens in ((1, 0, 500), (2, 1, 100), (3, 2, 900)):
        ledger.charge(key, pool.replicas[replica], 0.0, tokens, 0.0)
    pool.policy = Answers(answer)
    return decide(pool, chat(1, 2), ledger, random.Random(1), key=4, now=1.0)


def raises() -> Any:
    raise ZeroDivisionError("a fault of the policy")


GOOD = [1.0, 2.0, 3.0]
NAN = math.nan
NONSENSE: dict[str, Callable[[], Any]] = {
    "raises": raises,
    "nothing": lambda: None,
    "a bare list": lambda: [0, 1],
    "an empty order": lambda: Choice([], GOOD, "x", {}),
    "an order that is a number": lambda: Choice(0, GOOD, "x", {}),  # type: ignore[arg-type]
    "a duplicate": lambda: Choice([0, 1, 0], GOOD, "x", {}),
    "a negative index": lambda: Choice([-1], GOOD, "x", {}),
    "a negative fallback": lambda: Choice([0, -1], GOOD, "x", {}),
    "an index beyond": lambda: Choice([3], GOOD, "x", {}),
    "a fallback beyond": lambda: Choice([0, 3], (), "x", {}),
    "a float index": lambda: Choice([1.0], GOOD, "x", {}),  # type: ignore[list-item]
    "a bool index": lambda: Choice([True], GOOD, "x", {}),
    "a text index": lambda: Choice(["0"], GOOD, "x", {}),  # type: ignore[list-item]
    "an index that can't be hashed": lambda: Choice([[0]], GOOD, "x", {}),  # type: ignore[list-item]
    "NaN first": lambda: Choice([0], [NAN, 2.0, 3.0], "x", {}),
    "NaN in a fallback": lambda: Choice([0, 1, 2], [1.0, 2.0, NAN], "x", {}),
    "a text score": lambda: Choice([0], ["1", "2", "3"], "x", {}),  # type: ignore[list-item]
    "a missing score": lambda: Choice([0], [None, 2.0, 3.0], "x", {}),  # type: ignore[list-item]
    "too few scores": lambda: Choice([0], [1.0], "x", {}),
    "a reason that is no text": lambda: Choice([0], GOOD, None, {}),  # type: ignore[arg-type]
    "no parts": lambda: Choice([0], GOOD, "x", None),  # type: ignore[arg-type]
    "a part too short": lambda: Choice([0], GOOD, "x", {"queue": [1.0]}),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_a_policy_that_fails_is_counted_and_the_request_falls_to_least_tokens(what: str) -> None:
    decision = answered(NONSENSE[what])
    assert decision.trouble == "policy_failed"
    assert decision.reason == "fewest_tokens"
    assert [replica.address for replica in decision.order] == [f"10.0.0.{i}:8000" for i in (2, 1, 3)]
    assert decision.replica is decision.order[0]


def test_a_class_made_of_a_policy_of_the_package_is_checked_as_any_plug_in() -> None:
    class Mine(LeastTokens):
        def choose(self, ask: Ask, picks: int, rng: Rng) -> Choice:
            return Choice([7], (), "mine", {})

    pool = pool_of(3)
    pool.policy = Mine()
    decision = decide(pool, None, Ledger(), random.Random(1), key=1, now=1.0)
    assert (decision.trouble, decision.reason) == ("policy_failed", "fewest_tokens")


def test_a_sound_answer_is_taken_as_it_is() -> None:
    infinite = [math.inf, 2.0, NAN]  # only what is not named may be no number
    decision = answered(lambda: Choice([1, 0], infinite, "mine", {"queue": GOOD}))
    assert (decision.trouble, decision.reason) == ("", "mine")
    assert [replica.address for replica in decision.order] == ["10.0.0.2:8000", "10.0.0.1:8000"]


def test_a_policy_that_failed_once_is_asked_again_for_the_next_request() -> None:
    sound = Choice([2], (), "mine", {})
    answers = iter([None, sound])
    pool, ledger = pool_of(3), Ledger()
    pool.policy = Answers(lambda: next(answers))
    troubles = [decide(pool, None, ledger, random.Random(1), key=key, now=1.0).trouble for key in (1, 2)]
    assert troubles == ["policy_failed", ""]


# -- spread ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_serial_traffic_of_distinct_prompts_leaves_no_replica_above_a_quarter_of_eight(policy: str) -> None:
    pool, ledger, rng = pool_of(8, policy), Ledger(), random.Random(4)
    picked: Counter[str] = Counter()
    for key in range(400):
        prompt = chat(rng.getrandbits(60), rng.getrandbits(60))
        decision = decide(pool, prompt, ledger, rng, key=key, now=key * 1.0)
        picked[decision.order[0].address] += 1
        ledger.release(key, key * 1.0)
        for replica in pool.replicas:
            replica.fresh_until = math.inf
    assert max(picked.values()) <= 400 * 0.25, picked


@pytest.mark.parametrize("own", [0, 1, 4], ids=["identical", "a short end", "a long end"])
@pytest.mark.parametrize("pieces", [1, 4, 16])
def test_a_burst_with_one_shared_prompt_spreads_and_warms_several_replicas(own: int, pieces: int) -> None:
    pool, ledger, rng = pool_of(8), Ledger(), random.Random(5)
    shared = list(range(1, pieces + 1))
    picked: Counter[str] = Counter({replica.address: 0 for replica in pool.replicas})
    for key in range(500):  # within one scrape interval of 500 ms; nothing finishes
        prompt = chat(*shared, *[rng.getrandbits(60) for _ in range(own)])
        decision = decide(pool, prompt, ledger, rng, key=key, now=10.0 + key * 0.0005)
        picked[decision.order[0].address] += 1
    assert max(picked.values()) <= 1.6 * 500 / 8, picked
    warm = pool.index.match(shared)
    assert sum(depth == pieces for depth in warm.values()) > 1
