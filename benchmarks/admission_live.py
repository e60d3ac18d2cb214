"""What admission promises, through a real Envoy and Redis: no collapse above capacity, guarantees, long requests.

    python -m benchmarks.admission_live [overload | tenants | long | narrow] [--seconds 300] [--gateways 1 4]

Two emulated engines compute 1,000 prompt tokens a second each, a twentieth of what large models' do, so that requests
are few and the machine's CPU is hardly used. Arrivals are Poisson; a twentieth of the prompts is 16 times as long.
The runs of `overload` are played at the same time, each through a stack of its own: what else the machine has to do
then disturbs all alike.
Exit status: 0 when everything held, 1 when something did not.
"""

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import chain, count
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import aiohttp
import orjson

from benchmarks.admission import run
from extproc.demo.drive import Outcome, ask
from extproc.demo.stack import Stack, StackSettings

_SPEED, _REPLICAS = 1000, 2
#: Tokens of prompts and answers, and the part of the prompts that is long.
_SHORT, LONG, _LONG_PART, _OUTPUT = 100, 1600, 0.05, 16
#: Requests a second at which prompts take eight tenths of the replicas' time.
LIMIT = 0.8 * _REPLICAS * _SPEED / ((1 - _LONG_PART) * _SHORT + _LONG_PART * LONG)
_ENGINE = (
    f"--prefill-speed {_SPEED} --step-budget 400 --kv-tokens 60000 --max-running 64 --tokens-per-chunk 16 "
    "--step-ms 10 --sequence-ms 0.05"
).split()
_CAPACITY = {"prefill_speed": _SPEED, "kv_tokens": 60_000, "max_running": 64, "output_tokens": _OUTPUT}
#: Tokens in flight that a replica is given to bear: four long prompts, or what it computes in six seconds.
_BEARS = 6400
#: Part of a run that is left out at its start, and seconds after which a request counts as lost.
_WARM, _LONGEST = 0.2, 300.0
#: Seconds between two looks at the gateways' memory, and what it may grow from the second fifth of a run to the last:
#: as a share, and bytes that are noise.
_LOOK, _GROWTH, _NOISE = 1.0, 0.03, 2e6
_RECORDS = 100
#: Statuses that admission answers with.
REFUSED = ("status 429", "status 503")

_numbers = count(1)


class Sent(NamedTuple):
    """A request: seconds after the start, whose it is, and tokens of its prompt."""

    at: float
    tenant: str
    tokens: int


class Done(NamedTuple):
    """What became of one."""

    sent: Sent
    outcome: Outcome

    @property
    def used(self) -> int:
        """Tokens that it was served."""
        return self.outcome.prompt_tokens + self.outcome.output_tokens if not self.outcome.failure else 0


def arrivals(
    rate: float, seconds: float, seed: int, tenant: str = "a", part: float = _LONG_PART
) -> Iterator[Sent]:
    """Poisson arrivals, `rate` a second, of short prompts and of `part` long ones."""
    rng, at = Random(seed), 0.0
    while (at := at + rng.expovariate(rate)) < seconds:
        yield Sent(at, tenant, LONG if rng.random() < part else round(rng.uniform(0.2, 1.8) * _SHORT))


def stack_of(gateways: int, admission: dict[str, Any] | None) -> StackSettings:
    """Two engines behind so many gateways; what is admitted is told by the team's header."""
    chosen = {
        "mode": "on",
        "identity": {"source": "header", "header": "x-team"},
        "budget": {"replica_tokens": _BEARS, "cap": _REPLICAS * _BEARS},
        **(admission or {}),
    }
    return StackSettings(
        replicas=_REPLICAS,
        gateways=gateways,
        engine=_ENGINE,
        pool={"capacity": _CAPACITY},
        gateway={"feedback": {"source": "body"}, **({"admission": chosen} if admission is not None else {})},
    )


class Played(NamedTuple):
    """What became of all requests, in order, and the memory meanwhile of the largest gateway: bytes, by look."""

    done: list[Done]
    memory: list[int]


def play(sent: Iterable[Sent], gateways: int, admission: dict[str, Any] | None) -> list[Done]:
    """Send all through a fresh stack; what became of them, in order."""
    return watched(sent, gateways, admission).done


class FewRecords(Stack):
    """A stack whose gateways keep few records of decisions, so that these are full long before memory is compared."""

    def configuration(self, number: int) -> dict[str, Any]:
        """As of any stack."""
        made = super().configuration(number)
        return made | {"admin": made["admin"] | {"decisions": _RECORDS}}


