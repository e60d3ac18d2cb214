"""Envoy's EDS files kept in line with the pools: who may get a new request, whoever chooses.

While no gateway answers, and for tries beyond those that a gateway named, Envoy balances over what such a file
lists. So it lists neither who drains or was removed nor who only computes prompts for others. Envoy lets the
responses of an endpoint that is no longer listed run to their end, and skips it where a gateway still names it (seen
with Envoy 1.40).
"""

import asyncio

from extproc.core.lifecycle import QUIESCING
from extproc.core.pool import Pool
from extproc.envoyconfig import eds_text, write_eds
from extproc.io.tasks import Supervisor


def listed(pool: Pool) -> list[str]:
    """Addresses of the replicas that may get a new request, in the pool's order."""
    answers = pool.handover.answering if pool.handover is not None else None
    return [
        replica.address
        for replica in pool.replicas
        if replica.life.state != QUIESCING and (answers is None or replica.address in answers)
    ]


class EdsFiles:
    """Writes the files of all pools, each when its list is another.

    Args:
        folder: where Envoy looks; "" for no files at all.
        pools: by whose state the lists are made.
        known: names of the pools whose replicas are known from the start; of others `found` tells.
    """

    def __init__(self, folder: str, pools: list[Pool], known: set[str]) -> None:
        self._folder = folder
        self._pools = pools
        self._known = set(known)
        self._written: dict[str, list[str]] = {}
        self._changed = asyncio.Event()

    def found(self, pool: str) -> None:
        """Discovery has answered for a pool: its file is kept from now on. One of an earlier run stays until then."""
        self._known.add(pool)
        self.look()

    def look(self) -> None:
        """See who is to be listed now; called a few times a second, and when a pool's members changed."""
        if self._folder and any(self._written.get(pool.name) != now for pool, now in self._lists()):
            self._changed.set()

    def write(self) -> None:
        """Write what is not written yet, at once: before Envoy may start.

        Raises:
            OSError: the folder can't be written.
        """
        for pool, addresses in self._lists() if self._folder else ():
            if self._written.get(pool.name) != addresses:
                write_eds(self._folder, pool.name, eds_text(pool.name, addresses))
                self._written[pool.name] = addresses

    def start(self, tasks: Supervisor) -> None:
        """Write changes from now on."""
        if self._folder:
            tasks.start("eds", self._keep)

    async def _keep(self) -> None:
        """One change at a time and off the loop: files are synced to disk."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while (todo := self._next()) is not None:
                pool, addresses = todo
                text = eds_text(pool, addresses)
                await asyncio.to_thread(write_eds, self._folder, pool, text)
                self._written[pool] = addresses

    def _next(self) -> tuple[str, list[str]] | None:
        """A pool whose file is not up to date, and what it is to list. Asked after each write, as lists change."""
        lists = ((pool.name, addresses) for pool, addresses in self._lists())
        return next((it for it in lists if self._written.get(it[0]) != it[1]), None)

    def _lists(self) -> list[tuple[Pool, list[str]]]:
        return [(pool, listed(pool)) for pool in self._pools if pool.name in self._known]
