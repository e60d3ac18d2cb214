"""Requests bound to a replica when they come against those that wait in the gateway, through a real Envoy.

    .venv/bin/python -m benchmarks.late_live [--trace FILE] [--limit 700] [--rounds 1] [--only high] [--check]

The same arrivals are played bound at arrival and bound late, in turns, through one gateway and through four that
share through a real Redis, to four emulated engines. The arrivals are those of a public trace (Mooncake JSONL: by
--trace or KVSTEER_TRACE), else generated. Prompts and answers are a tenth as long as there, and so is what an engine
does in a second and holds in its cache: queues are the same, while the machine's CPU is hardly used. Gateways that
wait for CPU see the engines late and let them run dry: load average and the idle share say so. On a busy machine take
--slow 3: engines and arrivals are so many times slower, and gateways have less to do in a second. Promised:

    high load   mean TTFT at most 0.87 times, P99 at most 1.1 times that of binding at arrival
    overload    mean TTFT at most 0.5 times
    idle        median TTFT at most 1.05 times and 5 ms
    always      no request fails; while something waits, replicas stand idle in vain at most 2 % of the time: by the
                engines' own word (looked at four times a second) less the time in which, as gateways know, whatever
                waits is computed sooner by waiting for a busy one. All of it is shown beside

The first tenth of the arrivals is left out. Time to first token begins when the client sends.
"""

import argparse
import asyncio
import os
import re
import statistics
import sys
import time
import urllib.request
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import aiohttp
import orjson

from extproc.demo.drive import Outcome, Report, ask
from extproc.demo.stack import Stack, StackSettings
from extproc.demo.workload import Arrival, text
from extproc.sim.generators import generated
from extproc.sim.jobs import BLOCK_TOKENS, Row
from extproc.sim.traces import read_trace

#: How much shorter everything is than in facts of large models: tokens, and what an engine does in a second.
_SCALE = 10
_SPEED = 20_000 / _SCALE
_ENGINE = (
    f"--prefill-speed {_SPEED:g} --step-budget {8192 // _SCALE} --kv-tokens {3_000_000 // _SCALE} --max-running 128 "
    "--step-ms 10 --sequence-ms 0.05 --tokens-per-chunk 16"
).split()
_CAPACITY: dict[str, float] = {
    "prefill_speed": _SPEED,
    "kv_tokens": 3_000_000 // _SCALE,
    "max_running": 128,
    "output_tokens": 350 // _SCALE,
}
#: Bytes of text that stand for a block of the trace; four make a token of the emulated engines.
_BLOCK_BYTES = 4 * BLOCK_TOKENS // _SCALE
#: How much faster than its stamps the trace is played. Without attention's growing cost, and with caches that are
#: empty at first, 1.8 loads four replicas about as 1.4 does with it; at 2.5 more comes than they compute.
_SPEEDS = {"high": 1.8, "overload": 2.5}
#: Seconds that one request may take.
_LONGEST = 300.0
_IDLE_REQUESTS, _IDLE_GAP = 80, 0.7
_MEAN, _P99, _OVERLOAD, _IDLE_SHARE = 0.87, 1.1, 0.5, 0.02
_IDLE, _IDLE_SECONDS = 1.05, 0.005
#: Seconds between two looks at what waits and what the engines have to do.
_LOOK = 0.25
_HELD = re.compile(r"^kvsteer_held_requests\{.*\} ([1-9].*)$", re.M)
_HORIZON = re.compile(r"^kvsteer_late_binding_horizon_seconds\{.*\} (\S+)$", re.M)
_SERIES = re.compile(r'^kvsteer_held_replica_seconds_total\{.*state="(\w+)".*\} (\S+)$', re.M)


class Run(NamedTuple):
    """One run: seconds; requests that failed; shares of the replicas' time in which they had no prompt while
    something waited: `idle` as engines tell, `spared` as gateways know, since nothing that waits would be computed
    sooner there, and `wanted` as they know, though it would; and the horizon meanwhile, in seconds (median)."""

    mean: float
    p50: float
    p90: float
    p99: float
    hits: float
    failures: float
    idle: float
    spared: float
    wanted: float
    horizon: float

    @property
    def in_vain(self) -> float:
        """The share in which replicas were idle for nothing: news were late, or a request was kept from them."""
        return max(self.idle - self.spared, 0.0)


