"""A short soak: two gateways share at a high rate what is soon dropped; nothing that either keeps grows, nor Redis.

The long one, with the whole program behind an Envoy, is `make soak`.
"""

import asyncio
import itertools
import random
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from benchmarks.index_memory import resident
from benchmarks.soak import growth
from tests.integration.gates import Gate, fleet
from tests.integration.redis_server import redis_server

#: Seconds after which everything was dropped once; seconds that are looked at.
WARM, LOOKED = 6.0, 16.0
#: Placements of each gateway every hundredth of a second, and hashes of each that nobody had before.
BURST, HASHES = 8, 30
#: Requests in flight of each gateway.
OPEN = 100
#: Most growth in bytes, while some 15,000 placements of 30 hashes come and go: a leak of one hash each would show.
MOST = 2e6


@pytest.fixture
def client(tmp_path: Path) -> Iterator[redis.Redis]:
    with redis_server(tmp_path) as (port, _), redis.Redis(port=port) as made:
        yield made


@pytest.fixture(autouse=True)
def short_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no setting is kept a fifteenth of its time."""
    monkeypatch.setattr("extproc.io.journal_stream._KEEP", 4.0)
    monkeypatch.setattr("extproc.io.state_snapshot._LEFTOVER_TTL", 1)
    monkeypatch.setattr("extproc.core.reach.MOST_BEHIND", 1000)


class Busy:
    """What a gateway does all the time."""

    def __init__(self, gate: Gate, seed: int) -> None:
        self.gate = gate
        self._rng = random.Random(seed)
        self._open: deque[int] = deque()
        gate.pool.index._ttl, gate.pool.index._epoch_span = 2.0, 2.0 / 13

    def step(self) -> None:
        for _ in range(BURST):
            self._open.append(self.gate.place(*(self._rng.getrandbits(60) for _ in range(HASHES))))
            if len(self._open) > OPEN:
                self.gate.end(self._open.popleft())

    def kept(self) -> dict[str, int]:
        """How many there are of everything."""
        shared = self.gate.sharing.shared
        flights = [peer.flights for peer in shared.peers.values()]
        return {
            "index": len(self.gate.pool.index),
            "queue": len(self.gate.sharing.outbox),
            "running": sum(map(len, flights)) + len(self.gate.steering.ledger),
            "ended": sum(len(f._ended) for f in flights),
            "batches": sum(len(peer.seen._numbers) for peer in shared.peers.values()),
        }


async def test_memory_is_flat_in_gateways_and_in_redis(client: redis.Redis) -> None:
    port = client.get_connection_kwargs()["port"]
    async with fleet(f"redis://127.0.0.1:{port}", 2) as gates:
        busy = [Busy(gate, seed) for seed, gate in enumerate(gates)]
        began, looks, stored = time.monotonic(), list[tuple[float, float]](), list[tuple[float, float]]()
        for number in itertools.count():
            now = time.monotonic()
            if now - began > WARM + LOOKED:
                break
            for one in busy:
                one.step()
                if number % 50 == 0:
                    one.gate.steering.expire(now)
            if number % 25 == 0 and now - began > WARM:
                looks.append((now, resident()))
                stored.append((now, float(client.info("memory")["used_memory"])))
            await asyncio.sleep(0.01)
        placed = number * BURST
        for one in busy:
            kept = one.kept()
            # Two seconds of TTL, and what lies in an epoch's thirteenth of it, of both gateways.
            assert kept["index"] < 2 * placed * HASHES / 4, (kept, placed)
            assert kept["queue"] < 100 * BURST, kept
            assert kept["running"] <= 2 * (OPEN + 100 * BURST), kept
            assert kept["ended"] < 1000 * BURST, kept
            assert kept["batches"] <= 4096, kept
    size, grown = growth(looks)
    assert grown < MOST, f"the process grew by {grown / 1e6:.1f} of {size / 1e6:.0f} MB"
    size, grown = growth(stored)
    assert grown < MOST, f"Redis grew by {grown / 1e6:.1f} of {size / 1e6:.0f} MB"
