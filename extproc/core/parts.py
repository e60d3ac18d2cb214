"""Charged cost taken apart, in seconds for each candidate of a decision: for people, not for the hot path.

Each part is what the cost loses when the settings behind it are put to 0, so the parts follow the policy wherever it
goes; what no setting explains is `other`. The bias multiplies their sum (core/bias.py): its part is what that adds or
takes away, so that all of them add up to the score.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import isclose
from typing import Any

from extproc.core.decide import Decision
from extproc.core.policies import Ask
from extproc.core.policies.charged_cost import ChargedCost, backlogs_of

#: Part -> the settings of charged_cost behind it: what uncached work takes from others behind it, what the context
#: on the replica costs every step, and KV above 80 %.
_BEHIND = {"others": ("gain", "most"), "decode": ("decode",), "kv": ("kv",)}
#: Seconds below which a difference is rounding.
_NOTHING = 1e-9


def parts_of(decision: Decision) -> dict[str, list[float]]:
    """Columns over `decision.candidates`: backlog, uncached, others, decode, kv, other, bias, and their sum, total.

    With the settings of the pool's policy if that is charged_cost, else with the defaults. Empty when it can't be
    worked out. `other` holds what is charged for waiting for a running slot.
    """
    if not decision.candidates:
        return {}
    own = decision.pool.policy
    policy = own if isinstance(own, ChargedCost) else ChargedCost()
    ask = _asked(decision)
    try:
        cost = _costs(policy, ask)
        parts = {"backlog": backlogs_of(ask.replicas, ask.now), "uncached": _uncached(ask)}
        for part, settings in _BEHIND.items():
            zero: dict[str, Any] = dict.fromkeys(settings, 0.0)
            parts[part] = _less(cost, _costs(replace(policy, **zero), ask))
        if ask.extra is not None:
            parts["adapter"] = list(ask.extra)
        total = _biased(cost, decision)
    except Exception:  # numbers from which no cost can be made; the table is shown without
        return {}
    parts["other"] = _less(cost, [sum(column) for column in zip(*parts.values(), strict=True)])
    return parts | {"bias": _less(total, cost), "total": total}


def _costs(policy: ChargedCost, ask: Ask) -> list[float]:
    """Seconds for each candidate, without its bias. What the policy remembers of copies stays as it is."""
    scores = replace(policy, copy=0.0).choose(ask, 1, _Least()).scores
    return [score / replica.bias for score, replica in zip(scores, ask.replicas, strict=True)]


def _biased(cost: Sequence[float], decision: Decision) -> list[float]:
    """The cost with the factors that the decision drew: a cold cache is favoured in some decisions only."""
    favoured = [seconds * replica.bias for seconds, replica in zip(cost, decision.candidates, strict=True)]
    scores = decision.choice.scores if decision.choice is not None else ()
    if len(scores) == len(favoured) and all(map(isclose, scores, favoured)):
        return favoured
    return [seconds * replica.cost for seconds, replica in zip(cost, decision.candidates, strict=True)]


class _Least:
    """Random numbers that are all 0: every decision is one that favours cold caches, and the first tie wins."""

    def random(self) -> float:
        """0."""
        return 0.0


def _asked(decision: Decision) -> Ask:
    """The question that was put to the policy."""
    prompt, pool = decision.prompt, decision.pool
    ask = Ask(
        decision.candidates,
        decision.columns,
        decision.tokens,
        decision.output,
        decision.rho,
        decision.at,
        prompt,
        0.5 / pool.traits.prefill_doubling,
        pool.tokens_per_byte(prompt) if prompt else 0.0,
    )
    ask.extra = decision.choice.parts.get("adapter") if decision.choice is not None else None
    return ask


def _uncached(ask: Ask) -> list[float]:
    """Seconds to compute what each does not hold; a token further in costs more (core/cost.py)."""
    tokens, half = ask.tokens, ask.per_doubling
    return [
        (tokens - cached) * (1.0 + (tokens + cached) * half) / replica.prefill_speed
        for cached, replica in zip(ask.cached, ask.replicas, strict=True)
    ]


def _less(whole: Sequence[float], part: Sequence[float]) -> list[float]:
    return [a - b if abs(a - b) > _NOTHING else 0.0 for a, b in zip(whole, part, strict=True)]
