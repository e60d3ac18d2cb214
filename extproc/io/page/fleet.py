"""Each replica as the page shows it: all that `/replicas` has, and seconds it would cost by its parts."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from extproc.core.fleet import Replica
from extproc.core.policies.charged_cost import ChargedCost, backlogs_of
from extproc.core.pool import Pool
from extproc.io.beliefs import cache_of

#: Replicas described before others have their turn on the event loop; one takes about 15 us.
_PIECE: Final = 50

#: Requests of other gateways: gateway -> the replicas they are on.
Others = Callable[[], Mapping[str, Iterable[Replica | None]]]


async def rows_of(pools: Iterable[Pool], others: Others, now: float) -> list[dict[str, Any]]:
    """Every replica of every pool, ready for JSON. `now` in the core's clock."""
    flights = flights_of(others())
    rows = []
    for pool in pools:
        replicas = pool.replicas
        for start in range(0, len(replicas), _PIECE):
            rows += _rows(pool, replicas[start : start + _PIECE], flights, now)
            await asyncio.sleep(0)
    return rows


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
