"""Send a workload through Envoy at its own times and note what came back."""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import aiohttp
import orjson

from extproc.demo.workload import Arrival

#: Seconds one request may take before it counts as failed.
_LONGEST = 60.0


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of one request. Times in seconds; tokens as the replica's usage says."""

    ttft: float | None = None
    total: float | None = None
    replica: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    failure: str = ""


@dataclass(slots=True, kw_only=True)
class Report:
    """The figures of one run."""

    policy: str
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def failures(self) -> int:
        """Requests that did not complete."""
        return sum(1 for o in self.outcomes if o.failure)

    @property
    def hit_share(self) -> float:
        """Prompt tokens found in a cache, of all prompt tokens."""
        prompt = sum(o.prompt_tokens for o in self.outcomes)
        return sum(o.cached_tokens for o in self.outcomes) / prompt if prompt else 0.0

    @property
    def ttfts(self) -> list[float]:
        """Times to first token of those that got one, sorted."""
        return sorted(o.ttft for o in self.outcomes if o.ttft is not None)

    @property
    def mean_ttft(self) -> float:
        """Mean time to first token, seconds; infinite when nothing came back."""
        return statistics.fmean(self.ttfts) if self.ttfts else float("inf")

    def ttft_at(self, share: float) -> float:
        """Time to first token at a quantile, seconds."""
        ttfts = self.ttfts
        return ttfts[min(len(ttfts) - 1, int(share * len(ttfts)))] if ttfts else float("inf")

    @property
    def per_replica(self) -> Counter[str]:
        """Requests each replica answered."""
        return Counter(o.replica for o in self.outcomes if o.replica)


async def drive(
    url: str, workload: Sequence[Arrival], policy: str, progress: Callable[[], None] = lambda: None
) -> Report:
    """Send every request at its time, wait for all of them, and report. `progress` is called for each ended one."""
    report = Report(policy=policy)
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=_LONGEST)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        began = time.monotonic() + 0.2

        async def one(arrival: Arrival, payload: bytes) -> None:
            await asyncio.sleep(began + arrival.at - time.monotonic())
            report.outcomes.append(await ask(session, url, payload))
            progress()

        await asyncio.gather(*(one(a, orjson.dumps(a.body)) for a in workload))
    return report


async def ask(
    session: aiohttp.ClientSession, url: str, payload: bytes, more: Mapping[str, str] = MappingProxyType({})
) -> Outcome:
    """Send one streamed chat request, with `more` headers, and read its answer to the end."""
    outcome, began = Outcome(), time.monotonic()
    headers = {"content-type": "application/json", **more}
    try:
        async with session.post(f"{url}/v1/chat/completions", data=payload, headers=headers) as answer:
            outcome.replica = answer.headers.get("x-kvsteer-replica", "")
            if answer.status != 200:
                outcome.failure = f"status {answer.status}"
                return outcome
            await _read_events(answer, outcome, began)
    except (aiohttp.ClientError, TimeoutError) as error:
        outcome.failure = type(error).__name__
    outcome.total = time.monotonic() - began
    return outcome


async def _read_events(answer: aiohttp.ClientResponse, outcome: Outcome, began: float) -> None:
    ended = False
    async for line in answer.content:
        if not line.startswith(b"data: "):
            continue
        data = line[6:].strip()
        if data == b"[DONE]":
            ended = True
            break
        event = orjson.loads(data)
        if outcome.ttft is None and event.get("choices"):
            outcome.ttft = time.monotonic() - began
        if event.get("usage"):
            _usage(outcome, event["usage"])
    if not ended:
        outcome.failure = "cut"


def _usage(outcome: Outcome, usage: dict[str, Any]) -> None:
    outcome.prompt_tokens = usage["prompt_tokens"]
    outcome.output_tokens = usage["completion_tokens"]
    outcome.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
