"""Asks each replica's /v1/models which LoRA adapters it serves, now and then.

vLLM and SGLang list an adapter as a model with its base model as `parent`. A replica that does not answer, or not in
this form, keeps what it listed before; nothing is concluded from silence.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import orjson
import structlog
from yarl import URL

from extproc.core.fleet import Replica
from extproc.core.pool import Pool
from extproc.io.http_get import GetFailed, Getter

_log = structlog.get_logger("kvsteer.adapters")

#: Seconds that one answer may take, and its most bytes: ten thousand adapters take 4 MB.
_TIMEOUT: Final = 2.0
_MOST_BYTES: Final = 8 * 2**20
#: Replicas asked at once.
_AT_ONCE: Final = 8


class AdapterLists:
    """Keeps one pool's adapters in line with what its replicas list.

    Args:
        pool: one with `adapters`.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._silent: set[str] = set()

    async def look(self) -> None:
        """Ask every replica once. Never raises for what a replica does."""
        left = list(self._pool.replicas)
        while left:
            batch, left = left[:_AT_ONCE], left[_AT_ONCE:]
            await asyncio.gather(*(self._ask(replica) for replica in batch))

    async def _ask(self, replica: Replica) -> None:
        names = await listed(replica.address)
        if names is None:
            if replica.address not in self._silent:
                _log.warning(
                    "a replica does not list its models", pool=self._pool.name, replica=replica.address
                )
            self._silent.add(replica.address)
            return
        self._silent.discard(replica.address)
        if self._pool.adapters is not None and self._pool.get(replica.address) is replica:
            self._pool.adapters.listed(replica, names)


async def listed(address: str) -> dict[str, str] | None:
    """Adapters that a replica lists, and their models; None where it can't be told."""
    url = URL(f"http://{address}/v1/models")
    getter = Getter(url, None, _MOST_BYTES, {"accept": "application/json"})
    try:
        async with asyncio.timeout(_TIMEOUT):
            answer = await getter.get()
    except (GetFailed, TimeoutError):
        return None
    finally:
        getter.close()
    return read_list(answer.body) if answer.status == 200 else None


def read_list(body: bytes) -> dict[str, str] | None:
    """Adapters in the body of /v1/models, and their models; None where it has not this form."""
    try:
        found: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    entries = found.get("data") if isinstance(found, dict) else None
    if not isinstance(entries, list):
        return None
    rows = [entry for entry in entries if isinstance(entry, dict)]
    return {
        row["id"]: row["parent"]
        for row in rows
        if isinstance(row.get("id"), str) and isinstance(row.get("parent"), str) and row["parent"]
    }


def build(pools: Sequence[Pool], intervals: Sequence[float]) -> list[tuple[str, float, AdapterLists]]:
    """Name of the task, seconds between looks, and who looks; only for pools that want it."""
    return [
        (f"adapters {pool.name}", seconds, AdapterLists(pool))
        for pool, seconds in zip(pools, intervals, strict=True)
        if pool.adapters is not None and seconds
    ]
