"""Versions of models at one gateway: their weights followed, changed and put back, and the guard over canaries.

An operator's change is in Redis before it is answered; the other gateways look four times a second. Each gateway
judges by the requests that it steered itself, and what one finds counts for all: it writes the new weights as an
operator would. Without Redis everything counts for this gateway alone.
"""

from collections.abc import Callable
from typing import Any, Final

import orjson
import structlog
from aiohttp import web

from extproc.config import GatewaySettings
from extproc.core.canary import Guard, Numbers, StepBack
from extproc.core.router import pools_of
from extproc.core.steering import Steering
from extproc.core.versions import MOST_WEIGHT, shares, stable
from extproc.io import clock
from extproc.io.tasks import Supervisor
from extproc.io.weight_orders import completed, weights_of, word
from extproc.io.weights import Chosen, Models, Store, UntakenError, read, written

_log = structlog.get_logger("kvsteer.versions")

#: Seconds between looks at what stands in Redis, and between looks at how versions do.
FOLLOW: Final = 0.25
JUDGE: Final = 0.5
#: Times that a change is tried while others change something too.
_TRIES: Final = 5
_FILE, _GUARD = "configuration", "guard"

Change = Callable[[Chosen], Chosen]


class VersionDesk:
    """Takes orders on the admin port.

    Args:
        steering: whose router goes by the weights.
        store: where they are shared; None for this gateway alone.
        guard: when a version steps back; None for never.

    Attributes:
        step_backs: how often the guard took a model's version back, by model.
    """

    def __init__(self, steering: Steering, store: Store | None, guard: Guard | None) -> None:
        self._router = steering.router
        self._pools = {pool.name: pool for pool in steering.pools}
        self._watch = steering.watch
        self._store = store
        self._guard = guard
        self._window = (guard or Guard()).window
        self._configured = dict(self._router.weights)
        self._models: Models = {}
        self._text: bytes | None = None
        self._bad: bytes | None = None
        self.step_backs: dict[str, int] = {}

    async def start(self, tasks: Supervisor) -> None:
        """Take over what holds, then follow and judge, where any model has versions."""
        if not self._configured:
            return
        if self._store is not None:
            await self.follow()
            tasks.every("versions", FOLLOW, self.follow)
        if self._guard is not None:
            tasks.every("canaries", JUDGE, self.judge)

    async def close(self) -> None:
        """Close the connections."""
        if self._store is not None:
            await self._store.close()

    def routes(self) -> list[web.RouteDef]:
        """Routes for the admin port."""
        return [
            web.get("/versions", self._on_list),
            web.post("/versions/set", self._on_set),
            web.post("/versions/rollback", self._on_rollback),
        ]

    # -- following and judging ---------------------------------------------------------------------------

    async def follow(self) -> None:
        """Take over what stands in Redis; what it lost is written there again."""
        assert self._store is not None
        try:
            text = await self._store.get()
            if text != self._text or (text is None and self._models):
                await self._take(text)
        except UntakenError:
            return  # what holds here goes on; that Redis is gone is told by who beats its heart

    async def _take(self, text: bytes | None) -> None:
        assert self._store is not None
        try:
            found = read(text)
        except ValueError as error:
            if text != self._bad:
                _log.error("weights of versions not usable", key=self._store.key, reason=str(error))
            self._bad = text
            return
        lost = {
            model: chosen
            for model, chosen in self._models.items()
            if model not in found or found[model].number < chosen.number
        }
        whole = {**found, **lost}
        if lost and not await self._store.swap(text, written(whole)):
            return  # somebody else wrote; the next look tells
        self._text = written(whole) if lost else text
        for model, chosen in found.items():
            if model not in lost and self._models.get(model) != chosen:
                self._adopt(model, chosen)

    def _adopt(self, model: str, chosen: Chosen) -> None:
        self._models[model] = chosen
        if model not in self._configured:
            return  # of a configuration that is not this gateway's
        known = self._configured[model]
        self._router.weights[model] = {
            version: chosen.weights.get(version, weight) for version, weight in known.items()
        }
        self._watch.anew(model, clock.monotonic(), self._window)
        _log.info(
            "weights of versions",
            model=model or "*",
            number=chosen.number,
            weights=dict(chosen.weights),
            who=chosen.who,
            why=chosen.why,
        )

    async def judge(self) -> None:
        """Take back versions that are worse than the one that they are to take over from."""
        assert self._guard is not None
        weights = self._router.weights
        stables = {model: self._stable(model) for model in weights}
        for found in self._watch.step_backs(weights, stables, self._guard, clock.monotonic()):
            await self._step_back(found)

    def _stable(self, model: str) -> str:
        """By the weights that it had, as far as this gateway knows the versions."""
        chosen, known = self._chosen(model), self._configured[model]
        states = [*chosen.past, self._router.weights[model]]
        mine = [{version: state.get(version, 0.0) for version in known} for state in states]
        return stable([state for state in mine if any(state.values())] or [known])

    async def _step_back(self, found: StepBack) -> None:
        def change(now: Chosen) -> Chosen:
            weights = dict(now.weights)
            weight = weights.get(found.version, 0.0)
            if not weight:
                raise ValueError("another gateway was first")
            weights[found.version] = 0.0
            weights[found.stable] = min(weights.get(found.stable, 0.0) + weight, MOST_WEIGHT)
            why = f"{found.version}: {found.why}"
            return now.after(weights, _GUARD, why, clock.wall(), stepped=[found.version])

        try:
            if await self._change(found.model, change):
                self._tell(found)
        except ValueError as error:
            _log.info("version stays as it is", model=found.model or "*", why=str(error))
        except UntakenError:
            self._tell(found)
            # It counts here at once, and is written as what Redis lost when Redis is back.
            self._adopt(found.model, change(self._chosen(found.model)))
            self._text = None

    def _tell(self, found: StepBack) -> None:
        self.step_backs[found.model] = self.step_backs.get(found.model, 0) + 1
        _log.warning("version steps back", model=found.model or "*", version=found.version, why=found.why)

    # -- changing ----------------------------------------------------------------------------------------

    def _chosen(self, model: str) -> Chosen:
        """The model's weights; those of the configuration where they were never changed."""
        held = self._models.get(model)
        if held is not None:
            return held
        return Chosen(number=0, weights=self._configured[model], who=_FILE, why="as configured", when=0.0)

    async def _change(self, model: str, change: Change) -> bool:
        """Change a model's weights, for all gateways; False where others changed something all the time.

        Raises:
            UntakenError: Redis did not take it; nothing was changed.
            ValueError: as `change`, or something else stands at the key.
        """
        if self._store is None:
            self._adopt(model, change(self._chosen(model)))
            return True
        for _ in range(_TRIES):
            text = await self._store.get()
            try:
                read(text)
            except ValueError as error:
                raise ValueError(
                    f"in Redis {self._store.key}: {error}; delete it (redis-cli del {self._store.key}), and the "
                    "gateways write what they go by"
                ) from None
            if text != self._text:
                await self._take(text)
            if text == self._text:
                chosen = change(self._chosen(model))
                whole = written({**self._models, model: chosen})
                if await self._store.swap(text, whole):
                    self._text = whole
                    self._adopt(model, chosen)
                    return True
        return False

    # -- the admin port ----------------------------------------------------------------------------------

    def shown(self) -> list[dict[str, Any]]:
        """Every model with versions: weights, who chose them, and how each does, ready for JSON."""
        return [self._shown(model) for model in sorted(self._configured)]

    def _shown(self, model: str) -> dict[str, Any]:
        chosen = self._chosen(model)
        # A version of another gateway's configuration has its part too, in an upgrade.
        weights = {
            **{version: weight for version, weight in chosen.weights.items() if weight},
            **self._router.weights[model],
        }
        parts = shares(weights)
        pools = pools_of(self._router.routes, model)
        return {
            "model": model or "*",
            "number": chosen.number,
            "who": chosen.who,
            "why": chosen.why,
            "when": chosen.when or None,
            "stepped_back": list(chosen.stepped),
            "versions": [
                {
                    "version": version,
                    "weight": weight,
                    "share": round(parts[version], 14),  # weights have up to 12 places; less is rounding
                    "pools": pools.get(version, []),
                    "in_flight": sum([self._flying(pool) for pool in pools.get(version, [])]),
                    **self._lately(model, version),
                }
                for version, weight in weights.items()
            ],
        }

    def _flying(self, name: str) -> int:
        """Requests in flight in a pool, by this gateway's books."""
        return sum([replica.books.requests for replica in self._pools[name].replicas])

    def _lately(self, model: str, version: str) -> dict[str, Any]:
        tally = self._watch.tallies.get(model, {}).get(version)
        now = tally.numbers(clock.monotonic(), self._window) if tally is not None else Numbers(0, 0, [])
        before = tally.before if tally is not None else None
        return {
            **_seen(now),
            "window": self._window,
            "before_change": None if before is None else _seen(before),
        }

    async def _on_list(self, _request: web.Request) -> web.Response:
        return _answer({"models": self.shown()})

    async def _on_set(self, request: web.Request) -> web.Response:
        asked = request.query

        def change(now: Chosen) -> Chosen:
            given, known = weights_of(asked.get("weights", "")), self._configured[_model(request)]
            weights = completed(now.weights, given, known, now.stepped)
            return now.after(weights, word(asked, "who"), word(asked, "why"), clock.wall())

        return await self._ordered(request, change)

    async def _on_rollback(self, request: web.Request) -> web.Response:
        def change(now: Chosen) -> Chosen:
            before = now.back(word(request.query, "who"), word(request.query, "why"), clock.wall())
            if before is not None:
                return before
            if now.past:
                names = ", ".join(now.stepped)
                raise ValueError(
                    f"all weights before give some to what the guard took back ({names}); if you want that, say so "
                    "with `versions set`"
                )
            raise ValueError("there is nothing to go back to: its weights are as configured")

        return await self._ordered(request, change)

    async def _ordered(self, request: web.Request, change: Change) -> web.Response:
        model = _model(request)
        if model not in self._configured:
            known = ", ".join(repr(name or "*") for name in sorted(self._configured)) or "none"
            said = f"no model {(model or '*')[:100]!r} with several versions; there are: {known}"
            return _answer({"error": said}, 404)
        try:
            if not await self._change(model, change):
                return _answer(
                    {"error": "others change weights all the time; nothing was changed by you"}, 409
                )
        except ValueError as error:
            return _answer({"error": f"nothing was changed: {error}"}, 400)
        except UntakenError as error:
            said = f"nothing was changed, since Redis did not take it: {error}; try again"
            return _answer({"error": said}, 503)
        reaches = "every gateway on this Redis" if self._store is not None else "this gateway only"
        return _answer({**self._shown(model), "reaches": reaches})


def _model(request: web.Request) -> str:
    name = request.query.get("model", "")
    return "" if name == "*" else name


def _seen(numbers: Numbers) -> dict[str, Any]:
    """Of a version, ready for JSON."""
    p99 = numbers.p99
    return {
        "requests": numbers.requests,
        "errors": numbers.errors,
        "left": numbers.left,
        "ttft_p99": None if p99 is None else round(p99, 4),
    }


def _answer(body: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


def build(settings: GatewaySettings, steering: Steering) -> VersionDesk:
    """The desk for a configuration."""
    canary = settings.canary
    guard = Guard(errors=canary.errors, ttft=canary.ttft, least=canary.requests, window=canary.window)
    store: Store | None = None
    if steering.router.weights and settings.redis.url:
        from extproc.io.weight_store import WeightStore  # loads Redis' client, which not everybody needs

        store = WeightStore(settings.redis)
    return VersionDesk(steering, store, guard if canary.guard else None)
