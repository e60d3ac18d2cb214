"""What a decision finds in the index is handed on to those who compare it with what comes; nobody asks twice."""

from collections.abc import Iterable

import pytest

from extproc.core.decide import Decision, bind, decide
from extproc.core.index import Holders
from extproc.core.ledger import Ledger
from extproc.core.pool import Pool
from extproc.core.prompt import Chain, Prompt

CHAIN = Chain([11, 12, 13], [1000, 2000, 4000])


class First:
    """Draws the first of what ties."""

    def random(self) -> float:
        return 0.0


class World:
    """Two replicas, and how often the index was asked who holds a chain."""

    def __init__(self) -> None:
        self.pool = Pool("p", now=0.0, distrust=0.5)
        for address in ("10.0.0.1:8000", "10.0.0.2:8000"):
            self.pool.join(address, 0.0)
        self.ledger = Ledger()
        self.asked = 0
        self._holders = self.pool.index.holders
        self.pool.index.holders = self._count  # type: ignore[method-assign]

    def _count(self, hashes: Iterable[int]) -> Holders:
        self.asked += 1
        return self._holders(hashes)

    def decide(self, *chains: Chain, key: int = 1, now: float = 1.0) -> Decision:
        size = sum(chain.ends[-1] for chain in chains)
        prompt = Prompt(dialect="d", kind="generate", chains=list(chains), size=size)
        return decide(self.pool, prompt, self.ledger, First(), key=key, now=now)

    def predicted(self, key: int, input_tokens: float) -> float:
        """Cached tokens that were expected of an exchange, which ends with none cached."""
        assert self.pool.feedback is not None
        seen = self.pool.feedback.truth.observe(key, input_tokens, 0.0, 9.0)
        assert seen is not None
        return seen.predicted


def test_the_index_is_asked_once_for_a_decision_and_its_prediction() -> None:
    world = World()
    world.decide(CHAIN)
    assert world.asked == 1


@pytest.mark.parametrize(("held", "predicted"), [(2, 500.0), (3, 1000.0)])
def test_the_prediction_is_what_the_chosen_replica_held(held: int, predicted: float) -> None:
    """A token is four bytes."""
    world = World()
    world.pool.place(world.pool.replicas[1], [Chain(CHAIN.hashes[:held], CHAIN.ends[:held])], 0.5)
    decision = world.decide(CHAIN)
    assert decision.replica is world.pool.replicas[1]
    assert world.predicted(1, 1000.0) == predicted


def test_one_that_is_bound_again_is_compared_with_what_is_held_by_then() -> None:
    world = World()
    decision = world.decide(CHAIN)
    other = next(replica for replica in world.pool.replicas if replica is not decision.replica)
    world.pool.place(other, [CHAIN], 2.0)
    decision.at, decision.replica = 3.0, other
    bind(decision, other, world.ledger)
    assert world.predicted(1, 1000.0) == 1000.0


def test_a_batch_predicts_nothing_of_one_prompt() -> None:
    world = World()
    world.decide(CHAIN, Chain([21], [400]))
    assert world.pool.feedback is not None
    assert world.pool.feedback.truth.observe(1, 1100.0, 0.0, 9.0) is None
