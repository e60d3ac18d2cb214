"""The live page put together: its routes on the admin port, and what it is told each second."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson
from aiohttp import web

from extproc import __version__
from extproc.core.pool import Pool
from extproc.io import clock
from extproc.io.admission import Admission
from extproc.io.asked import unknown
from extproc.io.page.choices import Filter, found, opened, rows
from extproc.io.page.events import Events, Told
from extproc.io.page.files import Files
from extproc.io.page.fleet import Fleet, Others
from extproc.io.page.history import History
from extproc.io.page.sample import A_SECOND, Sample
from extproc.io.records import Records

#: Answers of admission told of each second, the most frequent ones.
_ANSWERS: Final = 200
#: Removed replicas told of each second.
_REMOVED: Final = 100
#: Longest number of a decision that is looked up, in digits.
_DIGITS: Final = 15


@dataclass(slots=True, kw_only=True)
class Sources:
    """Where the page's figures come from.

    Attributes:
        gateway_id: who this is.
        pools: of this gateway.
        records: its last decisions.
        history: its last minutes.
        others: what other gateways have in flight.
        admission: None where it is off.
        removed: replicas that a drain's deadline removed.
        shared: how the shared state is ("off", "ok", "degraded") and why.
        streams: exchanges open now.
        shadow_seen: what a pool's shadow policy said so far (`Metrics.shadow_seen`).
        takes_orders: whether orders with a token are taken from the page.
    """

    gateway_id: str
    pools: list[Pool]
    records: Records
    history: History
    others: Others
    admission: Admission | None
    removed: Callable[[], list[dict[str, Any]]]
    shared: Callable[[], tuple[str, str]]
    streams: Callable[[], int]
    shadow_seen: Callable[[str, str], dict[str, float]]
    takes_orders: bool


class Page:
    """Serves it."""

    def __init__(self, sources: Sources) -> None:
        self._from = sources
        self._files = Files()
        self._fleet = Fleet(sources.pools, sources.others, clock.monotonic)
        self._sample = Sample(sources.records)
        self.events = Events(self._greeting, self._news)

    def routes(self) -> list[web.RouteDef]:
        """Routes for the admin port."""
        return [
            *self._files.routes(),
            web.get("/page/events", self.events.answer),
            web.get("/page/decisions", self._on_table),
            web.get("/page/decisions/{number}", self._on_decision),
        ]

    async def tick(self) -> None:
        """Note the traffic and tell who listens; called once a second."""
        self._from.history.tick()
        self._sample.tick()
        await self.events.turn()

    def close(self) -> None:
        """Let go of every open page."""
        self.events.close()

    async def _greeting(self) -> Told:
        news = {**self._frame(), "history": list(self._from.history.points)}
        return {"news": _dumped(news), "fleet": await self._fleet.text()}

    async def _news(self) -> Told:
        told = {"news": _dumped(self._frame())}
        if self._fleet.is_due:
            told["fleet"] = await self._fleet.text()
        return told

    def _frame(self) -> dict[str, Any]:
        """All that is told every second."""
        origin = self._from
        shared, why = origin.shared()
        points = origin.history.points
        return {
            "at": clock.wall(),
            "gateway": origin.gateway_id,
            "version": __version__,
            "shared": shared,
            "shared_why": why or None,
            "streams": origin.streams(),
            "pages": len(self.events),
            "orders": origin.takes_orders,
            "pools": [_pool(pool, origin.shadow_seen) for pool in origin.pools],
            "removed": origin.removed()[:_REMOVED],
            "point": points[-1] if points else None,
            "count": origin.records.count,
            "decisions": rows(self._sample.newest(A_SECOND)),
            "answers": _answers(origin.admission),
        }

    async def _on_table(self, request: web.Request) -> web.Response:
        strange = unknown(request.query, Filter._fields)
        if strange:
            return _json({"error": strange}, 400)
        fit = await found(self._from.records, self._sample, Filter.asked(request.query))
        return _json({"count": self._from.records.count, "decisions": fit})

    async def _on_decision(self, request: web.Request) -> web.Response:
        text = request.match_info["number"]
        number = int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else 0
        kept = self._from.records.numbered(number) or self._sample.numbered(number)
        if kept is None or kept[0].decision is None:
            why = "it is too old, or never was; admin.decisions says how many are kept"
            return _json({"error": f"no decision of this number: {why}"}, 404)
        return _json(opened(kept, number))


def _pool(pool: Pool, seen: Callable[[str, str], dict[str, float]]) -> dict[str, Any]:
    shadow = pool.shadow
    return {
        "pool": pool.name,
        "models": sorted(pool.models)[:20],
        "policy": pool.policy_name,
        "version": pool.policy_version,
        "shadow": {"name": shadow.name, **seen(pool.name, shadow.name)} if shadow else None,
        "rho": round(pool.rho(pool.replicas, clock.monotonic()), 3),
    }


def _answers(admission: Admission | None) -> list[dict[str, Any]] | None:
    """What admission said so far, by pool, verdict, reason and tenant; None where it is off."""
    if admission is None:
        return None
    counted = [
        (count, side.pool.name, *label)
        for side in admission.sides
        for label, count in side.gate.counts.answers.items()
    ]
    names = ("count", "pool", "verdict", "reason", "tenant")
    return [dict(zip(names, row, strict=True)) for row in heapq.nlargest(_ANSWERS, counted)]


def _json(body: dict[str, Any], status: int = 200) -> web.Response:
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    return web.Response(body=_dumped(body), status=status, content_type="application/json", headers=headers)


def _dumped(body: dict[str, Any]) -> bytes:
    return orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS)
