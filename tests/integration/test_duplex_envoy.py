"""Bodies through the real Envoy in both modes: the replica gets the client's bytes once, whatever their form."""

import gzip
import hashlib
import json
import random
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pytest
import yaml

from extproc.demo.stack import Stack, StackSettings
from extproc.envoyconfig import render
from extproc.envoyconfig.yamltext import to_yaml
from tests.integration.conftest import ledger_tokens, until
from tests.integration.witness import EVENTS, Witnesses, WitnessStack, chunked, http1, http2, witnesses

MIB = 2**20
#: Modes of request and response bodies: ours, ours in full duplex, and as meshes of the Gateway API have it.
MODES = {
    "buffered": ("buffered", ""),
    "full duplex": ("full_duplex", ""),
    "full duplex, fast transport": ("full_duplex", ""),
    "full duplex both ways": ("full_duplex", "FULL_DUPLEX_STREAMED"),
}
POST = "POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json"


def with_trailers(settings: Any, response_mode: str) -> str:
    """The bootstrap for trailers of HTTP/1.1 in both directions, and for responses in another mode."""
    tree = yaml.safe_load(render(settings))
    resources = tree["static_resources"]
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    manager["http_protocol_options"] = {"enable_trailers": True}
    kind = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    explicit = {"explicit_http_config": {"http_protocol_options": {"enable_trailers": True}}}
    resources["clusters"][0]["typed_extension_protocol_options"] = {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {"@type": kind, **explicit}
    }
    if response_mode:
        processing = manager["http_filters"][0]["typed_config"]["processing_mode"]
        processing |= {
            "response_header_mode": "SEND",
            "response_body_mode": response_mode,
            "response_trailer_mode": "SEND",
        }
    return to_yaml(tree)


@pytest.fixture(scope="module")
def replicas() -> Iterator[Witnesses]:
    with witnesses(3) as running:
        yield running


@pytest.fixture(scope="module", params=MODES)
def stack(request: pytest.FixtureRequest, replicas: Witnesses) -> Iterator[Stack]:
    mode, response_mode = MODES[request.param]
    envoy = {"request_body_mode": mode, "retries": 0}
    source = "off" if response_mode else "trailers"
    gateway = {"feedback": {"source": source}}
    transport = "fast" if "fast" in request.param else "grpcio"
    made = WitnessStack(replicas, StackSettings(envoy=envoy, gateway=gateway, transport=transport))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "extproc.demo.stack.render", lambda settings: with_trailers(settings, response_mode)
            )
            made.start()
        yield made
    finally:
        made.close()


