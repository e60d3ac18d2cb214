"""LoRA adapters through a real Envoy: requests find the replica that holds theirs, and engines' own lists count."""

import asyncio
import json
import random
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import QUICK
from tests.integration.patience import patient, until_async

ADAPTERS = [f"lora-{number}" for number in range(1, 13)]
REPLICAS, SLOTS, REQUESTS = 3, 5, 240


@pytest.fixture(scope="module")
def adapters() -> Iterator[Stack]:
    """Twelve adapters that no setting names, three replicas with five slots each."""
    named = [word for name in ADAPTERS for word in ("--adapter", name)]
    settings = StackSettings(
        replicas=REPLICAS,
        engine=[*QUICK, *named, "--max-loras", str(SLOTS), "--adapter-load-ms", "20", "--runtime-adapters"],
        redis_url="",
        pool={
            "models": ["demo"],
            "adapters": {"enabled": True, "slots": SLOTS, "load": "500ms", "ask": "200ms"},
        },
        gateway={"requests": {"models": "answer"}},
    )
    with Stack(settings) as running:
        yield running


def truth(stack: Stack) -> list[dict[str, Any]]:
    """What each engine's slots say of themselves."""
    found = []
    for replica in stack.replicas:
        with urllib.request.urlopen(f"http://{replica}/_truth", timeout=patient(10)) as answer:
            found.append(json.loads(answer.read())["adapters"])
    return found


async def ask(session: aiohttp.ClientSession, stack: Stack, model: str, number: int) -> tuple[int, str]:
    body = {"model": model, "messages": [{"role": "user", "content": f"question {number}"}], "max_tokens": 2}
    async with session.post(f"{stack.url}/v1/chat/completions", json=body) as answer:
        await answer.read()
        return answer.status, answer.headers.get("x-kvsteer-replica", "")


async def listed(session: aiohttp.ClientSession, stack: Stack) -> set[str]:
    async with session.get(f"{stack.url}/v1/models") as answer:
        return {entry["id"] for entry in (await answer.json())["data"]}


async def test_adapters_that_engines_list_are_models_and_are_found_where_they_are_loaded(
    adapters: Stack,
) -> None:
    rng = random.Random(7)
    weights = [1 / number for number in range(1, len(ADAPTERS) + 1)]
    async with aiohttp.ClientSession() as session:

        async def all_listed() -> bool:
            return set(ADAPTERS) <= await listed(session, adapters)

        await until_async(all_listed, 30, "adapters are listed")
        before = truth(adapters)  # the other test may have been first
        statuses: Counter[int] = Counter()
        for number in range(REQUESTS):
            (name,) = rng.choices(ADAPTERS, weights)
            status, _ = await ask(session, adapters, name, number)
            statuses[status] += 1
    assert statuses == {200: REQUESTS}
    slots = truth(adapters)
    hits, loads = (
        sum(one[key] for one in slots) - sum(one[key] for one in before) for key in ("hits", "loads")
    )
    # 15 slots hold 12 adapters: all but the first request of each can find its own. Chance alone finds 5 of 12.
    assert hits + loads == REQUESTS
    assert hits >= 0.9 * (REQUESTS - len(ADAPTERS)), slots


async def test_an_adapter_that_one_replica_alone_serves_is_asked_of_that_one(adapters: Stack) -> None:
    home = adapters.replicas[1]
    async with aiohttp.ClientSession() as session:
        load = {"lora_name": "late", "lora_path": "/nowhere"}
        async with session.post(f"http://{home}/v1/load_lora_adapter", json=load) as answer:
            assert answer.status == 200

        async def known() -> bool:
            return "late" in await listed(session, adapters)

        await until_async(known, 30, "the late adapter is listed")
        found = await asyncio.gather(*(ask(session, adapters, "late", number) for number in range(20)))
        assert set(found) == {(200, home)}
        async with session.post(f"http://{home}/v1/unload_lora_adapter", json=load) as answer:
            assert answer.status == 200
