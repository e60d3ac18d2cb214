"""Each replica as the page shows it: all that `/replicas` has, and seconds it would cost by its parts."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Final

import orjson

from extproc.core.fleet import Replica
from extproc.core.policies.charged_cost import ChargedCost, backlogs_of
from extproc.core.pool import Pool
from extproc.io.beliefs import cache_of

#: Replicas described before others have their turn on the event loop; one takes about 15 us.
_PIECE: Final = 50

#: Replicas for which a second is added between two tellings: 500 are told of every three seconds.
_PER_SECOND: Final = 250

#: Requests of other gateways: gateway -> the replicas they are on.
Others = Callable[[], Mapping[str, Iterable[Replica | None]]]


class Fleet:
    """The fleet as open pages are told of it: worked out once for all of them, and the rarer the larger it is.

    Args:
        pools: of this gateway.
        others: what other gateways have in flight.
        clock: seconds, monotonic.
    """

    def __init__(self, pools: list[Pool], others: Others, clock: Callable[[], float]) -> None:
        self._pools = pools
        self._others = others
        self._clock = clock
        self._at = float("-inf")
        self._text = b"[]"
        self._working = asyncio.Lock()

    @property
    def pause(self) -> float:
        """Seconds for which what was told is good enough: one, and another for every 250 replicas."""
        return 1.0 + sum(len(pool.replicas) for pool in self._pools) // _PER_SECOND

    @property
    def is_due(self) -> bool:
        """Whether what was told is older than that; half a second early, as turns come once a second."""
        return self._clock() - self._at >= self.pause - 0.5

    async def text(self) -> bytes:
        """Every replica as JSON, worked out when it is due."""
        async with self._working:
            if self.is_due:
                now = self._at = self._clock()
                pieces = [
                    orjson.dumps(piece)[1:-1] async for piece in pieces_of(self._pools, self._others, now)
                ]
                self._text = b"[%b]" % b",".join(pieces)
        return self._text


async def pieces_of(pools: Iterable[Pool], others: Others, now: float) -> AsyncIterator[list[dict[str, Any]]]:
    """Every replica of every pool, ready for JSON, some at a time. `now` in the core's clock."""
    flights = flights_of(others())
    for pool in pools:
        replicas = pool.replicas
        for start in range(0, len(replicas), _PIECE):
            yield _rows(pool, replicas[start : start + _PIECE], flights, now)
            await asyncio.sleep(0)


def flights_of(others: Mapping[str, Iterable[Replica | None]]) -> dict[int, Counter[str]]:
    """Requests in flight by replica (its `id`), and by the gateway, other than this one, that sent them."""
    found: dict[int, Counter[str]] = {}
    for gateway, replicas in others.items():
        for replica in replicas:
            if replica is not None:
                found.setdefault(id(replica), Counter())[gateway] += 1
    return found


def _rows(
    pool: Pool, replicas: list[Replica], flights: Mapping[int, Counter[str]], now: float
) -> list[dict[str, Any]]:
    policy = pool.policy if isinstance(pool.policy, ChargedCost) else ChargedCost()
    backlogs = backlogs_of(replicas, now)
    rho = pool.rho(pool.replicas, now)
    output = pool.output.usual
    pressed = policy.pressures(replicas, output, rho)
    decode = policy.decode_weight(rho)
    return [
        _row(pool, replica, backlog, decode * replica.context, pressure, flights.get(id(replica)), now)
        for replica, backlog, pressure in zip(replicas, backlogs, pressed, strict=True)
    ]


def _row(
    pool: Pool,
    replica: Replica,
    backlog: float,
    context: float,
    pressure: float,
    flights: Counter[str] | None,
    now: float,
) -> dict[str, Any]:
    sample, parts = replica.sample, replica.parts
    cache = cache_of(pool, replica)
    return {
        "pool": pool.name,
        "replica": replica.address,
        "state": replica.life.state,
        "since": round(now - replica.life.since, 1),
        "cause": replica.life.cause,
        "share": round(replica.share, 3),
        "slow": round(replica.pace.share, 3),
        "breaker": replica.breaker.state,
        "excluded": replica.excluded(now),
        "unheard": replica.unheard or None,
        "headroom": _short(replica.headroom),
        "parts": [_short(part) for part in (parts.kv, parts.running, parts.waiting, parts.penalty)],
        "ahead": [round(backlog, 3), round(context, 3), round(max(pressure - context, 0.0), 3)],
        "age": None if sample is None else round(now - sample.at, 1),
        "running": sample and sample.running,
        "waiting": sample and sample.waiting,
        "slots": replica.max_running,
        "kv": None if sample is None else _short(sample.kv_used),
        "kv_tokens": replica.kv_tokens,
        "requests": replica.books.requests,
        "tokens": replica.books.tokens,
        "others": dict(flights) if flights else {},
        "prefill": round(replica.prefill_speed),
        "decode": round(replica.decode_speed),
        "entries": pool.index.count(replica.slot),
        "predicted": None if cache is None else cache["predicted_tokens"],
        "actual": None if cache is None else cache["cached_tokens"],
        "precision": None if cache is None else cache["precision"],
        "scale": None if cache is None else cache["scale"],
    }


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