@lru_cache(maxsize=16)
def chat(size: int) -> bytes:
    """A body of so many bytes: a chat if there is room for one, else what is no JSON."""
    frame = json.dumps({"model": "demo", "messages": [{"role": "user", "content": "@"}]})
    if size < len(frame):
        return b"x" * size
    letters = random.Random(size).choices("abcdefghij ", k=min(size - len(frame) + 1, 4096))
    text = ("".join(letters) * (size // 4096 + 1))[: size - len(frame) + 1]
    return frame.replace("@", text).encode()


def outcome(stack: Stack) -> str:
    return str(stack.admin("/decisions?last=1")["decisions"][0]["outcome"])


SIZES = [0, 1, 62_000, 62_001, 65_536, MIB, 20 * MIB]


@pytest.mark.parametrize("size", SIZES)
def test_http1_with_a_length(stack: Stack, replicas: Witnesses, size: int) -> None:
    body = chat(size)
    replicas.seen.clear()
    got = http1(stack.port, f"{POST}\r\ncontent-length: {size}", [body])
    assert got.startswith(b"HTTP/1.1 200"), got[:500]
    (seen,) = replicas.seen
    assert (len(seen.body), seen.sha) == (size, hashlib.sha256(body).hexdigest())
    assert seen.all("content-length") == [str(size)]
    assert outcome(stack) == ("steered" if size > 100 else "unreadable" if size else "no_body")


def cuts_of(size: int) -> dict[str, list[int]]:
    """Places to cut a body, at every kind of border."""
    return {
        "one byte, then the rest": [1],
        "the last byte alone": [size - 1],
        "at the gateway's pieces": list(range(62_000, size, 62_000)),
        "one past the gateway's pieces": list(range(62_001, size, 62_001)),
        "at 16 KiB": list(range(2**14, size, 2**14)),
        "in seven odd pieces": [size * n // 7 for n in range(1, 7)],
    }


@pytest.mark.parametrize("how", cuts_of(1))
@pytest.mark.parametrize("size", [65_536, 200_000])
def test_http1_chunked(stack: Stack, replicas: Witnesses, size: int, how: str) -> None:
    body = chat(size)
    places = [0, *cuts_of(size)[how], size]
    pieces = [body[a:b] for a, b in pairwise(places)]
    replicas.seen.clear()
    got = http1(stack.port, f"{POST}\r\ntransfer-encoding: chunked", chunked(pieces))
    assert got.startswith(b"HTTP/1.1 200"), got[:500]
    (seen,) = replicas.seen
    assert seen.body == body
    assert outcome(stack) == "steered"


@pytest.mark.parametrize("size", SIZES[:-1])
def test_http1_chunked_that_ends_by_trailers(stack: Stack, replicas: Witnesses, size: int) -> None:
    body = chat(size)
    replicas.seen.clear()
    pieces = [body] if body else []
    got = http1(stack.port, f"{POST}\r\ntransfer-encoding: chunked", chunked(pieces, trailers="x-sum: 9\r\n"))
    assert got.startswith(b"HTTP/1.1 200"), got[:500]
    (seen,) = replicas.seen
    assert seen.body == body


@pytest.mark.parametrize("trailers", [None, [("x-sum", "9")]], ids=["", "trailers"])
@pytest.mark.parametrize("size", SIZES)
def test_http2(stack: Stack, replicas: Witnesses, size: int, trailers: list[tuple[str, str]] | None) -> None:
    body = chat(size)
    replicas.seen.clear()
    answer = http2(stack.port, "/v1/chat/completions", body, trailers=trailers)
    assert answer.status == 200
    (seen,) = replicas.seen
    assert (len(seen.body), seen.sha) == (size, hashlib.sha256(body).hexdigest())


def test_expect_100_continue(stack: Stack, replicas: Witnesses) -> None:
    body = chat(70_000)
    replicas.seen.clear()
    got = http1(stack.port, f"{POST}\r\nexpect: 100-continue\r\ncontent-length: {len(body)}", [body])
    assert got.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200"), got[:200]
    assert [seen.body for seen in replicas.seen] == [body]


def test_gzip(stack: Stack, replicas: Witnesses) -> None:
    body = gzip.compress(chat(500_000), compresslevel=1)
    replicas.seen.clear()
    got = http1(stack.port, f"{POST}\r\ncontent-encoding: gzip\r\ncontent-length: {len(body)}", [body])
    assert got.startswith(b"HTTP/1.1 200"), got[:500]
    assert [seen.body for seen in replicas.seen] == [body]
    assert outcome(stack) == "steered"


def test_a_body_over_the_limit_is_413_and_reaches_nobody(stack: Stack, replicas: Witnesses) -> None:
    replicas.seen.clear()
    body = b"x" * (33 * MIB)
    answer = http2(stack.port, "/v1/chat/completions", body)
    assert answer.status == 413
    assert json.loads(answer.body)["error"]["code"] == "payload_too_large"
    assert not replicas.seen


@pytest.mark.parametrize("path", ["/events", "/slow/events"])
def test_streamed_answers_come_byte_for_byte_with_cookies_and_trailers(stack: Stack, path: str) -> None:
    answer = http2(stack.port, path, b'{"model": "demo"}')
    assert answer.status == 200
    assert answer.body == b"".join(EVENTS)
    assert answer.all("set-cookie") == ["a=1", "b=2"]
    assert answer.trailers == [("x-checksum", "77")]


@pytest.mark.parametrize("path", ["/v1/models", "/events"])
def test_requests_without_a_body_are_answered_whole(stack: Stack, path: str) -> None:
    for _ in range(20):
        answer = http2(stack.port, path, None, method="GET")
        assert (answer.status, bool(answer.body)) == (200, True)
        if path == "/events":
            assert answer.body == b"".join(EVENTS)


def test_the_replica_is_the_one_that_was_chosen_and_nothing_is_left_charged(
    stack: Stack, replicas: Witnesses
) -> None:
    replicas.seen.clear()
    for number in range(10):
        http2(stack.port, "/v1/chat/completions", chat(5000 + number))
    assert len(replicas.seen) == 10
    for seen in replicas.seen:
        (chosen,) = seen.all("x-gateway-destination-endpoint")
        assert chosen.split(",")[0] == seen.at
    until(lambda: ledger_tokens(stack) == 0, 10, "the ledger is empty")
