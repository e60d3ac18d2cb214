"""Why a request would go where it would go: the whole table of one decision that is only considered.

Holds sizes, names and numbers; no text of the request.
"""

import random
from collections.abc import Sequence
from typing import Any

from extproc.core import dialects
from extproc.core.decide import Decision
from extproc.core.parts import parts_of
from extproc.core.prompt import Prompt, opaque
from extproc.core.states import (
    BAD_REQUEST,
    NO_BODY,
    NO_CANDIDATE,
    STEERED,
    TOO_LARGE,
    UNKNOWN_MODEL,
    UNREADABLE,
)
from extproc.core.steering import Steering
from extproc.errors import Unreadable
from extproc.io.records import prefill_of, request_of, rows_of, shadow_of, state_of


def explain(steering: Steering, body: bytes, path: str, now: float) -> dict[str, Any]:
    """What `steering` would do now with a request, ready for JSON. Never raises for what the body holds.

    Args:
        body: the request's, decoded; empty for a request without one.
        path: the request's, for example /v1/chat/completions.
        now: seconds, monotonic.
    """
    if len(body) > steering.rules.body:
        return _refused(TOO_LARGE, "body")
    outcome, why = STEERED if body else NO_BODY, ""
    prompt: Prompt | None = None
    try:
        prompt = dialects.read(path, body, steering.rules.limits) if body else None
    except Unreadable as error:
        outcome, why = UNREADABLE, error.reason
        if not (steering.rules.unreadable_passes or why == "no_dialect"):
            return _refused(BAD_REQUEST, why)
        prompt = opaque(body, error)
    pool = steering.router.pool_of(prompt)
    if pool is None and outcome == UNREADABLE:
        pool = steering.pools[0]  # as an exchange does
    if pool is None:
        return _refused(UNKNOWN_MODEL, "")
    rng = random.Random(0)  # noqa: S311 - breaks ties; the same question gets the same answer
    decision = steering.consider(prompt, pool, rng, now)
    return _told(decision, outcome if decision.replica else NO_CANDIDATE, why, parts_of(decision))


def _refused(outcome: str, why: str) -> dict[str, Any]:
    """A request that comes to no decision."""
    return {"outcome": outcome, "why": why or None, "choice": None, "candidates": []}


def _told(decision: Decision, outcome: str, why: str, parts: dict[str, list[float]]) -> dict[str, Any]:
    pool = decision.pool
    return {
        "outcome": outcome,
        "why": why or None,
        "pool": pool.name,
        "policy": pool.policy_name,
        "policy_settings": pool.policy_settings,
        "policy_version": pool.policy_version,
        "request": request_of(decision),
        "choice": decision.replica.address if decision.replica else None,
        "fallbacks": [replica.address for replica in decision.order[1:]],
        **prefill_of(decision),
        "reason": decision.reason,
        "trouble": decision.trouble or None,
        "rho": round(decision.rho, 4),
        "shadow": shadow_of(decision.shadow),
        "candidates": _rows(decision, parts),
    }


def _rows(decision: Decision, parts: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Candidates with their charged cost in seconds and its parts; then those that were none."""
    rows = rows_of(decision, state_of(decision))
    for i, row in enumerate(rows[: len(decision.candidates)]):
        row["charged_cost"] = {name: round(column[i], 6) for name, column in parts.items()} or None
        row["rank"] = _rank(decision, i)
    return rows


def _rank(decision: Decision, index: int) -> int | None:
    """1 for the choice, 2 and up for the fallbacks, None for the others."""
    order: Sequence[int] = decision.choice.order if decision.choice else ()
    return order.index(index) + 1 if index in order else None
