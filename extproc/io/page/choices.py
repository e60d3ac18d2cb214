"""Decisions for the page: rows of a table, by filters, and one of them with everything that is kept of it."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from extproc.core.cost import prefill_work
from extproc.core.decide import Decision
from extproc.io.page.sample import Sample
from extproc.io.records import Kept, Records, readable

#: Records that one look goes through at most, and before others have their turn on the event loop: a filter that
#: nothing fits holds up nobody.
_LOOKED: Final = 20_000
_PIECE: Final = 1000
#: Rows of one answer at most.
MOST: Final = 200


class Filter(NamedTuple):
    """What rows must have; "" takes any. `text` is looked for in the request's id."""

    pool: str = ""
    replica: str = ""
    reason: str = ""
    text: str = ""

    @classmethod
    def asked(cls, query: Mapping[str, str]) -> "Filter":
        """As a query names it; what is too long to be a name is cut."""
        return cls(*(query.get(name, "")[:200] for name in cls._fields))

    def takes(self, kept: Kept) -> bool:
        """Whether a record has it all."""
        exchange, decision = kept[0], kept[0].decision
        if decision is None:
            return False
        return (
            (not self.pool or decision.pool.name == self.pool)
            and (not self.replica or _address(decision) == self.replica)
            and (not self.reason or self.reason in (decision.reason, decision.trouble))
            and self.text in exchange.request_id
        )


async def found(records: Records, sample: Sample, wanted: Filter) -> list[dict[str, Any]]:
    """The newest rows that fit, newest first, ready for JSON: of all that is kept, and of the sample beyond it.

    Without a filter the sample's alone, as the newest of many are all still running.
    """
    if not any(wanted):
        return rows(sample.newest(MOST))
    fit: list[tuple[int, Kept]] = []
    looked = list(records.newest(_LOOKED))
    oldest = looked[-1][0] if looked else 0
    looked += [row for row in sample.newest(MOST) if row[0] < oldest]
    for start in range(0, len(looked), _PIECE):
        fit += (row for row in looked[start : start + _PIECE] if wanted.takes(row[1]))
        if len(fit) >= MOST:
            break
        await asyncio.sleep(0)
    return rows(fit[:MOST])


def rows(kept: Iterable[tuple[int, Kept]]) -> list[dict[str, Any]]:
    """Rows of the table."""
    return [row_of(number, record) for number, record in kept if record[0].decision is not None]


def row_of(number: int, kept: Kept) -> dict[str, Any]:
    """One row of the table."""
    exchange, at, seconds = kept[:3]
    decision = exchange.decision
    assert decision is not None
    ending = exchange.ending
    first = None if ending is None or ending.first_token is None else ending.first_token - decision.at
    usage = None if ending is None else ending.usage
    return {
        "number": number,
        "id": exchange.request_id,
        "at": at,
        "pool": decision.pool.name,
        "policy": kept[3][0],
        "replica": _address(decision) or None,
        "reason": decision.reason,
        "trouble": decision.trouble or None,
        "tokens": decision.tokens,
        "cached": round(decision.cached),
        "took": seconds,
        "held": exchange.waited,
        "first": first,
        "hit": None if usage is None else usage.cached,
        "status": None if ending is None else ending.status,
        "over": exchange.over,
    }


def opened(kept: Kept, number: int) -> dict[str, Any]:
    """Everything of one decision, with the seconds that each candidate was charged, ready for JSON."""
    decision = kept[0].decision
    assert decision is not None
    bars = _bars(decision)
    whole = readable(kept)
    for row, bar in zip(whole["candidates"], bars, strict=False):
        row["bar"] = bar
    return {
        **whole,
        "number": number,
        "in_seconds": bool(bars) and decision.choice is not None and _priced(decision),
    }


def _priced(decision: Decision) -> bool:
    """Whether the scores are seconds: charged cost's are, those of other policies have units of their own."""
    return decision.choice is not None and "backlog" in decision.choice.parts and bool(decision.choice.scores)


def _bars(decision: Decision) -> list[dict[str, float | None]]:
    """For each candidate: seconds of work ahead, of its own uncached prompt, and all else it was charged.

    The speed is what is believed now, which may have moved a little since; what is left over of the score is the
    rest (work taken from others, context, full slots and KV, bias), and never below 0.
    """
    priced, choice = _priced(decision), decision.choice
    doubling = decision.pool.traits.prefill_doubling
    bars: list[dict[str, float | None]] = []
    for i, (replica, cached) in enumerate(zip(decision.candidates, decision.columns, strict=False)):
        uncached = prefill_work(cached, decision.tokens, doubling) / replica.prefill_speed
        backlog = choice.parts["backlog"][i] if priced and choice else None
        rest = None if backlog is None or choice is None else max(choice.scores[i] - backlog - uncached, 0.0)
        bars.append({"ahead": backlog, "uncached": uncached, "rest": rest})
    return bars


def _address(decision: Decision) -> str:
    return decision.replica.address if decision.replica else ""
