"""Bodies of every kind through the real Envoy: right answers, and nothing logged as an exception."""

import base64
import gzip
import hashlib
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import zstandard

from extproc.demo.stack import Stack
from tests.integration.patience import patient

MIB = 2**20


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=patient(60))) as made:
        yield made


def chat(text: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": [{"role": "user", "content": text}], "max_tokens": 2, **fields}


async def post(
    stack: Stack, session: aiohttp.ClientSession, data: bytes, **headers: str
) -> tuple[int, Any, Any]:
    headers = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
    async with session.post(
        f"{stack.url}/v1/chat/completions", data=io.BytesIO(data), headers=headers
    ) as answer:
        return answer.status, await answer.json(), answer.headers


async def test_a_body_of_30_mib_arrives_byte_for_byte(stack: Stack, session: aiohttp.ClientSession) -> None:
    data = json.dumps(chat("word " * (6 * MIB))).encode()
    assert len(data) > 30 * MIB
    status, _, headers = await post(stack, session, data)
    assert status == 200
    assert headers["x-received-sha256"] == hashlib.sha256(data).hexdigest()


async def test_a_body_over_the_limit_is_413_with_a_json_error(
    stack: Stack, session: aiohttp.ClientSession
) -> None:
    status, body, headers = await post(stack, session, b"x" * (33 * MIB))
    assert status == 413
    assert headers["content-type"].startswith("application/json")
    assert body["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "data",
    [
        b"garbage",
        b"{}",
        b"[]",
        b"\x00\xff\xfe",
        b"[" * 10_000 + b"]" * 10_000,
        b'{"model": 5, "messages": {}}',
        b"nul",
    ],
)
async def test_what_cant_be_read_gets_the_engines_own_answer(
    stack: Stack, session: aiohttp.ClientSession, data: bytes
) -> None:
    status, body, headers = await post(stack, session, data)
    assert status in (400, 404)
    assert headers["x-kvsteer-replica"] in stack.replicas
    assert "error" in body


async def test_a_5_mb_image_is_steered_and_does_not_count_as_text(
    stack: Stack, session: aiohttp.ClientSession
) -> None:
    image = "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 20_000).decode()
    parts = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": image}}]
    status, _, _ = await post(stack, session, json.dumps(chat(parts)).encode())
    assert status == 200
    record = stack.admin("/decisions?last=1")["decisions"][0]
    assert record["outcome"] == "steered"
    assert record["request"]["prompt_tokens"] < 5000


@pytest.mark.parametrize("offset", range(-4, 5))
async def test_emoji_and_cjk_at_a_block_edge(
    stack: Stack, session: aiohttp.ClientSession, offset: int
) -> None:
    text = (
        "a" * (1024 + offset)
        + "\N{FAMILY}\N{THUMBS UP SIGN}\N{EMOJI MODIFIER FITZPATRICK TYPE-4}漢字仮名" * 300
    )
    for ascii_only in (True, False):  # escapes or UTF-8: the same prompt
        data = json.dumps(chat(text), ensure_ascii=ascii_only).encode()
        status, _, _ = await post(stack, session, data)
        assert status == 200
    second = stack.admin("/decisions?last=1")["decisions"][0]["request"]
    assert second["cached_tokens_expected"] == second["prompt_tokens"] - 1, "escapes changed the chain"


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
async def test_compressed_bodies_are_read_and_passed_on_as_they_are(
    stack: Stack, session: aiohttp.ClientSession, encoding: str
) -> None:
    plain = json.dumps(chat("compressed " * 500)).encode()
    data = gzip.compress(plain) if encoding == "gzip" else zstandard.compress(plain)
    _, _, headers = await post(stack, session, data, content_encoding=encoding)
    assert headers["x-kvsteer-replica"] in stack.replicas
    record = stack.admin("/decisions?last=1")["decisions"][0]
    assert record["outcome"] == "steered"
    assert record["request"]["prompt_tokens"] > 1000


async def test_nothing_of_all_this_was_an_exception(stack: Stack, session: aiohttp.ClientSession) -> None:
    await post(stack, session, b'{"messages": [{"role": "user", "content": "secret-in-prompt"}]')
    said = stack.children["gateway-0"].log.read_text()
    assert "Traceback" not in said
    assert "secret-in-prompt" not in said
    assert "secret-in-prompt" not in json.dumps(stack.admin("/decisions?last=1000"))
