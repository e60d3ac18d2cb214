"""Gateways without Envoy, in the test's own process, that share through a real Redis."""

import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from extproc.config import RedisSettings
from extproc.core.pool import Pool
from extproc.core.prompt import Chain, Prompt
from extproc.core.steering import Rules, Steering
from extproc.io.lease import Lease
from extproc.io.sharing import Sharing
from tests.integration.conftest import until_async

ADDRESSES = ["10.0.0.1:8000", "10.0.0.2:8000"]


class Gate:
    """A gateway without Envoy: what decides, and what shares."""

    def __init__(self, redis: str | RedisSettings, name: str) -> None:
        pool = Pool("chat", now=time.monotonic())
        for address in ADDRESSES:
            pool.join(address, time.monotonic())
        self.settings = RedisSettings(url=redis, deadline=1.0) if isinstance(redis, str) else redis
        self.steering = Steering([pool], Rules(), random.Random(name))
        self.sharing = Sharing(self.settings, self.steering, name)
        self.lease = self.sharing.leases.of("snapshot:chat")

    @property
    def pool(self) -> Pool:
        return self.steering.pools[0]

    async def start(self) -> None:
        await self.sharing.start()

    async def stop(self) -> None:
        await self.sharing.stop()

    def place(self, *hashes: int) -> int:
        key = self.steering.new_key()
        chain = Chain(list(hashes), [1024 * (i + 1) for i in range(len(hashes))])
        prompt = Prompt(dialect="d", kind="generate", chains=[chain], size=1024 * len(hashes))
        self.steering.decide(prompt, self.pool, key, time.monotonic())
        return key

    def end(self, key: int) -> None:
        self.steering.ledger.release(key, time.monotonic())

    def books(self) -> tuple[int, int]:
        replicas = self.pool.replicas
        return sum(r.books.requests for r in replicas), sum(r.books.tokens for r in replicas)

    def holders(self, *hashes: int) -> set[str]:
        held = self.pool.index.match(hashes)
        return {r.address for r in self.pool.replicas if held.get(r.slot) == len(hashes)}

    def own(self) -> tuple[int, int]:
        return len(self.steering.ledger), self.steering.ledger.tokens


@asynccontextmanager
async def fleet(redis: str | RedisSettings, count: int) -> AsyncIterator[list[Gate]]:
    gates = [Gate(redis, f"gw-{number}") for number in range(count)]
    for gate in gates:
        await gate.start()
    try:
        await heard(gates)
        yield gates
    finally:
        for gate in gates:
            await gate.stop()


async def got(lease: Lease, seconds: float = 3.0) -> None:
    """Ask for a lease until it is held: an answer that comes after the lease's end gives none."""

    async def held() -> bool:
        await lease.attempt()
        return lease.held

    await until_async(held, seconds, f"lease {lease.name} is held")


async def share(gates: list[Gate], seconds: float = 3.0) -> None:
    """All say that they share, as they do again soon after a call of theirs was not answered in time."""

    async def ok() -> bool:
        return all(gate.sharing.state == "ok" for gate in gates)

    await until_async(ok, seconds, "all say that they share")


async def heard(gates: list[Gate], seconds: float = 5.0) -> None:
    async def all_heard() -> bool:
        return all(len(gate.sharing.shared.peers) >= len(gates) - 1 for gate in gates)

    await until_async(all_heard, seconds, "every gateway hears every other")


async def agree(gates: list[Gate], seconds: float = 5.0) -> None:
    """Every view counts what all gateways have in flight, and nothing else."""

    async def equal() -> bool:
        total = (sum(gate.own()[0] for gate in gates), sum(gate.own()[1] for gate in gates))
        return all(gate.books() == total for gate in gates)

    await until_async(equal, seconds, f"views are equal {[gate.books() for gate in gates]}")
