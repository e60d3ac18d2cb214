"""The admin port: for people and Prometheus, not for clients."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
from aiohttp import hdrs, web
from prometheus_client import CollectorRegistry

from extproc.addresses import parse_address
from extproc.core.fleet import Replica
from extproc.core.pool import Pool
from extproc.io.asked import unknown
from extproc.io.beliefs import cache_of
from extproc.io.exposition import exposed
from extproc.io.http_log import quiet_logger
from extproc.io.records import Records

#: Records one answer holds unless asked for more.
_DEFAULT_RECORDS = 100
#: Path of a request to explain when it names none.
_DEFAULT_PATH = "/v1/chat/completions"


class Admin:
    """Serves /metrics, /healthz, /readyz, /replicas, /decisions, /policies, /snapshot and /explain.

    Args:
        address: host:port; port 0 takes a free one.
        pools: what /replicas shows.
        removed: replicas that a drain's deadline removed, for /replicas.
        records: what /decisions shows.
        registry: what /metrics shows.
        readiness: why the gateway is not ready, or "" when it is.
        shared: how Redis is (off, ok, degraded), for /healthz and /readyz.
        shared_why: why it is degraded; "" when it is not.
        policies: what /policies shows; its versions are in /healthz too.
        snapshot: what /snapshot shows.
        explain: what /explain says to a body and a path.
        max_body: largest body for /explain, in bytes.
        clock: seconds, the clock the samples are stamped with.
        routes: further routes, of parts that take orders.
    """

    def __init__(
        self,
        address: str,
        *,
        pools: list[Pool],
        removed: Callable[[], list[dict[str, Any]]],
        records: Records,
        registry: CollectorRegistry,
        readiness: Callable[[], str],
        shared: Callable[[], str],
        policies: Callable[[], list[dict[str, Any]]],
        snapshot: Callable[[], dict[str, Any]],
        explain: Callable[[bytes, str], dict[str, Any]],
        max_body: int,
        clock: Callable[[], float],
        routes: Sequence[web.RouteDef] = (),
        shared_why: Callable[[], str] = lambda: "",
    ) -> None:
        self.port = 0
        self._address = address
        self._pools = pools
        self._removed = removed
        self._records = records
        self._registry = registry
        self._readiness = readiness
        self._shared = shared
        self._shared_why = shared_why
        self._policies = policies
        self._snapshot = snapshot
        self._explain = explain
        self._max_body = max_body
        self._clock = clock
        self._routes = routes
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Bind and serve. Raises OSError when the address can't be had."""
        app = web.Application(client_max_size=self._max_body)
        app.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/replicas", self._replicas),
                web.get("/decisions", self._decisions),
                web.get("/policies", self._show_policies),
                web.get("/snapshot", self._take_snapshot),
                web.post("/explain", self._explain_request),
                *self._routes,
            ]
        )
        app.router.add_route("*", "/{path:.*}", _Elsewhere(app.router).answer)
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=1.0, logger=quiet_logger()
        )
        await self._runner.setup()
        host, port = parse_address(self._address)
        site = web.TCPSite(self._runner, host, port)
        try:
            await site.start()
        except OSError as error:
            raise OSError(
                f"can't listen on {self._address} ({error.strerror}); is another process using it?"
            ) from None
        addresses = self._runner.addresses
        self.port = addresses[0][1] if addresses else port

    async def stop(self) -> None:
        """Close the port."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        body, kind = exposed(self._registry, request.headers.getall("accept", ()))
        return web.Response(body=body, headers={"content-type": kind, "vary": "accept"})

    async def _healthz(self, _request: web.Request) -> web.Response:
        versions = {entry["pool"]: entry["version"] for entry in self._policies()}
        return _json({"status": "ok", **self._shared_detail(), "policy_versions": versions})

    async def _readyz(self, _request: web.Request) -> web.Response:
        why = self._readiness()
        detail = {"ready": not why, "why": why or None, **self._shared_detail()}
        return _json(detail, status=503 if why else 200)

    def _shared_detail(self) -> dict[str, Any]:
        return {"shared": self._shared(), "shared_why": self._shared_why() or None}

    async def _replicas(self, _request: web.Request) -> web.Response:
        now = self._clock()
        rows = [_replica(pool, replica, now) for pool in self._pools for replica in pool.replicas]
        return _json({"replicas": rows, "removed": self._removed()})

    async def _show_policies(self, _request: web.Request) -> web.Response:
        return _json({"policies": self._policies()})

    async def _take_snapshot(self, _request: web.Request) -> web.Response:
        return _json(self._snapshot())

    async def _explain_request(self, request: web.Request) -> web.Response:
        path = request.headers.get("x-explain-path", _DEFAULT_PATH)
        return _json(self._explain(await request.read(), path))

    async def _decisions(self, request: web.Request) -> web.Response:
        strange = unknown(request.query, ("last",))
        if strange:
            return _json({"error": strange}, status=400)
        asked = request.query.get("last", str(_DEFAULT_RECORDS))
        if not (asked.isascii() and asked.isdigit() and len(asked) <= 6):
            return _json({"error": "last must be a whole number, as in /decisions?last=20"}, status=400)
        return _json({"decisions": self._records.last(int(asked))})


class _Elsewhere:
    """What is said of a path there is none, and of a method that a path does not take: the ones there are."""

    def __init__(self, router: web.UrlDispatcher) -> None:
        known = {
            (route.resource.canonical, route.method)
            for route in router.routes()
            if route.resource is not None and route.method != hdrs.METH_HEAD
        }
        self._paths = [f"{method} {path}" for path, method in sorted(known)]
        self._methods = dict(known)

    async def answer(self, request: web.Request) -> web.Response:
        """404, or 405 where only the method is wrong."""
        if request.path in self._methods:
            method = self._methods[request.path]
            error = f"{request.path} takes {method}"
            return _json({"error": error, "paths": self._paths}, 405, {"allow": method})
        error = f"this is the admin port of a kvsteer gateway, and has no such path; it has: {', '.join(self._paths)}"
        return _json({"error": error, "paths": self._paths}, 404)


def _json(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    data = orjson.dumps(body, option=orjson.OPT_INDENT_2) + b"\n"
    return web.Response(body=data, status=status, content_type="application/json", headers=headers)


def _replica(pool: Pool, replica: Replica, now: float) -> dict[str, Any]:
    sample = replica.sample
    return {
        "pool": pool.name,
        "replica": replica.address,
        "incarnation": replica.incarnation,
        "state": replica.life.state,
        "state_since": round(now - replica.life.since, 3),
        "state_cause": replica.life.cause,
        "share": round(replica.share, 3),
        "breaker": replica.breaker.state,
        "excluded": replica.excluded(now),
        "headroom": replica.headroom,
        "lean": replica.lean,
        "parts": replica.parts._asdict(),
        "bias": replica.bias,
        "factor": sample and sample.factor,
        "sample_age": None if sample is None else round(now - sample.at, 3),
        "scrape_failure": replica.unheard or None,
        "running": sample and sample.running,
        "waiting": sample and sample.waiting,
        "kv_used": sample and sample.kv_used,
        "kv_tokens": replica.kv_tokens,
        "requests_in_flight": replica.books.requests,
        "tokens_in_flight": replica.books.tokens,
        "backlog_seconds": replica.backlog(now),
        "index_entries": pool.index.count(replica.slot),
        "prefill_tokens_per_second": replica.prefill_speed,
        "decode_tokens_per_second": replica.decode_speed,
        "cache": cache_of(pool, replica),
    }