def watched(sent: Iterable[Sent], gateways: int, admission: dict[str, Any] | None) -> Played:
    """The same, with the gateways' memory."""
    with FewRecords(stack_of(gateways, admission)) as stack:
        if admission is not None:
            time.sleep(2.5)  # loads are read each second: by then every gateway knows what the fleet bears
        pids = [child.pid for name, child in stack.children.items() if name.startswith("gateway")]
        return asyncio.run(_play(stack.url, sorted(sent), pids))


async def _play(url: str, sent: list[Sent], pids: list[int]) -> Played:
    memory: list[int] = []
    watching = asyncio.ensure_future(_watch(pids, memory))
    done = await _send(url, sent)
    watching.cancel()
    return Played(done, memory)


async def _watch(pids: list[int], seen: list[int]) -> None:
    while True:
        seen.append(max(map(resident, pids)))
        await asyncio.sleep(_LOOK)


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def _send(url: str, sent: list[Sent]) -> list[Done]:
    timeout = aiohttp.ClientTimeout(total=_LONGEST)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        began = time.monotonic() + 0.2

        async def one(each: Sent) -> Done:
            payload = orjson.dumps(_body(each))
            await asyncio.sleep(began + each.at - time.monotonic())
            return Done(each, await ask(session, url, payload, {"x-team": each.tenant}))

        return list(await asyncio.gather(*map(one, sent)))


