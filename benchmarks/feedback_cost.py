"""What each source of feedback costs the gateway: CPU for each request, and for each chunk of a long stream.

    python -m benchmarks.feedback_cost [--check]

A stack of a real Envoy, a gateway and two emulated replicas for each source, one after the other: answers in one
piece, then streams of 10 and of 2,000 chunks. CPU of the gateway's process from /proc, background work included.
With --check the exit status is 1 when the default source costs more than 1.35 times of none, or when with it a long
stream costs 3 ms more than with none.
"""

import argparse
import asyncio
import sys
from typing import Any, NamedTuple

import aiohttp

from benchmarks.server_cpu import cpu_seconds
from extproc.demo.stack import Stack, StackSettings
from extproc.settings.feedback import FeedbackSettings

#: `renamed` is `body` with each answer telling the model as the client asked (`pools[].answer_model`).
SOURCES = ("off", "trailers", "access_log", "headers", "body", "renamed")
CHUNKS = 2000
#: Most milliseconds that a stream of `CHUNKS` chunks may cost more by the default source than by none.
LONG_STREAM = 3.0
MOST = 1.35
#: Requests at a time.
AT_ONCE = 8
#: Seconds after which the access log has told all.
LOG_DELAY = 0.5
_OPTIONS = """--prefill-speed 1000000 --step-ms 1 --max-model-len 100000 --kv-tokens 20000000
    --max-running 4096"""
_ENGINE = _OPTIONS.split()
_RARELY = {"metrics": {"interval": "10s", "stale_after": "60s"}}


class Cost(NamedTuple):
    """Of one source: microseconds a request, milliseconds a stream of 10 and of `CHUNKS` chunks."""

    request: float
    short: float
    long: float


async def send(stack: Stack, count: int, tokens: int, *, stream: bool) -> None:
    """`count` requests, all answered."""
    body: dict[str, Any] = {
        "model": stack.settings.model,
        "messages": [{"role": "user", "content": "word " * 400}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": stream,
    }
    if stream:
        body["stream_options"] = {"include_usage": True}
    gate = asyncio.Semaphore(AT_ONCE)
    async with aiohttp.ClientSession(headers={"accept-encoding": "identity"}) as session:

        async def one() -> None:
            async with gate, session.post(f"{stack.url}/v1/chat/completions", json=body) as answer:
                await answer.read()
                answer.raise_for_status()

        await asyncio.gather(*(one() for _ in range(count)))
    await asyncio.sleep(LOG_DELAY)


async def spent(stack: Stack, count: int, tokens: int, *, stream: bool) -> float:
    """The gateway's CPU for each of `count` requests, seconds."""
    pid = stack.children["gateway-0"].pid
    before = cpu_seconds(pid)
    await send(stack, count, tokens, stream=stream)
    return (cpu_seconds(pid) - before) / count


async def measured(source: str, requests: int) -> Cost:
    """One source, warm."""
    named = "body" if source == "renamed" else source
    feedback = FeedbackSettings.model_validate({"source": named}).model_dump(include={"source"})
    pool = {"models": ["asked"], "served_as": {"asked": "demo"}, "answer_model": "asked"}
    settings = StackSettings(engine=_ENGINE, replicas=2, redis_url="", gateway={"feedback": feedback})
    if source == "renamed":
        settings.gateway["aliases"], settings.pool = {"demo": "asked"}, pool
    with Stack(settings) as stack:
        await send(stack, 200, 2, stream=False)
        request = await spent(stack, requests, 2, stream=False)
        short = await spent(stack, 200, 10, stream=True)
        long = await spent(stack, 16, CHUNKS, stream=True)
    return Cost(request * 1e6, short * 1e3, long * 1e3)


async def main() -> int:
    """Print a row for each source."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="judge the default source")
    parser.add_argument(
        "--sources", default=",".join(SOURCES), help="which, with commas; `off` is always first"
    )
    parser.add_argument("--requests", type=int, default=2000, help="requests measured for each source")
    given = parser.parse_args()
    print(f"{'source':12}{'us a request':>14}{'to off':>8}{'ms, 10 chunks':>15}{f'ms, {CHUNKS} chunks':>18}")
    costs: dict[str, Cost] = {}
    chosen = [source for source in SOURCES if source in given.sources.split(",") or source == "off"]
    for source in chosen:
        costs[source] = cost = await measured(source, given.requests)
        ratio = cost.request / costs["off"].request
        print(f"{source:12}{cost.request:14.0f}{ratio:8.2f}{cost.short:15.1f}{cost.long:18.1f}", flush=True)
    usual = costs.get("trailers", costs["off"])
    held = usual.request <= MOST * costs["off"].request and usual.long <= costs["off"].long + LONG_STREAM
    return 0 if held or not given.check else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
