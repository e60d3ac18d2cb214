"""A shadow policy: decides beside the pool's own on the same question, and nothing is ever done by it.

Its answer is compared with what was chosen. Both choices are priced with charged cost, in seconds, so that policies
whose own scores have other units can be compared too: with the settings of whichever of the two is charged_cost,
else with the defaults.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from extproc.core.fleet import Replica
from extproc.core.policies import Ask, Choice, Policy, make_policy
from extproc.core.policies.base import Rng
from extproc.core.policies.charged_cost import ChargedCost


class Opinion(NamedTuple):
    """What the shadow would have done.

    `seconds` and `chosen_seconds` are what its choice and the real one cost by charged cost; None when unknown.
    `replica` is None when the shadow raised or named no candidate.
    """

    policy: str
    replica: Replica | None
    agrees: bool
    seconds: float | None
    chosen_seconds: float | None


class Shadow:
    """One policy in the shadow of a pool's own.

    Args:
        name: the policy's name, and `settings` its settings.
        rng: its own, so that the pool's decisions are the same with and without it.

    Raises:
        ValueError: no such policy, or settings it does not take.
    """

    def __init__(self, name: str, settings: Mapping[str, float], rng: Rng) -> None:
        self.name = name
        self.settings = dict(settings)
        self.policy: Policy = make_policy(name, settings)
        self._rng = rng
        self._price = ChargedCost()

    def look(self, ask: Ask, policy: Policy | None, choice: Choice) -> Opinion:
        """What the shadow says to a question that was answered with `choice` by `policy` (None: by a stand-in).

        Never raises, whatever its policy does.
        """
        try:
            mine = self.policy.choose(ask, 1, self._rng)
            best = mine.order[0]
            replica = ask.replicas[best] if best >= 0 else None
        except Exception:  # a policy is a plug-in; whoever asked counts its fault, whatever it is
            replica = None
        if replica is None:
            return Opinion(self.name, None, False, None, None)
        first = choice.order[0]
        prices = self._prices(ask, policy, choice, mine)
        return Opinion(self.name, replica, best == first, _known(prices, best), _known(prices, first))

    def _prices(self, ask: Ask, policy: Policy | None, choice: Choice, mine: Choice) -> Sequence[float]:
        """Charged cost of every candidate, taken from whoever worked it out already; empty when it can't be."""
        if isinstance(policy, ChargedCost):
            return choice.scores
        if isinstance(self.policy, ChargedCost):
            return mine.scores
        try:
            return self._price.choose(ask, 1, self._rng).scores
        except Exception:  # no numbers can be worked out for such replicas, and nobody needs them to route
            return ()


def _known(prices: Sequence[float], index: int) -> float | None:
    return prices[index] if index < len(prices) and math.isfinite(prices[index]) else None
