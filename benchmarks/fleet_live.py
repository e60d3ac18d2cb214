"""Four gateways behind one real Envoy beside one: what sharing keeps, and what going alone loses.

    .venv/bin/python -m benchmarks.fleet_live [--seconds 40] [--rounds 1] [--check]

The same chats (several turns, shared beginnings) through one gateway, four that share through a real Redis, and
four that do not; Envoy spreads requests over gateways as it likes, so a chat's turns meet different ones. Then 400
requests at once through four gateways to four equal idle replicas. Promised: hit share at least 97 % of one's, the
busiest replica's tokens over the mean's at most 1.1 times one gateway's, and the burst's busiest at most 1.25 times
the mean.
"""

import argparse
import asyncio
import statistics
import sys
from collections import Counter
from typing import Any, NamedTuple

import aiohttp
import orjson

from extproc.demo.drive import Outcome, Report, ask, drive
from extproc.demo.stack import Stack, StackSettings
from extproc.demo.workload import Arrival, Shape, arrivals

_ENGINE = ["--prefill-speed", "8000", "--kv-tokens", "120000"]
_POOL: dict[str, Any] = {"capacity": {"prefill_speed": 8000, "output_tokens": 40}}
#: Requests of the burst, and bytes of each prompt.
_BURST, _BURST_BYTES = 400, 800
_LEAST_HITS, _MOST_SPREAD, _MOST_BURST = 0.97, 1.1, 1.25
_GATEWAYS = 4


class Figures(NamedTuple):
    """What one run showed: share of prompt tokens found in caches, and max/mean of tokens over replicas."""

    hits: float
    spread: float
    mean_ttft: float
    failures: float


def stack_of(gateways: int, share: bool) -> StackSettings:
    """Four replicas behind so many gateways."""
    return StackSettings(gateways=gateways, engine=_ENGINE, pool=_POOL, redis_url=None if share else "")


def figures(report: Report) -> Figures:
    """The figures of a report."""
    tokens: Counter[str] = Counter()
    for o in report.outcomes:
        tokens[o.replica] += o.prompt_tokens - o.cached_tokens + o.output_tokens
    spread = max(tokens.values()) / statistics.fmean(tokens.values())
    return Figures(report.hit_share, spread, report.mean_ttft, report.failures)


def chats(gateways: int, share: bool, workload: list[Arrival]) -> Figures:
    """Play the chats through a fresh stack."""
    with Stack(stack_of(gateways, share)) as stack:
        return figures(asyncio.run(drive(stack.url, workload, "charged_cost")))


async def burst(stack: Stack) -> list[Outcome]:
    """All at once."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one(number: int) -> Outcome:
            text = f"{number} " + "word " * (_BURST_BYTES // 5)
            body = {"model": "demo", "max_tokens": 16, "stream": True}
            return await ask(
                session, stack.url, orjson.dumps({**body, "messages": [{"role": "user", "content": text}]})
            )

        return list(await asyncio.gather(*(one(number) for number in range(_BURST))))


def burst_spread(share: bool) -> tuple[float, int]:
    """Max/mean of requests over replicas, and failures."""
    with Stack(stack_of(_GATEWAYS, share)) as stack:
        outcomes = asyncio.run(burst(stack))
    served = Counter(o.replica for o in outcomes if not o.failure)
    return max(served.values()) / (sum(served.values()) / 4), sum(1 for o in outcomes if o.failure)


def main() -> None:
    """Run and print; with --check exit 1 when a promise is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    shapes = {"one gateway": (1, True), "four, shared": (_GATEWAYS, True), "four, alone": (_GATEWAYS, False)}
    seen: dict[str, list[Figures]] = {name: [] for name in shapes}
    for seed in range(args.rounds):
        workload = arrivals(Shape(seconds=args.seconds, seed=7 + seed))
        for name, (gateways, share) in shapes.items():
            seen[name].append(chats(gateways, share, workload))
    mean = {name: Figures(*map(statistics.fmean, zip(*runs, strict=True))) for name, runs in seen.items()}
    for name, run in mean.items():
        print(
            f"{name:>13}: hit share {run.hits:.3f}   tokens max/mean {run.spread:.2f}   "
            f"mean TTFT {run.mean_ttft * 1000:.0f} ms   failures {run.failures:.0f}"
        )
    one, four = mean["one gateway"], mean["four, shared"]
    together, alone = burst_spread(share=True), burst_spread(share=False)
    print(
        f"   burst of {_BURST}: max/mean {together[0]:.2f} shared, {alone[0]:.2f} alone; failures {together[1]}"
    )
    failed = [
        text
        for text, bad in (
            (f"hit share {four.hits / one.hits:.3f} of one gateway's", four.hits < _LEAST_HITS * one.hits),
            (f"spread {four.spread / one.spread:.2f} times one's", four.spread > _MOST_SPREAD * one.spread),
            (f"burst {together[0]:.2f}", together[0] > _MOST_BURST),
            ("failed requests", bool(one.failures or four.failures or together[1])),
        )
        if bad
    ]
    print("missed: " + "; ".join(failed) if failed else "every promise held")
    if args.check and failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
