"""The live page put together: its routes on the admin port, and what it is told each second."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson
from aiohttp import web

from extproc import __version__
from extproc.core.pool import Pool
from extproc.io import clock
from extproc.io.admission import Admission
from extproc.io.page.choices import MOST, Filter, opened, table
from extproc.io.page.events import Events
from extproc.io.page.files import Files
from extproc.io.page.fleet import Others, rows_of
from extproc.io.page.history import History
from extproc.io.records import Records

#: Decisions told of each second; a page that wants others asks for them.
_SAMPLE: Final = 20
#: Replicas for which a second is added between two messages: 500 are told of every three seconds.
_PER_SECOND: Final = 250
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
        self._told = 0.0
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
        now = clock.monotonic()
        if now - self._told >= self._pause() - 0.5:
            self._told = now
            await self.events.turn()

    def close(self) -> None:
        """Let go of every open page."""
        self.events.close()

    def _pause(self) -> float:
        """Seconds between two messages: more for large fleets, so that telling of them costs no more."""
        return 1.0 + sum(len(pool.replicas) for pool in self._from.pools) // _PER_SECOND

    async def _greeting(self) -> dict[str, Any]:
        return {**await self._news(), "history": list(self._from.history.points)}

    async def _news(self) -> dict[str, Any]:
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
            "replicas": await rows_of(origin.pools, origin.others, clock.monotonic()),
            "removed": origin.removed(),
            "point": points[-1] if points else None,
            "count": origin.records.count,
            "decisions": table(origin.records, Filter(), _SAMPLE),
            "answers": _answers(origin.admission),
        }

    async def _on_table(self, request: web.Request) -> web.Response:
        rows = table(self._from.records, Filter.asked(request.query), MOST)
        return _json({"count": self._from.records.count, "decisions": rows})

    async def _on_decision(self, request: web.Request) -> web.Response:
        text = request.match_info["number"]
        number = int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else 0
        found = opened(self._from.records, number)
        if found is None:
            kept = "it is too old, or never was; admin.decisions says how many are kept"
            return _json({"error": f"no decision of this number: {kept}"}, 404)
        return _json(found)


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
    return [
        {"pool": side.pool.name, "verdict": verdict, "reason": reason, "tenant": tenant, "count": count}
        for side in admission.sides
        for (verdict, reason, tenant), count in side.gate.counts.answers.items()
    ]


def _json(body: dict[str, Any], status: int = 200) -> web.Response:
    data = orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS)
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    return web.Response(body=data, status=status, content_type="application/json", headers=headers)
