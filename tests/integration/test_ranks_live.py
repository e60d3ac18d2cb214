"""Data-parallel ranks through a real Envoy: a conversation stays on its rank and finds its cache there."""

import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import QUICK
from tests.integration.patience import until_async

RANKS, CONVERSATIONS = 4, 12
HEADER = "x-data-parallel-rank"


@pytest.fixture(scope="module")
def ranked() -> Iterator[Stack]:
    """One replica of four ranks: where a conversation goes is a matter of ranks alone."""
    settings = StackSettings(
        replicas=1,
        engine=[*QUICK, "--ranks", str(RANKS), "--echo-headers"],
        redis_url="",
        pool={"ranks": {"enabled": True}},
    )
    with Stack(settings) as running:
        yield running


async def ask(
    session: aiohttp.ClientSession, stack: Stack, messages: list[dict[str, str]]
) -> tuple[str, dict[str, Any]]:
    """The rank that the engine was told, and the answer; the client names a rank that there is not."""
    body = {"model": "demo", "messages": messages, "max_tokens": 4}
    async with session.post(f"{stack.url}/v1/chat/completions", json=body, headers={HEADER: "77"}) as answer:
        said = await answer.json()
        assert answer.status == 200, said
        received = json.loads(answer.headers["x-received-headers"])
        return received.get(HEADER, ""), said


async def test_each_turn_of_a_conversation_finds_what_its_rank_has_cached(ranked: Stack) -> None:
    seen: dict[int, set[str]] = {}
    async with aiohttp.ClientSession() as session:

        async def known() -> bool:
            return (await ask(session, ranked, [{"role": "user", "content": "hi"}]))[0] != ""

        await until_async(known, 30, "ranks are not known")  # it was scraped
        for number in range(CONVERSATIONS):
            messages = [{"role": "user", "content": f"{number} " + "once upon a time " * 60}]
            for turn in range(3):
                rank, said = await ask(session, ranked, messages)
                seen.setdefault(number, set()).add(rank)
                details = said["usage"]["prompt_tokens_details"] or {}
                if turn:
                    assert details.get("cached_tokens", 0) > 200, (number, turn, rank)
                text = said["choices"][0]["message"]["content"]
                messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "go on"}]
    assert all(len(ranks) == 1 for ranks in seen.values())
    assert len(set.union(*seen.values())) > 1
