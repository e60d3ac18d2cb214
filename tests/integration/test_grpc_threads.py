"""A gateway on grpc.aio: its deciding thread runs as usual, gRPC's own threads give way to it, as long as it runs."""

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import QUICK

LARGE = 300_000


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="the kernel has no SCHED_BATCH")
def test_the_threads_of_grpc_give_way_and_the_gateways_own_does_not() -> None:
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        pytest.skip("these tests were started with a scheduling policy of their own")
    with Stack(StackSettings(replicas=1, engine=QUICK, redis_url="", transport="grpcio")) as stack:
        gateway = stack.children["gateway-0"].pid
        assert_give_way(gateway)
        body = {"model": "demo", "messages": [{"role": "user", "content": "x" * LARGE}], "max_tokens": 1}
        asyncio.run(post(stack.url, body))  # read by a process of its own, which is started for it
        assert_give_way(gateway)


def assert_give_way(gateway: int) -> None:
    assert os.sched_getscheduler(gateway) == os.SCHED_OTHER, "the deciding thread gives way"
    policies = policies_by_name(gateway)
    assert policies.get("event_engine") == {os.SCHED_BATCH}, f"threads of gRPC cut in: {policies}"


async def post(url: str, body: dict[str, Any]) -> None:
    async with aiohttp.ClientSession() as http, http.post(f"{url}/v1/chat/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()


def policies_by_name(pid: int) -> dict[str, set[int]]:
    """Scheduling policies of a process's threads, by the threads' names."""
    found: dict[str, set[int]] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # one may end meanwhile
            name = (task / "comm").read_text().strip()
            found.setdefault(name, set()).add(os.sched_getscheduler(int(task.name)))
    return found
