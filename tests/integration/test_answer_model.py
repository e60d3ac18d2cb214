"""Answers through a real Envoy that tell the model as the client asked: every other byte is the engine's."""

import gzip
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
import yaml

from extproc.demo.stack import Stack, StackSettings
from extproc.envoyconfig.yamltext import to_yaml
from tests.integration.fixed_engine import BODIES, FixedEngine, fixed_engine
from tests.integration.patience import patient


class Asked(Stack):
    """Before replicas that run already, which call their model demo."""

    def __init__(self, engine: FixedEngine, mode: str) -> None:
        pool = {
            "metrics": {"enabled": False},
            "engine": "vllm",
            "models": ["llama"],
            "served_as": {"llama": "demo"},
            "answer_model": "asked",
        }
        gateway = {"feedback": {"source": "body"}, "aliases": {"gpt-4": "llama"}}
        super().__init__(StackSettings(redis_url="", gateway=gateway, pool=pool))
        self._engine, self._mode = engine, mode

    def start_engines(self) -> None:
        """They run already."""
        self.replicas = list(self._engine.replicas)

    def bootstrap(self) -> str:
        """With this mode for the bodies of responses."""
        tree: Any = yaml.safe_load(super().bootstrap())
        (listener,) = tree["static_resources"]["listeners"]
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        processing = manager["http_filters"][0]["typed_config"]["processing_mode"]
        processing["response_body_mode"] = self._mode
        processing["response_trailer_mode"] = "SEND" if self._mode == "FULL_DUPLEX_STREAMED" else "SKIP"
        return to_yaml(tree)


@pytest.fixture(scope="module")
def engine() -> Iterator[FixedEngine]:
    with fixed_engine(2) as running:
        yield running


@pytest.fixture(scope="module", params=["STREAMED", "FULL_DUPLEX_STREAMED", "BUFFERED"])
def stack(request: pytest.FixtureRequest, engine: FixedEngine) -> Iterator[Stack]:
    with Asked(engine, request.param) as running:
        yield running


async def ask(stack: Stack, name: str, coding: str) -> tuple[int, bytes, bool]:
    """Status, bytes and whether they are compressed."""
    body = {
        "model": "gpt-4",
        "stream": name.startswith("events"),
        "messages": [{"role": "user", "content": name}],
    }
    limit = aiohttp.ClientTimeout(total=patient(60))
    async with (
        aiohttp.ClientSession(auto_decompress=False, timeout=limit) as session,
        session.post(
            f"{stack.url}/v1/chat/completions", json=body, headers={"accept-encoding": coding}
        ) as answer,
    ):
        return answer.status, await answer.read(), answer.headers.get("content-encoding") == "gzip"


@pytest.mark.parametrize(
    "name", ["json", "3 MB", "events with usage", "events without usage", "slow", "error 500"]
)
async def test_the_model_is_told_by_the_name_that_was_asked_for_and_all_else_is_as_it_came(
    stack: Stack, engine: FixedEngine, name: str
) -> None:
    status, got, _ = await ask(stack, name, "identity")
    assert status == (500 if name == "error 500" else 200)
    assert got == BODIES[name].replace(b'"model": "demo"', b'"model": "gpt-4"')
    assert json.loads(engine.received[-1])["model"] == "demo"


async def test_a_compressed_answer_keeps_what_the_engine_says(stack: Stack) -> None:
    status, got, packed = await ask(stack, "json", "gzip")
    assert (status, packed) == (200, True)
    assert gzip.decompress(got) == BODIES["json"]
