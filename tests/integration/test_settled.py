"""The books at the end: mixed exchanges by the thousand leave a ledger of exactly 0, and true tokens are all settled.

KVSTEER_EXCHANGES says how many (2,000; the promise is of 20,000).
"""

import asyncio
import os
import random
import re
import signal
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import aiohttp
import orjson
import pytest

from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import QUICK, ledger_tokens, until
from tests.integration.patience import patient

EXCHANGES = int(os.environ.get("KVSTEER_EXCHANGES", "2000"))
#: Of the settled tokens, what may differ from the engines' own count.
OFF = 0.005
AT_ONCE = 100
GATEWAYS = 2
JSON = {"content-type": "application/json"}
#: Kinds of exchanges: those whose usage the engine tells, and the others.
TOLD = ("json", "stream")
UNTOLD = ("quiet", "cut_early", "cut_late", "garbage", "unknown", "get")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(StackSettings(engine=QUICK, redis_url="", gateways=GATEWAYS)) as running:
        yield running


class Client:
    """Sends exchanges of mixed kinds, many at a time, and adds up the usage that it is told."""

    def __init__(self, stack: Stack, session: aiohttp.ClientSession) -> None:
        self.stack, self.session = stack, session
        self.rng = random.Random(17)
        self.told: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()

    async def send(self, count: int, kinds: Sequence[str]) -> None:
        """So many exchanges, `AT_ONCE` at a time."""
        left = iter(range(count))

        async def some() -> None:
            for number in left:
                kind = self.rng.choice(kinds)
                try:
                    await self._one(number, kind)
                except (TimeoutError, aiohttp.ClientError) as error:
                    if kind in TOLD:
                        self.failed[type(error).__name__] += 1

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))

    async def _one(self, number: int, kind: str) -> None:
        url = f"{self.stack.url}/v1/chat/completions"
        if kind == "garbage":
            await (await self.session.post(url, data=b"{]")).read()
        elif kind == "get":
            await (await self.session.get(f"{self.stack.url}/v1/models")).read()
        elif kind in ("cut_early", "cut_late"):
            async with asyncio.timeout(0.002 if kind == "cut_early" else 0.2):
                async with self.session.post(url, data=self._body(number, kind)) as answer:
                    await answer.read()
        else:
            async with self.session.post(url, data=self._body(number, kind)) as answer:
                data = await answer.read()
            if kind in TOLD:
                self._count(kind, answer.status, data)

    def _body(self, number: int, kind: str) -> bytes:
        text = f"chat {number % 50} " * 20 + "word " * self.rng.randrange(200)
        body: dict[str, Any] = {"model": "none" if kind == "unknown" else "demo"}
        body["messages"] = [{"role": "user", "content": text}]
        body["max_tokens"] = 500 if kind.startswith("cut") else self.rng.randrange(1, 12)
        body["stream"] = kind != "json"
        if kind == "stream":
            body["stream_options"] = {"include_usage": True}
        return orjson.dumps(body)

    def _count(self, kind: str, status: int, data: bytes) -> None:
        if status != 200:
            self.failed[str(status)] += 1
            return
        if kind == "json":
            usage = orjson.loads(data)["usage"]
        else:
            lines = [line[6:] for line in data.split(b"\n\n") if b'"usage":{' in line]
            usage = orjson.loads(lines[-1])["usage"]
        self.told["input"] += usage["prompt_tokens"]
        self.told["output"] += usage["completion_tokens"]


def text_of(url: str) -> str:
    with urllib.request.urlopen(url, timeout=patient(10)) as answer:
        text: str = answer.read().decode()
    return text


def settled(stack: Stack, number: int) -> Counter[str]:
    """Tokens that one gateway has settled, by kind."""
    text = text_of(f"http://127.0.0.1:{stack.gateway_ports[number][1]}/metrics")
    found = re.findall(r'^kvsteer_settled_tokens_total\{kind="(\w+)",pool="demo"\} (\S+)', text, re.M)
    found += re.findall(r'^kvsteer_settled_tokens_total\{pool="demo",kind="(\w+)"\} (\S+)', text, re.M)
    return Counter({kind: int(float(tokens)) for kind, tokens in found})


def computed(stack: Stack) -> dict[str, float]:
    """Tokens by the engines' own counters."""
    total: Counter[str] = Counter()
    for address in stack.replicas:
        text = text_of(f"http://{address}/metrics")
        for kind, name in (("input", "prompt"), ("output", "generation")):
            total[kind] += sum(
                float(n) for n in re.findall(rf"^vllm:{name}_tokens_total\S* (\S+)", text, re.M)
            )
    return dict(total)


def agree(mine: dict[str, Any], theirs: dict[str, Any]) -> bool:
    return all(abs(mine.get(kind, 0) - theirs[kind]) <= OFF * theirs[kind] for kind in ("input", "output"))


async def fault(session: aiohttp.ClientSession, stack: Stack, share: float | None) -> None:
    """The first replica answers a share of its requests with 503, which Envoy tries again elsewhere."""
    error = None if share is None else {"status": 503, "share": share}
    async with session.post(f"http://{stack.replicas[0]}/_control", json={"error": error}) as answer:
        assert answer.status == 200


async def restart(stack: Stack, client: Client, count: int) -> None:
    """Kill a gateway while exchanges of which no usage is told run, and start it again."""
    traffic = asyncio.create_task(client.send(count, UNTOLD))
    await asyncio.sleep(0.5)
    child = stack.children["gateway-1"]
    child.signal(signal.SIGKILL)
    await asyncio.to_thread(until, lambda: not child.running, 5, "the gateway is gone")
    child.restart()
    await asyncio.to_thread(stack.wait_gateway, 1, child)
    await traffic


@pytest.mark.timeout(600)
async def test_mixed_exchanges_leave_nothing_in_the_ledger_and_every_true_token_is_settled(
    stack: Stack,
) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers=JSON) as session:
        client = Client(stack, session)
        await fault(session, stack, 0.1)
        await client.send(EXCHANGES * 2 // 5, TOLD)
        first = await _settles(stack, client, Counter())
        theirs = await asyncio.to_thread(computed, stack)
        assert agree(first, theirs), f"settled {dict(first)}, the engines counted {theirs}"
        lost = await asyncio.to_thread(settled, stack, 1)  # its counters go with the gateway
        await restart(stack, client, EXCHANGES // 5)
        await client.send(EXCHANGES * 2 // 5, TOLD + UNTOLD)
        await _settles(stack, client, lost)
        await fault(session, stack, None)
    assert not client.failed, f"{dict(client.failed)} of those that nobody cut"
    for number in range(GATEWAYS):
        for replica in stack.admin("/replicas", number)["replicas"]:
            assert replica["requests_in_flight"] == replica["tokens_in_flight"] == 0
            assert replica["backlog_seconds"] == 0


async def _settles(stack: Stack, client: Client, lost: Counter[str]) -> Counter[str]:
    """Wait for the ledgers to be empty and for the books to agree with what engines told clients."""

    def done() -> bool:
        return agree(total(), client.told) and not any(ledger_tokens(stack, n) for n in range(GATEWAYS))

    def total() -> Counter[str]:
        return sum((settled(stack, number) for number in range(GATEWAYS)), lost)

    what = f"ledgers are empty and {dict(client.told)} settled"
    await asyncio.to_thread(until, done, 10, what)
    return total()
