"""What a mirror costs the requests that are mirrored: `python -m benchmarks.mirror_live [--check] [--share 0.3]`.

One gateway, one Envoy, three emulated engines in processes of their own. Two pools are alike, but that a share of the
requests of one is sent to a third pool too. Each request goes to both pools, one after the other, in an order that is
drawn, so that both have the machine as it is; one request at a time, so that it is the way of a request that is
measured and not who gets a processor. Latencies are the client's: to the first byte of the streamed answer, and to
its end. Promised: the medians, and in the median round the 99th percentiles, are within 3 %.
"""

import argparse
import random
import statistics
import sys
import time
import urllib.request
from itertools import islice
from typing import Any, NamedTuple

import aiohttp
import uvloop

from extproc.demo.stack import Stack, StackSettings

_POOLS = ("alone", "mirrored")
_DARK = "dark"
#: Share by which latencies may be longer.
_MOST = 0.03
_READY = 90.0
_WARM = 20
_ENGINE = ["--model", "llama", "--step-ms", "10"]


class Figures(NamedTuple):
    """Seconds to the first byte and to the end: medians and 99th percentiles."""

    first: float
    first_99: float
    whole: float
    whole_99: float


class Estate(Stack):
    """The three pools, with an engine each."""

    def __init__(self, settings: StackSettings, share: float) -> None:
        super().__init__(settings)
        self._share = share

    def configuration(self, number: int) -> dict[str, Any]:
        """kvsteer.yaml: pools that differ by the mirror alone."""
        held = iter(self.replicas)
        pools = [
            {"name": name, "models": [name], "served_as": {name: "llama"}, "engine": "vllm"}
            | {"replicas": list(islice(held, 1))}
            for name in (*_POOLS, _DARK)
        ]
        pools[1]["mirror"] = {"pool": _DARK, "share": self._share}
        return {**super().configuration(number), "pools": pools}


async def asked(session: aiohttp.ClientSession, url: str, pool: str, text: str) -> tuple[float, float]:
    """Seconds to the first byte of an answer, and to its end."""
    messages = [{"role": "user", "content": text}]
    body = {"model": pool, "messages": messages, "max_tokens": 4, "stream": True}
    began = time.perf_counter()
    async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        await answer.content.readany()
        first = time.perf_counter() - began
        await answer.read()
    return first, time.perf_counter() - began


async def play(url: str, requests: int, seed: int) -> dict[str, list[tuple[float, float]]]:
    """So many requests to each pool."""
    rng = random.Random(seed)
    took: dict[str, list[tuple[float, float]]] = {pool: [] for pool in _POOLS}
    async with aiohttp.ClientSession() as session:
        for number in range(requests + _WARM):
            text = f"{rng.random()} " + "lorem ipsum " * 150
            for pool in rng.sample(_POOLS, 2):
                found = await asked(session, url, pool, text)
                if number >= _WARM:
                    took[pool].append(found)
    return took


def figures(took: list[tuple[float, float]]) -> Figures:
    """Medians and 99th percentiles."""
    first, whole = ([each[at] for each in took] for at in (0, 1))
    return Figures(
        statistics.median(first),
        statistics.quantiles(first, n=100)[98],
        statistics.median(whole),
        statistics.quantiles(whole, n=100)[98],
    )


def copies(stack: Stack) -> float:
    """Requests that were mirrored, by the gateway's word."""
    port = stack.gateway_ports[0][1]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=_READY) as answer:
        text = answer.read().decode()
    return sum(
        float(line.split()[-1]) for line in text.splitlines() if line.startswith("kvsteer_mirrored_total")
    )


def ratios(took: dict[str, list[tuple[float, float]]]) -> Figures:
    """One round printed; the mirrored pool's figures over the other's."""
    alone, live = (figures(took[pool]) for pool in _POOLS)
    for name, each in (("alone", alone), ("mirrored", live)):
        told = " ".join(f"{kind} {value * 1e3:.2f}" for kind, value in zip(each._fields, each, strict=True))
        print(f"  {name:10} ms: {told}")
    return Figures(*(b / a for a, b in zip(alone, live, strict=True)))


def main() -> None:
    """Play the rounds and judge them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--share", type=float, default=0.3)
    parser.add_argument("--requests", type=int, default=600, help="to each pool, each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args()
    settings = StackSettings(replicas=3, engine_processes=3, engine=_ENGINE, redis_url="")
    with Estate(settings, chosen.share) as stack:
        rounds = [
            ratios(uvloop.run(play(stack.url, chosen.requests, number))) for number in range(chosen.rounds)
        ]
        sent = copies(stack) / chosen.rounds / (chosen.requests + _WARM)
    middle = Figures(*(statistics.median(column) for column in zip(*rounds, strict=True)))
    told = ", ".join(f"{kind} {value:.3f}" for kind, value in zip(middle._fields, middle, strict=True))
    print(f"mirrored / alone, median round: {told}; {sent:.1%} were mirrored")
    if chosen.check and max(middle) > 1 + _MOST:
        sys.exit(f"a mirror made latencies longer by more than {_MOST:.0%}")


if __name__ == "__main__":
    main()
