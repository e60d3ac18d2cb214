"""The decision alone: request bytes in, decision out, beside `orjson.loads` of the same bytes.

    .venv/bin/python -m benchmarks.decision [--rounds 9] [--check]

Read, chain, match, choose and charge on a warm index, then release; alternating with plain parsing in one run,
medians of rounds. Each last message is new. Promised: at most 40 us (40x) at 2 KB with 16 replicas, 150 us (15x) at
32 KB with 64 replicas, 2 ms (4x) at 1 MB; and with 1,000 replicas at most 5 times what it takes with 16.
"""

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import orjson

from benchmarks.http_load import NUMBER, numbered
from extproc.core.decide import decide
from extproc.core.dialects import Limits, read
from extproc.core.ledger import Ledger
from extproc.core.pool import Pool
from extproc.demo.workload import text

_PATH = "/v1/chat/completions"


class Case(NamedTuple):
    """A size, a fleet and what is promised for them."""

    name: str
    size: int
    replicas: int
    most_us: float
    most_ratio: float
    batch: int


CASES = [
    Case("2 KB, 16 replicas", 2048, 16, 40, 40, 1500),
    Case("32 KB, 64 replicas", 32 * 1024, 64, 150, 15, 400),
    Case("1 MB, 64 replicas", 2**20, 64, 2000, 4, 30),
]


#: The first case in a large fleet, and how much more it may take.
LARGE = Case("2 KB, 1,000 replicas", 2048, 1000, math.inf, math.inf, 1500)
_MOST_GROWTH = 5.0


def bodies(size: int, count: int) -> list[bytes]:
    """Chats of about `size` bytes: a few shared beginnings, an end of their own."""
    rng = random.Random(5)
    systems = [text(rng, size // 2) for _ in range(8)]
    made = []
    for _ in range(count):
        messages = [{"role": "system", "content": rng.choice(systems)}]
        messages += [{"role": role, "content": text(rng, size // 6)} for role in ("user", "assistant")]
        messages.append({"role": "user", "content": NUMBER.decode() + text(rng, size // 6)})
        made.append(orjson.dumps({"model": "m", "messages": messages, "max_tokens": 64}))
    return made


def decider(case: Case) -> Callable[[list[bytes]], None]:
    """Decides every request once, on a pool that has seen all but their last messages before."""
    pool, ledger, rng, limits = Pool("bench", now=0.0), Ledger(), random.Random(1), Limits()
    for i in range(case.replicas):
        pool.join(f"10.0.{i // 250}.{i % 250 + 1}:8000", 0.0)
    clock = iter(range(1, 1 << 40))

    def run(requests: list[bytes]) -> None:
        for data in requests:
            step = next(clock)
            now = min(10.0, step * 1e-4)
            decide(pool, read(_PATH, data, limits), ledger, rng, key=step, now=now)
            ledger.release(step - 100, now)

    return run


def parse(requests: list[bytes]) -> None:
    """Parses every request once."""
    for data in requests:
        orjson.loads(data)


def timed(run: Callable[[list[bytes]], None], requests: list[bytes]) -> float:
    """Microseconds a request."""
    began = time.perf_counter()
    run(requests)
    return (time.perf_counter() - began) / len(requests) * 1e6


def measure(case: Case, rounds: int) -> tuple[float, float]:
    """Median microseconds of a decision, and median ratio to parsing, over alternating rounds."""
    made, ours = bodies(case.size, case.batch), decider(case)
    pairs = []
    for _ in range(rounds + 1):
        requests = [numbered(data) for data in made]
        pairs.append((timed(ours, requests), timed(parse, requests)))
    del pairs[0]  # the first round warms up
    return statistics.median(a for a, _ in pairs), statistics.median(a / b for a, b in pairs)


def measure_growth(rounds: int) -> tuple[float, float]:
    """Median ratio of a decision in the large fleet to one in the small, alternating, and its microseconds."""
    made, large, small = bodies(LARGE.size, LARGE.batch), decider(LARGE), decider(CASES[0])
    pairs = []
    for _ in range(rounds + 1):
        requests = [numbered(data) for data in made]
        pairs.append((timed(large, requests), timed(small, requests)))
    del pairs[0]  # the first round warms up
    return statistics.median(a / b for a, b in pairs), statistics.median(a for a, _ in pairs)


def main() -> None:
    """Print the table; with --check exit 1 when a ratio is above what is promised."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--check", action="store_true")
    args = options.parse_args()
    failed = False
    for case in CASES:
        took, ratio = measure(case, args.rounds)
        good = ratio <= case.most_ratio
        failed |= not good
        print(
            f"{case.name:>20}: {took:8.1f} us (promised {case.most_us:.0f}), {ratio:5.1f}x orjson.loads "
            f"(promised {case.most_ratio:.0f}x) {'' if good else '  ABOVE'}"
        )
    growth, took = measure_growth(args.rounds)
    failed |= growth > _MOST_GROWTH
    print(
        f"{LARGE.name:>20}: {took:8.1f} us, {growth:5.2f}x that of 16 (promised {_MOST_GROWTH:.0f}x) "
        f"{'' if growth <= _MOST_GROWTH else '  ABOVE'}"
    )
    if args.check and failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