class Looks:
    """What was seen of the replicas while something waited."""

    def __init__(self, stack: Stack) -> None:
        self._gateways = [f"http://127.0.0.1:{admin}/metrics" for _, admin in stack.gateway_ports]
        self._engines = [f"http://{address}/_truth" for address in stack.replicas]
        self.seen = self.idle = 0
        self.horizons = [0.0]  # the longest of all gateways, at each look

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(_LOOK)
            pages = await asyncio.gather(*(_get(session, url) for url in self._gateways))
            if any(_HELD.search(page) for page in pages):
                self.horizons.append(max(float(said) for page in pages for said in _HORIZON.findall(page)))
                for said in await asyncio.gather(*(_get(session, url) for url in self._engines)):
                    self.seen += 1
                    self.idle += orjson.loads(said)["prompt_tokens_outstanding"] <= 0

    @property
    def share(self) -> float:
        """Of the time in which something waited, how much the replicas had no prompt to compute."""
        return self.idle / self.seen if self.seen else 0.0


async def _get(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(url) as answer:
        return await answer.text()


def rows(trace: str | None, limit: int) -> list[Row]:
    """The workload as rows: those of a trace, else chats that load the replicas about as much."""
    if trace is not None:
        return list(islice(read_trace(Path(trace)).rows(), limit))
    made = generated("documents", {"requests": limit, "rate": 3.4, "seed": 5})
    return list(islice(made.rows(), limit))


def arrivals(of: Iterable[Row], speed: float) -> list[Arrival]:
    """Rows as requests: each block of a prompt is text that is the same wherever the block is."""
    made = []
    for number, row in enumerate(of):
        size = max(4 * row.tokens // _SCALE, 16)
        words = "".join(
            text(Random(block), _BLOCK_BYTES)[:_BLOCK_BYTES].ljust(_BLOCK_BYTES) for block in row.blocks
        )
        body = {
            "model": "demo",
            "messages": [{"role": "user", "content": words[:size]}],
            "max_tokens": max(row.output // _SCALE, 1),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        made.append(Arrival(at=row.at / speed, session=number, turn=0, body=body))
    return made


def idle_arrivals() -> list[Arrival]:
    """Short prompts, one after the other."""
    spread = [
        Row(i * _IDLE_GAP, 1000 + 37 * i, 200, [10**6 + 10 * i + k for k in range(8)])
        for i in range(_IDLE_REQUESTS)
    ]
    return arrivals(spread, 1.0)


def stack_of(gateways: int, late: bool, slow: float = 1.0) -> StackSettings:
    """Four engines, so many times slower than is said above, behind so many gateways, which see first tokens."""
    capacity = {**_CAPACITY, "prefill_speed": _SPEED / slow}
    pool: dict[str, Any] = {"capacity": capacity, "late_binding": late}
    return StackSettings(
        gateways=gateways,
        engine=[*_ENGINE, "--speed", f"{1 / slow:g}"],
        pool=pool,
        gateway={"feedback": {"observer": True}},
        redis_url=None if gateways > 1 else "",
    )


def play(workload: list[Arrival], gateways: int, late: bool, slow: float = 1.0) -> Run:
    """Play arrivals through a fresh stack."""
    with Stack(stack_of(gateways, late, slow)) as stack:
        looks = Looks(stack)
        return figures(asyncio.run(send(stack.url, workload, looks if late else None)), stack, looks)


async def send(url: str, workload: list[Arrival], looks: Looks | None = None) -> list[Outcome]:
    """Send every request at its time; what became of them, in the same order."""
    timeout = aiohttp.ClientTimeout(total=_LONGEST)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        began = time.monotonic() + 0.2

        async def one(arrival: Arrival) -> Outcome:
            payload = orjson.dumps(arrival.body)
            await asyncio.sleep(began + arrival.at - time.monotonic())
            return await ask(session, url, payload)

        watching = asyncio.ensure_future(looks.run(session)) if looks is not None else None
        outcomes = list(await asyncio.gather(*map(one, workload)))
        if watching is not None:
            watching.cancel()
        return outcomes


def figures(outcomes: list[Outcome], stack: Stack, looks: Looks) -> Run:
    """What a run showed, without the first tenth of its requests."""
    kept = Report(policy="", outcomes=outcomes[len(outcomes) // 10 :])
    seconds = {"busy": 0.0, "idle": 0.0, "spared": 0.0}
    for number in range(stack.settings.gateways):
        for state, value in _SERIES.findall(_metrics(stack, number)):
            seconds[state] += float(value)
    whole = sum(seconds.values()) or 1.0
    return Run(
        kept.mean_ttft,
        kept.ttft_at(0.5),
        kept.ttft_at(0.9),
        kept.ttft_at(0.99),
        kept.hit_share,
        sum(1 for outcome in outcomes if outcome.failure),
        looks.share,
        seconds["spared"] / whole,
        seconds["idle"] / whole,
        statistics.median(looks.horizons),
    )


def _metrics(stack: Stack, number: int) -> str:
    url = f"http://127.0.0.1:{stack.gateway_ports[number][1]}/metrics"
    with urllib.request.urlopen(url, timeout=5.0) as answer:
        return str(answer.read().decode())


def compare(name: str, workload: list[Arrival], gateways: int, rounds: int, slow: float = 1.0) -> list[str]:
    """Play both ways in turns, print them, and say what was missed."""
    seen: dict[bool, list[Run]] = {False: [], True: []}
    for number in range(rounds):
        for late in (False, True) if number % 2 == 0 else (True, False):
            run = play(workload, gateways, late, slow)
            seen[late].append(run)
            print(
                f"{name:>9} {gateways} gateways, {'late      ' if late else 'at arrival'}: TTFT mean {run.mean:.3f}  "
                f"P50 {run.p50:.3f}  P90 {run.p90:.3f}  P99 {run.p99:.3f} s  hit share {run.hits:.3f}  "
                f"failures {run.failures}  idle while held {run.idle:.3f}, in vain {run.in_vain:.3f} (known "
                f"{run.wanted:.3f})  horizon {run.horizon:.2f} s",
                flush=True,
            )
    early, bound = mean_of(seen[False]), mean_of(seen[True])
    ratios = bound.mean / early.mean, bound.p99 / early.p99
    print(f"{name:>9} {gateways} gateways: mean {ratios[0]:.2f}, P99 {ratios[1]:.2f} times", flush=True)
    return [f"{name}, {gateways} gateways: {what}" for what in missed(name, early, bound)]


def mean_of(runs: list[Run]) -> Run:
    """The mean of each figure."""
    return Run(*(statistics.fmean(column) for column in zip(*runs, strict=True)))


def missed(name: str, early: Run, late: Run) -> list[str]:
    """Promises that did not hold."""
    checks = {
        "high": [
            (late.mean <= _MEAN * early.mean, f"mean {late.mean / early.mean:.2f} times"),
            (late.p99 <= _P99 * early.p99, f"P99 {late.p99 / early.p99:.2f} times"),
        ],
        "overload": [(late.mean <= _OVERLOAD * early.mean, f"mean {late.mean / early.mean:.2f} times")],
        "idle": [
            (
                late.p50 <= _IDLE * early.p50 + _IDLE_SECONDS,
                f"median {late.p50:.3f} against {early.p50:.3f} s",
            )
        ],
    }
    always = [
        (not (early.failures or late.failures), "requests failed"),
        (
            late.in_vain <= _IDLE_SHARE or name == "idle",
            f"replicas idle in vain for {late.in_vain:.3f} of the time something waited",
        ),
    ]
    return [what for held, what in checks[name] + always if not held]


def main() -> None:
    """Run and print; with --check exit 1 when a promise is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", default=os.environ.get("KVSTEER_TRACE"))
    parser.add_argument("--limit", type=int, default=700, help="requests of a run")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--slow", type=float, default=1.0, help="engines and arrivals so many times slower")
    parser.add_argument("--gateways", type=int, action="append", help="1 and 4, if not given")
    parser.add_argument("--only", choices=["idle", *_SPEEDS], action="append")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    failed: list[str] = []
    workload = rows(args.trace, args.limit)
    for name in args.only or ["idle", *_SPEEDS]:
        sent = idle_arrivals() if name == "idle" else arrivals(workload, _SPEEDS[name] / args.slow)
        for gateways in args.gateways or (1, 4):
            failed += compare(name, sent, gateways, args.rounds, args.slow)
    print("missed: " + "; ".join(failed) if failed else "every promise held")
    if args.check and failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
