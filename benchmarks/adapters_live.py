"""LoRA adapters loaded by need with real processes: how many requests find theirs, and how many loads that takes.

    .venv/bin/python -m benchmarks.adapters_live [--check] [--requests 3000] [--adapters 40] [--places 8]

A real Envoy, a Redis, two gateways and six emulated engines that have no adapter at the start and take their time to
load one (`--register-ms`). Adapters are asked for by Zipf's law (the n-th 1/n as often as the first), eight requests
at a time. A request that waited for a load found nothing; where all adapters fit, the best assignment misses each of
them once.
"""

import argparse
import asyncio
import random
import re
import sys
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass
from typing import Final

import aiohttp

from extproc.demo.stack import Stack, StackSettings

REPLICAS: Final = 6
_AT_ONCE: Final = 8
#: Promised, as in virtual time (benchmarks/adapters.py); and the loads that the settings allow.
LEAST_SHARE: Final = 0.9
PER_MINUTE: Final = 120


@dataclass(slots=True)
class Result:
    """What came of it; seconds of the whole run, and of the answers, sorted."""

    statuses: Counter[int]
    waited: int
    loads: int
    unloads: int
    seconds: float
    answers: list[float]

    @property
    def share(self) -> float:
        """Part of the requests that did not wait for a load."""
        return 1 - self.waited / self.statuses.total()

    @property
    def a_minute(self) -> float:
        """Loads in any minute, at most."""
        return self.loads / max(self.seconds / 60, 1)

    def line(self, best: float) -> str:
        """In words, against the share of the best assignment."""
        mid, late = (self.answers[int(len(self.answers) * part)] * 1000 for part in (0.5, 0.99))
        return (
            f"{self.statuses.total()} requests in {self.seconds:.1f} s, {dict(self.statuses)}: "
            f"{self.share:.1%} waited for no load ({self.share / best:.3f} of the best assignment's); "
            f"{self.loads} loads ({self.a_minute:.0f} a minute, {PER_MINUTE} allowed), {self.unloads} unloads; "
            f"P50 {mid:.0f} ms, P99 {late:.0f} ms"
        )


def settings(given: argparse.Namespace, names: list[str]) -> StackSettings:
    """What to start."""
    loading = {
        "enabled": True,
        "paths": {name: f"/lora/{name}" for name in names},
        "per_replica": given.places,
        "per_minute": PER_MINUTE,
        "wait": "60s",
        "idle": "2s",
    }
    engine = ["--runtime-adapters", "--max-loras", str(given.places)]
    return StackSettings(
        replicas=REPLICAS,
        gateways=2,
        engine=[*engine, "--adapter-register-ms", str(given.register_ms), "--step-ms", "2"],
        pool={"models": ["demo"], "adapters": {"enabled": True, "slots": given.places, "loading": loading}},
    )


def metric(stack: Stack, name: str, *labels: str) -> int:
    """A counter over both gateways, of all series with these labels."""
    total = 0.0
    for _, port in stack.gateway_ports:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            rows = re.findall(rf"^{name}\{{([^}}]*)\}} (\S+)$", answer.read().decode(), re.M)
        total += sum(float(value) for has, value in rows if all(label in has for label in labels))
    return int(total)


async def drive(stack: Stack, names: list[str]) -> Result:
    """Ask for these, in order."""
    statuses: Counter[int] = Counter()
    took: list[float] = []
    left = iter(enumerate(names))

    async def client(session: aiohttp.ClientSession) -> None:
        for number, name in left:
            body = {"model": name, "messages": [{"role": "user", "content": f"q {number}"}], "max_tokens": 4}
            began = time.monotonic()
            async with session.post(f"{stack.url}/v1/chat/completions", json=body) as answer:
                await answer.read()
                statuses[answer.status] += 1
            took.append(time.monotonic() - began)

    began = time.monotonic()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
        await asyncio.gather(*(client(session) for _ in range(_AT_ONCE)))
    seconds = time.monotonic() - began
    waited = metric(stack, "kvsteer_adapter_waits_total", 'how="l')  # loaded, longest_wait, left
    loads, unloads = (
        metric(stack, "kvsteer_adapter_calls_total", f'call="{call}"', 'result="done"')
        for call in ("load", "unload")
    )
    return Result(statuses, waited, loads, unloads, seconds, sorted(took))


def main() -> int:
    """Run it and say what came of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--adapters", type=int, default=40)
    parser.add_argument("--places", type=int, default=8, help="adapters that a replica has at once")
    parser.add_argument("--register-ms", type=int, default=200, help="time that a load takes")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a promise does not hold")
    given = parser.parse_args()
    names = [f"lora-{number}" for number in range(1, given.adapters + 1)]
    weights = [1 / number for number in range(1, given.adapters + 1)]
    with Stack(settings(given, names)) as stack:
        asked = random.Random(1).choices(names, weights, k=given.requests)
        result = asyncio.run(drive(stack, asked))
    best = 1 - len(set(asked)) / given.requests
    print(result.line(best))
    held = (
        result.share >= LEAST_SHARE * best and result.a_minute <= PER_MINUTE and set(result.statuses) == {200}
    )
    if given.check and not held:
        print(f"promised: {LEAST_SHARE} of the best assignment's, and every request answered")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
