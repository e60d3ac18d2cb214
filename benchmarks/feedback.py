"""What is learned from outcomes, against the same arrivals without: caches and tokens that are not as engines say.

    .venv/bin/python -m benchmarks.feedback [--seconds 300] [--every 60] [--seed 7] [--apart] [--check]

A gateway that learns and one with `feedback.source: off`, each behind a real Envoy of its own and before four
emulated engines of its own, meet the same chats at the same moments (one after the other with --apart). The engines'
tokenizer makes a token of 2.7 bytes where 4 are believed at the start, their caches hold a quarter of what their
metrics claim, and the first of them drops its cache every minute. Promised, over the last two of five minutes where
not said otherwise: nine of ten estimates of a prompt's tokens within 5 %; of the tokens predicted to be cached 90 %
were, and of those predicted for the dropping replica from 10 s after a drop on; and over the whole run a mean time
to first token ahead of the gateway that learns nothing.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import aiohttp

from extproc.demo.drive import Report, drive
from extproc.demo.stack import Stack, StackSettings
from extproc.demo.workload import Arrival, Shape, arrivals

_ENGINE = ["--prefill-speed", "8000", "--bytes-per-token", "2.7", "--tokens-per-chunk", "4"]
_ENGINE += ["--kv-tokens", "65536", "--reported-kv-tokens", "262144"]
_POOL = {"capacity": {"prefill_speed": 8000, "output_tokens": 40}}
_TURNS, _THINK = (3, 8), (4.0, 20.0)
_MOST_OFF, _LEAST_PRECISION, _FOLLOWS = 0.05, 0.9, 10.0
#: Share of the run, at its end, that shows what was learned: two of five minutes.
_JUDGED = 0.4
#: Longest that an exchange waits to hear how it ended, and some more; and seconds between two looks at the replicas.
_PATIENCE, _LOOK = 3.0, 0.5


class Drops(NamedTuple):
    """A replica that drops its cache at `began` and every so many seconds after, by the wall clock."""

    replica: str
    began: float
    every: float

    def since(self, at: float) -> float:
        """Seconds from the last drop to this moment."""
        return (at - self.began) % self.every


class Prediction(NamedTuple):
    """What a decision said of a prompt, in tokens, and what was true; `ttft` in seconds, 0 where it is not known."""

    at: float
    replica: str
    tokens: float
    true_tokens: float
    cached: float
    true_cached: float
    ttft: float = 0.0


class Run(NamedTuple):
    """One gateway's run: what clients saw, what was predicted, how its replicas' caches are seen at the end, and how
    long after a drop (s) it said that the cache is empty."""

    report: Report
    predictions: list[Prediction]
    drops: Drops
    replicas: list[dict[str, Any]]
    noticed: list[float]


class _Stack(Stack):
    """Keeps every decision record of a run."""

    def configuration(self, number: int) -> dict[str, Any]:
        made = super().configuration(number)
        made["admin"]["decisions"] = 100_000
        return made


def stack_of(*, learns: bool) -> StackSettings:
    """Four replicas behind a gateway that learns from outcomes or does not."""
    source = {"feedback": {"source": "trailers" if learns else "off"}}
    return StackSettings(engine=_ENGINE, redis_url="", pool=_POOL, gateway=source)


class Player:
    """Plays a workload through one stack and looks on."""

    def __init__(self, name: str, stack: Stack, workload: Sequence[Arrival]) -> None:
        self._name, self._stack, self._workload = name, stack, workload
        self._admin = f"http://127.0.0.1:{stack.gateway_ports[0][1]}"
        self._done = 0
        self._emptied = 0
        self._noticed: list[float] = []

    async def play(self, every: float) -> Run:
        """The first replica drops its cache every so many seconds."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
            drops = await _begin_drops(session, self._stack.replicas[0], every)
            watch = asyncio.create_task(self._watch(session, drops))
            report = await drive(self._stack.url, self._workload, self._name, self._count)
            await asyncio.sleep(_PATIENCE)
            watch.cancel()
            records = (await _get(session, f"{self._admin}/decisions?last=100000"))["decisions"]
            replicas = (await _get(session, f"{self._admin}/replicas"))["replicas"]
        return Run(report, predictions_of(records, report), drops, replicas, self._noticed)

    def _count(self) -> None:
        self._done += 1
        if self._done % 100 == 0:
            print(
                f"   {self._name}: {self._done} of {len(self._workload)} requests",
                file=sys.stderr,
                flush=True,
            )

    async def _watch(self, session: aiohttp.ClientSession, drops: Drops) -> None:
        """Note when the gateway says that the dropping replica's cache is empty."""
        while True:
            rows = (await _get(session, f"{self._admin}/replicas"))["replicas"]
            cache = next(row["cache"] for row in rows if row["replica"] == drops.replica)
            if cache is not None and cache["emptied"] > self._emptied:
                self._emptied = cache["emptied"]
                self._noticed.append(drops.since(time.time()))
            await asyncio.sleep(_LOOK)


