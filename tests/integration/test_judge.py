"""Two gateways behind one Envoy: one judges what caches hold, by how the requests of both ended, for both."""

import asyncio
import itertools
import random
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import orjson
import pytest

from extproc.cli.state_views import differences
from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import until
from tests.integration.patience import bar

pytestmark = pytest.mark.alone

#: Prompts of some 1,500 tokens, cold for 75 ms and more: longer than a batch of the journal takes.
ENGINE = [
    "--prefill-speed",
    "20000",
    "--tokens-per-chunk",
    "4",
    "--kv-tokens",
    "400000",
    "--max-model-len",
    "100000",
]
JSON = {"content-type": "application/json"}
SESSIONS, AT_ONCE, FOLLOWS = 40, 4, 10.0


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(StackSettings(replicas=2, gateways=2, engine=ENGINE)) as running:
        yield running


class Chats:
    """Sessions that come back in turn, each with what it had and a line more, until `stop`."""

    def __init__(self, url: str) -> None:
        rng = random.Random(1)
        words = ["".join(rng.choices("abcdefghij", k=7)) for _ in range(500)]
        self.texts = [" ".join(rng.choices(words, k=800)) for _ in range(SESSIONS)]
        self.url = f"{url}/v1/chat/completions"
        self.turns = itertools.count()
        self.done = 0
        self.stop = False

    async def run(self, session: aiohttp.ClientSession, turns: int = 10**9) -> None:
        """So many turns, by a few clients at a time."""
        end = self.done + turns

        async def client() -> None:
            while self.done < end and not self.stop:
                number = next(self.turns)
                text = f"{self.texts[number % SESSIONS]} {'and then? ' * (number // SESSIONS)}"
                body = {"model": "demo", "max_tokens": 8, "messages": [{"role": "user", "content": text}]}
                async with session.post(self.url, data=orjson.dumps(body), headers=JSON) as answer:
                    assert answer.status == 200
                    await answer.read()
                self.done += 1

        await asyncio.gather(*(client() for _ in range(AT_ONCE)))


def caches(stack: Stack, replica: str) -> list[dict[str, Any]]:
    """What each gateway says of a replica's cache."""
    said = [stack.admin("/replicas", number)["replicas"] for number in range(2)]
    return [next(row["cache"] for row in rows if row["replica"] == replica) for rows in said]


def test_a_dropped_cache_is_found_by_both_gateways_within_ten_seconds_and_their_indexes_are_equal(
    stack: Stack,
) -> None:
    dropping, steady = stack.replicas
    took = asyncio.run(_drop(stack, dropping))
    assert took < bar(FOLLOWS), "both gateways know it"
    for one, other in (caches(stack, replica) for replica in (dropping, steady)):
        told = "emptied", "scale", "believed_bytes"
        assert [one[key] for key in told] == [other[key] for key in told]
    assert [row["emptied"] for row in caches(stack, steady)] == [0, 0], "no other cache was emptied"

    def differ() -> list[str]:
        one, other = (stack.admin("/state", number) for number in range(2))
        entries = [[row["entries"] for row in said["pools"][0]["replicas"]] for said in (one, other)]
        return [*differences(one, other).values(), *([] if entries[0] == entries[1] else [str(entries)])]

    until(lambda: not differ(), 5, "the views are equal, entry by entry")


async def _drop(stack: Stack, replica: str) -> float:
    """Warm both replicas, drop one's cache, and go on until both gateways know; returns the seconds it took."""
    chats, control = Chats(stack.url), f"http://{replica}/_control"
    async with aiohttp.ClientSession() as session:
        await chats.run(session, 5 * SESSIONS)
        for every in (0.2, None):
            dropped = {"drop_cache": every and {"every": every}}
            async with session.post(control, json=dropped) as answer:
                answer.raise_for_status()
            await asyncio.sleep(0.3 if every else 0.0)
        began = time.monotonic()
        load = asyncio.create_task(chats.run(session))
        while time.monotonic() - began < 2 * FOLLOWS:
            said = await asyncio.to_thread(caches, stack, replica)
            if all(row["emptied"] for row in said):
                break
            await asyncio.sleep(0.1)
        took, chats.stop = time.monotonic() - began, True
        await load
    return took
