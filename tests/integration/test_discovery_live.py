"""A gateway whose replicas are named in a file: those that join get traffic, those that leave get none."""

import asyncio
import os
from collections import Counter
from pathlib import Path

import aiohttp
import orjson
import yaml

from extproc.demo.drive import ask
from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import QUICK, until


def rewrite(path: Path, addresses: list[str]) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(yaml.safe_dump(addresses))
    os.replace(fresh, path)


async def served(stack: Stack, count: int) -> Counter[str]:
    body = {"model": "demo", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "stream": True}
    async with aiohttp.ClientSession() as session:
        bodies = [
            orjson.dumps({**body, "user": str(n), "messages": [{"role": "user", "content": f"{n}"}]})
            for n in range(count)
        ]
        outcomes = await asyncio.gather(*(ask(session, stack.url, data) for data in bodies))
    assert not [o.failure for o in outcomes if o.failure]
    return Counter(o.replica for o in outcomes)


async def test_replicas_in_a_file_come_and_go_and_envoy_follows(tmp_path: Path) -> None:
    path, eds = tmp_path / "replicas.yaml", tmp_path / "eds"
    eds.mkdir()
    stack = Stack(
        StackSettings(
            replicas=3,
            engine=QUICK,
            redis_url="",
            pool={"replicas": [], "discovery": {"file": {"path": str(path)}, "grace": 1}},
            envoy={"eds_dir": str(eds)},
        )
    )
    try:
        stack.start_engines()
        one, two, three = stack.replicas
        rewrite(path, [one, two])
        stack.start_gateways()
        stack.start_envoy()
        assert set(await served(stack, 60)) == {one, two}

        rewrite(path, [two, three])

        def states() -> dict[str, str]:
            return {row["replica"]: row["state"] for row in stack.admin("/replicas")["replicas"]}

        until(lambda: set(states()) == {two, three}, 5, "the file is followed")
        assert states()[three] == "warming", "what joins later warms up"
        until(
            lambda: three.rpartition(":")[2] in (eds / "demo.yaml").read_text(), 5, "Envoy's file is written"
        )
        assert one not in await served(stack, 40)
        assert "Traceback" not in stack.children["gateway-0"].log.read_text()
    finally:
        stack.close()