async def _begin_drops(session: aiohttp.ClientSession, replica: str, every: float) -> Drops:
    async with session.post(f"http://{replica}/_control", json={"drop_cache": {"every": every}}) as answer:
        answer.raise_for_status()
    return Drops(replica, time.time(), every)


async def _get(session: aiohttp.ClientSession, url: str) -> Any:
    async with session.get(url) as answer:
        return json.loads(await answer.read())


def predictions_of(records: Iterable[dict[str, Any]], report: Report) -> list[Prediction]:
    """Decisions with what was true of them; without feedback the gateway does not know, and there are none."""
    found = []
    for record in records:
        asked, ending = record["request"], record["ending"]
        if ending is not None and ending["cached_tokens"] is not None and ending["prompt_tokens"]:
            said = (asked["prompt_tokens"], ending["prompt_tokens"], asked["cached_tokens_expected"])
            found.append(Prediction(record["at"], record["choice"], *said, ending["cached_tokens"]))
    return sorted(found)


def precision(predictions: Iterable[Prediction]) -> float:
    """Of the tokens predicted to be cached, the share that was; 1 when none was predicted."""
    predictions = list(predictions)
    said = sum(p.cached for p in predictions)
    return sum(min(p.cached, p.true_cached) for p in predictions) / said if said else 1.0


def off(predictions: Iterable[Prediction], share: float) -> float:
    """The error of token estimates that this share of them does not exceed."""
    errors = sorted(abs(p.tokens / p.true_tokens - 1) for p in predictions)
    return errors[int(share * (len(errors) - 1))] if errors else float("inf")


async def both(workload: Sequence[Arrival], every: float, *, apart: bool) -> tuple[Run, Run]:
    """Play it with feedback and without."""
    if apart:
        runs = []
        for name, learns in (("learning", True), ("off", False)):
            with _Stack(stack_of(learns=learns)) as stack:
                runs.append(await Player(name, stack, workload).play(every))
        return runs[0], runs[1]
    with _Stack(stack_of(learns=True)) as one, _Stack(stack_of(learns=False)) as other:
        players = Player("learning", one, workload), Player("off", other, workload)
        learning, without = await asyncio.gather(*(player.play(every) for player in players))
        return learning, without


def judge(learning: Run, without: Run, seconds: float) -> list[str]:
    """Print the figures; returns what was promised and missed."""
    for name, run in (("learning", learning), ("off", without)):
        report = run.report
        print(
            f"{name:>8}: mean TTFT {report.mean_ttft * 1000:.0f} ms   P90 {report.ttft_at(0.9) * 1000:.0f} ms   "
            f"hit share {report.hit_share:.3f}   requests {len(report.outcomes)}   failures {report.failures}"
        )
    end = learning.predictions[-1].at if learning.predictions else 0.0
    late = [p for p in learning.predictions if p.at > end - _JUDGED * seconds]
    drops = learning.drops
    dropping = [p for p in late if p.replica == drops.replica]
    after = precision(p for p in dropping if drops.since(p.at) >= _FOLLOWS)
    nine, half, right = off(late, 0.9), off(late, 0.5), precision(late)
    print(f"   estimates of tokens: half within {half:.2%}, nine of ten within {nine:.2%}")
    print(
        f"   predicted cached tokens that were: {right:.3f} ({precision(learning.predictions):.3f} over the whole "
        f"run); of the dropping replica {precision(dropping):.3f}, from {_FOLLOWS:.0f} s after a drop {after:.3f}"
    )
    print("   drops noticed after " + ", ".join(f"{seconds:.1f} s" for seconds in learning.noticed))
    for row in learning.replicas:
        print(f"   {row['replica']}: {json.dumps(row['cache'])}")
    ahead = without.report.mean_ttft / learning.report.mean_ttft - 1
    print(f"   mean TTFT ahead by {ahead:.1%}   load average {os.getloadavg()[0]:.1f}")
    bars = (
        (f"token estimates off by {nine:.1%}", nine > _MOST_OFF),
        (f"precision {right:.3f}", right < _LEAST_PRECISION),
        (f"precision {after:.3f} of the dropping replica", after < _LEAST_PRECISION),
        (f"mean TTFT ahead by {ahead:.1%}", ahead <= 0),
        ("failed requests", bool(learning.report.failures or without.report.failures)),
    )
    return [text for text, missed in bars if missed]


def main() -> None:
    """Run and print; with --check exit 1 when a promise is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--every", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=0.7, help="new chats a second")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    shape = Shape(
        seconds=args.seconds, sessions_per_second=args.rate, turns=_TURNS, think=_THINK, seed=args.seed
    )
    missed = judge(*asyncio.run(both(arrivals(shape), args.every, apart=args.apart)), args.seconds)
    print("missed: " + "; ".join(missed) if missed else "every promise held")
    if args.check and missed:
        sys.exit(1)


if __name__ == "__main__":
    main()
