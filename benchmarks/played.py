"""Gateways behind a real Envoy that plays the replicas too, so that what is measured has the cores; and a load."""

import asyncio
import os
import random
import re
import time
from pathlib import Path

import yaml

from benchmarks.http_load import numbered
from benchmarks.server_cpu import payloads, upstream
from extproc.config import parse
from extproc.demo.processes import answers, free_port, program
from extproc.demo.stack import Stack, StackSettings
from extproc.envoyconfig import bootstrap

_CONNECTIONS = 48
_BYTES = 2048


class Played(Stack):
    """The stack with Envoy in the place of engines."""

    def __init__(self, settings: StackSettings) -> None:
        super().__init__(settings)
        self.upstream = free_port()

    def start_engines(self) -> None:
        """Addresses only; Envoy is behind all of them."""
        self.replicas = [
            f"127.0.{number // 250}.{number % 250 + 1}:{self.upstream}"
            for number in range(self.settings.replicas)
        ]

    def start_envoy(self) -> None:
        """The generated bootstrap, and a listener that plays the replicas."""
        self.port, self.envoy_admin = free_port(), free_port()
        tree = bootstrap(parse(yaml.safe_dump(self.configuration(0)), "bench"))
        tree["static_resources"]["listeners"].append(upstream(self.upstream))
        path = self.folder / "envoy.yaml"
        path.write_text(yaml.safe_dump(tree))
        argv = [program("envoy") or "envoy", "-c", str(path), "--concurrency", "1", "--use-dynamic-base-id"]
        child = self._child("envoy", [*argv, "--log-level", "error"])
        child.wait_until(lambda: answers(self.port), 20)


class Open:
    """Requests at random moments over kept connections. `sent` and `failed` count them."""

    def __init__(self, port: int, rate: float, seconds: float) -> None:
        self._port, self._seconds = port, seconds
        self._each = rate / _CONNECTIONS
        self._payloads = payloads(_BYTES)
        self.sent = self.failed = 0

    def payload(self, rng: random.Random) -> bytes:
        """A whole request; here one of a few hundred."""
        return rng.choice(self._payloads)

    async def run(self) -> None:
        """Send for as long as was said."""
        end = time.monotonic() + self._seconds
        await asyncio.gather(*(self._connection(number, end) for number in range(_CONNECTIONS)))

    async def _connection(self, number: int, end: float) -> None:
        rng = random.Random(number)
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        due = time.monotonic()
        while (due := due + rng.expovariate(self._each)) < end > time.monotonic():
            await asyncio.sleep(max(due - time.monotonic(), 0))
            writer.write(numbered(self.payload(rng)))
            head = await reader.readuntil(b"\r\n\r\n")
            size = re.search(rb"content-length: (\d+)", head)
            await reader.readexactly(int(size[1]) if size else 0)
            self.sent += 1
            self.failed += not head.startswith(b"HTTP/1.1 200")
        writer.close()


def machine_busy() -> float:
    """Seconds that all cores together were busy since the start of the machine."""
    numbers = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(numbers) - numbers[3] - numbers[4]) / os.sysconf("SC_CLK_TCK")
