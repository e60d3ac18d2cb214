"""Asks each replica's /v1/models which LoRA adapters it serves: at once where that is not known, else now and then.

vLLM and SGLang list an adapter as a model with its base model as `parent`. A replica that does not answer, or not in
this form, keeps what it listed before; nothing is concluded from silence.
"""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any, Final

import orjson
import structlog
from yarl import URL

from extproc.core.adapters import Adapters
from extproc.core.fleet import Replica
from extproc.core.pool import Pool
from extproc.io.http_get import GetFailed, Getter
from extproc.io.scrape import Bearer

_log = structlog.get_logger("kvsteer.adapters")

#: Seconds between looks at who is to be asked.
LOOK: Final = 0.1
#: Seconds that one answer may take, and its most bytes: ten thousand adapters take 4 MB.
_TIMEOUT: Final = 2.0
_MOST_BYTES: Final = 8 * 2**20
#: Replicas asked at once.
_AT_ONCE: Final = 8
#: Seconds after which one whose list is not known, or doubted, is asked again.
_AGAIN: Final = 1.0


class AdapterLists:
    """Keeps one pool's adapters in line with what its replicas list.

    Args:
        pool, adapters: the pool, and its adapters.
        every: seconds between two looks at a replica.
        bearer: the key that engines want; None for none.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        pool: Pool,
        adapters: Adapters,
        every: float,
        bearer: Bearer | None,
        clock: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._adapters = adapters
        self._every = every
        self._bearer = bearer
        self._clock = clock
        self._asked: dict[int, float] = {}  # when, by the replica's slot
        self._silent: set[str] = set()

    async def look(self) -> None:
        """Ask every replica that is due. Never raises for what a replica does."""
        replicas, now = self._pool.replicas, self._clock()
        self._asked = {r.slot: self._asked[r.slot] for r in replicas if r.slot in self._asked}
        left = [replica for replica in replicas if self._is_due(replica, now)]
        while left:
            batch, left = left[:_AT_ONCE], left[_AT_ONCE:]
            await asyncio.gather(*(self._ask(replica) for replica in batch))
            self._adapters.forget(self._pool.replicas)

    def _is_due(self, replica: Replica, now: float) -> bool:
        known = self._adapters.listing(replica) is not None and replica.slot not in self._adapters.doubted
        after = self._every if known else min(_AGAIN, self._every)
        return now - self._asked.get(replica.slot, -inf) >= after

    async def _ask(self, replica: Replica) -> None:
        self._asked[replica.slot] = asked = self._clock()
        self._adapters.doubted.discard(replica.slot)
        names = await listed(replica.address, self._bearer.header() if self._bearer else None)
        if names is None:
            if replica.address not in self._silent:
                _log.warning(
                    "a replica does not list its models", pool=self._pool.name, replica=replica.address
                )
            self._silent.add(replica.address)
            return
        self._silent.discard(replica.address)
        if self._pool.get(replica.address) is replica:
            self._adapters.listed(replica, names, asked)


async def listed(address: str, authorization: str | None = None) -> dict[str, str] | None:
    """Adapters that a replica lists, and their models; None where it can't be told."""
    url = URL(f"http://{address}/v1/models")
    getter = Getter(url, None, _MOST_BYTES, {"accept": "application/json"})
    try:
        async with asyncio.timeout(_TIMEOUT):
            answer = await getter.get(authorization)
    except (GetFailed, TimeoutError):
        return None
    finally:
        getter.close()
    return read_list(answer.body) if answer.status == 200 else None


def read_list(body: bytes) -> dict[str, str] | None:
    """Adapters in the body of /v1/models, and their models; None where it has not this form.

    What has an adapter for its parent, be it itself, is none.
    """
    try:
        found: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    entries = found.get("data") if isinstance(found, dict) else None
    if not isinstance(entries, list):
        return None
    rows = [entry for entry in entries if isinstance(entry, dict)]
    told = {
        row["id"]: row["parent"]
        for row in rows
        if isinstance(row.get("id"), str) and isinstance(row.get("parent"), str) and row["parent"]
    }
    return {name: parent for name, parent in told.items() if parent not in told}