def _body(sent: Sent) -> dict[str, Any]:
    """A prompt that nobody else has."""
    words = f"{next(_numbers)} ".ljust(20, "x") + "y" * (4 * sent.tokens - 20)
    return {
        "model": "demo",
        "messages": [{"role": "user", "content": words}],
        "max_tokens": _OUTPUT,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def errors(done: list[Done]) -> int:
    """Requests that failed otherwise than by being refused."""
    return sum(1 for each in done if each.outcome.failure and each.outcome.failure not in REFUSED)


def goodput(done: list[Done], seconds: float) -> float:
    """Tokens a second served to requests that came after the warm-up and had their first token before the end."""
    kept = [each for each in _warm(done, seconds) if each.sent.at + (each.outcome.ttft or 0.0) < seconds]
    return sum(each.used for each in kept) / (seconds * (1 - _WARM))


def p99(done: list[Done], seconds: float) -> float:
    """P99 of the time to first token of those that were served, seconds."""
    served = sorted(each.outcome.ttft for each in _warm(done, seconds) if each.outcome.ttft is not None)
    return served[int(len(served) * 0.99)] if served else float("inf")


def _warm(done: list[Done], seconds: float) -> list[Done]:
    return [each for each in done if each.sent.at >= _WARM * seconds]


def overload(seconds: float, gateways: int) -> list[tuple[str, bool]]:
    """Twice what the fleet can do, with admission and without; and what it does below that."""
    admission = {"queue": {"wait": "2s"}, "others": {"share": 1, "waiting": 10_000}}
    runs = {
        "0.9x": (0.9 * LIMIT, 1, None),
        "1x": (LIMIT, 2, None),
        "2x without": (2 * LIMIT, 3, None),
        "2x admitted": (2 * LIMIT, 3, admission),
    }
    with ProcessPoolExecutor(len(runs)) as processes:
        going = {
            name: processes.submit(watched, list(arrivals(rate, seconds, seed)), gateways, chosen)
            for name, (rate, seed, chosen) in runs.items()
        }
        played = {name: each.result() for name, each in going.items()}
    for name, (done, memory) in played.items():
        refused = sum(each.outcome.failure in REFUSED for each in done)
        print(
            f"  {name:12} goodput {goodput(done, seconds):7,.0f} tokens/s  P99 TTFT {p99(done, seconds):6.2f} s  "
            f"refused {refused} of {len(done)}  errors {errors(done)}  memory {max(memory) / 1e6:.1f} MB",
            flush=True,
        )
    done, memory = played["2x admitted"]
    kept = goodput(done, seconds) / goodput(played["1x"].done, seconds)
    slower = p99(done, seconds) / p99(played["0.9x"].done, seconds)
    before, after = grown(memory)
    return [
        (f"goodput at 2x is {kept:.2f} of that at 1x (at least 0.90)", kept >= 0.9),
        (f"P99 TTFT at 2x is {slower:.2f} of that at 0.9x (at most 2)", slower <= 2.0),
        ("nobody has an error but by being refused", errors(done) == 0),
        (
            f"memory goes from {before / 1e6:.1f} to {after / 1e6:.1f} MB",
            after <= before * (1 + _GROWTH) + _NOISE,
        ),
    ]


def grown(memory: list[int]) -> tuple[float, float]:
    """The mean of the second fifth of the looks, and of the last."""
    part = max(len(memory) // 5, 1)
    return statistics.fmean(memory[part : 2 * part] or memory), statistics.fmean(memory[-part:])


TENANTS = [{"name": "a", "ids": ["a"], "share": 0.5}, {"name": "b", "ids": ["b"], "share": 0.3}]


def tenants(seconds: float, gateways: int) -> list[tuple[str, bool]]:
    """Guaranteed 50, 30 and 0 %; all want everything, but one that sleeps in the middle third."""
    third = seconds / 3
    awake = (each for each in arrivals(1.5 * LIMIT, seconds, 1, "a", 0.0) if not third <= each.at < 2 * third)
    everybody = chain(
        awake,
        arrivals(1.5 * LIMIT, seconds, 2, "b", 0.0),
        arrivals(3 * LIMIT, seconds, 3, "c", 0.0),
    )
    done = play(everybody, gateways, {"queue": {"wait": "2s"}, "tenants": TENANTS})
    shares = {name: _shares(done, *_part(name, third)) for name in ("a asleep", "all")}
    for name, found in shares.items():
        print(f"  {name:9} " + "  ".join(f"{tenant} {share:.3f}" for tenant, share in sorted(found.items())))
    return [
        (f"a gets {shares['all'].get('a', 0.0):.3f} (at least 0.475)", shares["all"].get("a", 0.0) >= 0.475),
        (f"b gets {shares['all'].get('b', 0.0):.3f} (at least 0.285)", shares["all"].get("b", 0.0) >= 0.285),
        ("while a sleeps the others use all", _rate(done, "a asleep", third) >= 0.9 * _rate(done, "all", third)),
        ("nobody has an error but by being refused", errors(done) == 0),
    ]  # fmt: skip


def _part(name: str, third: float) -> tuple[float, float]:
    """From when to when requests' first tokens count; two seconds after a change everybody has its part."""
    return (third + 2, 2 * third) if name == "a asleep" else (2 * third + 2, 3 * third)


def _served(done: list[Done], since: float, until: float) -> dict[str, int]:
    sums: dict[str, int] = {}
    for each in done:
        if each.outcome.ttft is not None and since <= each.sent.at + each.outcome.ttft < until:
            sums[each.sent.tenant] = sums.get(each.sent.tenant, 0) + each.used
    return sums


def _shares(done: list[Done], since: float, until: float) -> dict[str, float]:
    sums = _served(done, since, until)
    return {tenant: tokens / sum(sums.values()) for tenant, tokens in sums.items()}


def _rate(done: list[Done], name: str, third: float) -> float:
    since, until = _part(name, third)
    return sum(_served(done, since, until).values()) / (until - since)


def narrow(seconds: float, gateways: int) -> list[tuple[str, bool]]:
    """As `long`, in a budget of four long requests, so that a gateway's even part has no room for one."""
    most = 4 * (LONG + _OUTPUT)
    return long(seconds, gateways, {"replica_tokens": most // _REPLICAS, "cap": most})


def long(seconds: float, gateways: int, budget: dict[str, Any] | None = None) -> list[tuple[str, bool]]:
    """Long requests, more than their share has room for, among a flood of short ones of the same tenant."""
    flood = arrivals(4 * LIMIT, seconds, 1, "a", 0.0)
    some = arrivals(0.6 * _SPEED * _REPLICAS / LONG, seconds, 2, "a", 1.0)
    queue = {"wait": "10s", "long": 1000}
    admission: dict[str, Any] = {"queue": queue, "others": {"share": 1, "waiting": 1000}}
    if budget is not None:
        admission["budget"] = budget
    done = play(chain(flood, some), gateways, admission)
    warm = [each for each in _warm(done, seconds) if each.sent.at < seconds]
    part = sum(each.used for each in warm if each.sent.tokens == LONG) / max(
        sum(each.used for each in warm), 1
    )
    slowest = max((each.outcome.total for each in done if each.outcome.total is not None), default=0.0)
    served = [each.outcome.failure == "" for each in done if each.sent.tokens == LONG]
    middle = statistics.median(each.outcome.ttft for each in done if each.outcome.ttft is not None)
    print(
        f"  {sum(served)} of {len(served)} long requests served; TTFT median {middle:.2f} s, slowest {slowest:.1f} s"
    )
    return [
        (f"long ones get {part:.3f} of the tokens (their share is 0.250; at least 0.225)", part >= 0.225),
        ("nobody has an error but by being refused", errors(done) == 0),
    ]


if __name__ == "__main__":
    sys.exit(run(__doc__, {"overload": overload, "tenants": tenants, "long": long, "narrow": narrow}))
