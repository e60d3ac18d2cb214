"""Usage and ends of real exchanges through the real Envoy, from every source: right or absent, never wrong."""

import asyncio
import gzip
import hashlib
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest
import yaml

from extproc.demo.stack import Stack, StackSettings
from extproc.envoyconfig import render
from extproc.envoyconfig.yamltext import to_yaml
from tests.integration.conftest import ledger_tokens, until
from tests.integration.fixed_engine import BODIES, FixedEngine, fixed_engine
from tests.integration.patience import bar, patient

SOURCES = ("trailers", "access_log", "body", "headers", "off")
#: Sources that tell of usage at all, and those that read what is compressed: Envoy's own reader does not.
TELLING = frozenset({"trailers", "access_log", "body"})
UNPACKING = frozenset({"body"})
RIGHT = (100, 64, 7)
ABSENT = (None, None, None)


class FixedStack(Stack):
    """A stack before replicas that run already."""

    def __init__(self, engine: FixedEngine, **feedback: Any) -> None:
        super().__init__(
            StackSettings(
                redis_url="",
                gateway={"feedback": feedback},
                pool={"metrics": {"enabled": False}, "engine": "vllm"},
            )
        )
        self._engine = engine

    def start_engines(self) -> None:
        self.replicas = list(self._engine.replicas)


@pytest.fixture(scope="module")
def engine() -> Iterator[FixedEngine]:
    with fixed_engine(2) as running:
        yield running


@pytest.fixture(scope="module", params=SOURCES)
def stack(request: pytest.FixtureRequest, engine: FixedEngine) -> Iterator[Stack]:
    with FixedStack(engine, source=request.param) as running:
        yield running


def source_of(stack: Stack) -> str:
    return str(stack.settings.gateway["feedback"]["source"])


def metric(stack: Stack, name: str) -> float:
    """The sum of a counter over its labels."""
    url = f"http://127.0.0.1:{stack.gateway_ports[0][1]}/metrics"
    with urllib.request.urlopen(url, timeout=patient(5)) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))


class Watch:
    """What the gateway makes of the one exchange within."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._before = self._newest().get("request_id"), metric(stack, "kvsteer_endings_total")

    def ending(self) -> dict[str, Any]:
        """How it ended, once everything is told."""
        return until(self._told, 5, "the exchange has no end")

    def _newest(self) -> dict[str, Any]:
        return next(iter(self._stack.admin("/decisions?last=1")["decisions"]), {})

    def _told(self) -> dict[str, Any] | None:
        """An exchange of before may end meanwhile."""
        newest, (request_id, endings) = self._newest(), self._before
        ending = newest.get("ending") or {}
        if newest.get("request_id") == request_id or ending.get("by") is None:
            return None
        return ending if metric(self._stack, "kvsteer_endings_total") > endings else None

    def usage(self) -> tuple[Any, Any, Any]:
        """Prompt tokens, cached tokens, output tokens."""
        ending = self.ending()
        return ending.get("prompt_tokens"), ending.get("cached_tokens"), ending.get("output_tokens")


async def ask(stack: Stack, name: str, **headers: str) -> tuple[int, bytes, Any]:
    """Status, body as it came, headers."""
    stream = BODIES[name].startswith(b"data:")
    body = {"model": "demo", "messages": [{"role": "user", "content": name}], "stream": stream}
    async with (
        aiohttp.ClientSession(auto_decompress=False) as session,
        session.post(
            f"{stack.url}/v1/chat/completions",
            json=body,
            headers={"accept-encoding": "identity", **headers},
            timeout=aiohttp.ClientTimeout(total=patient(30)),
        ) as answer,
    ):
        return answer.status, await answer.read(), answer.headers


def same(got: bytes, name: str) -> bool:
    return hashlib.sha256(got).digest() == hashlib.sha256(BODIES[name]).digest()


@pytest.mark.parametrize("name", ["json", "three choices", "3 MB", "events with usage"])
async def test_usage_is_right_where_the_source_tells_it(stack: Stack, name: str) -> None:
    watch = Watch(stack)
    status, got, headers = await ask(stack, name)
    assert (status, same(got, name)) == (200, True)
    assert watch.usage() == (RIGHT if source_of(stack) in TELLING else ABSENT)
    assert watch.ending()["by"] == "complete"
    assert watch.ending()["served"] == headers["x-kvsteer-replica"]


async def test_a_stream_without_usage_has_none(stack: Stack) -> None:
    watch = Watch(stack)
    status, got, _ = await ask(stack, "events without usage")
    assert (status, same(got, "events without usage")) == (200, True)
    assert watch.usage() == ABSENT


@pytest.mark.parametrize("name", ["json", "3 MB", "events with usage"])
async def test_compressed_answers_pass_unchanged_and_are_read_where_that_can_be(
    stack: Stack, name: str
) -> None:
    watch = Watch(stack)
    status, got, headers = await ask(stack, name, **{"accept-encoding": "gzip"})
    assert (status, headers["content-encoding"]) == (200, "gzip")
    assert got == gzip.compress(BODIES[name], mtime=0)
    assert watch.usage() == (RIGHT if source_of(stack) in UNPACKING else ABSENT)


@pytest.mark.parametrize("name", ["error 429", "error 500"])
async def test_errors_have_no_usage_even_where_their_body_looks_like_it(stack: Stack, name: str) -> None:
    watch = Watch(stack)
    status, got, _ = await ask(stack, name)
    assert (status, same(got, name)) == (int(name[6:]), True)
    assert watch.usage() == ABSENT
    assert watch.ending()["status"] == status


async def test_a_replica_that_resets_before_it_answers_gives_no_usage_and_is_not_followed_by_another(
    stack: Stack,
) -> None:
    """It may have begun to compute: a prompt that crashes one engine is not fed to the next."""
    watch = Watch(stack)
    status, _, _ = await ask(stack, "reset once")
    assert status == 503
    assert watch.usage() == ABSENT


async def test_after_a_retry_usage_and_replica_are_those_of_the_one_that_answered(stack: Stack) -> None:
    watch = Watch(stack)
    status, got, headers = await ask(stack, "503 once")
    assert (status, same(got, "503 once")) == (200, True)
    assert watch.usage() == (RIGHT if source_of(stack) in TELLING else ABSENT)
    assert watch.ending()["attempts"] == 2
    assert watch.ending()["served"] == headers["x-kvsteer-replica"]


@pytest.mark.parametrize("share", [0, 0.01, 0.3, 0.6, 0.9, 1])
async def test_a_client_that_leaves_anywhere_gives_the_right_usage_or_none(
    stack: Stack, share: float
) -> None:
    """It reads this share of the bytes and closes its connection."""
    watch = Watch(stack)
    body = json.dumps({"model": "demo", "messages": [{"role": "user", "content": "slow"}], "stream": True})
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: "
    )
    writer.write(f"{head}{len(body)}\r\n\r\n{body}".encode())
    wanted, got = round(share * len(BODIES["slow"])), 0
    while got < wanted:
        piece = await asyncio.wait_for(reader.read(wanted - got), patient(20))
        got += len(piece)
    writer.transport.abort()
    assert watch.usage() in (ABSENT, RIGHT)
    until(lambda: ledger_tokens(stack) == 0, 5, "the ledger is not empty")


async def test_a_replica_that_breaks_off_gives_no_usage(stack: Stack) -> None:
    watch = Watch(stack)
    with pytest.raises(aiohttp.ClientError):
        await ask(stack, "cut")
    assert watch.usage() == ABSENT
    assert watch.ending()["by"] == "upstream"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl speaks HTTP/2 here")
@pytest.mark.parametrize("name", ["json", "events with usage"])
def test_http_2_clients_get_the_same_bytes_and_no_trailers_of_ours(stack: Stack, name: str) -> None:
    watch = Watch(stack)
    body = json.dumps({"model": "demo", "messages": [{"role": "user", "content": name}]})
    url = f"{stack.url}/v1/chat/completions"
    command = ["curl", "-s", "--http2-prior-knowledge", "-w", "%{stderr}%{http_version}", "-d", body, url]
    command += ["-H", "content-type: application/json"]
    done = subprocess.run(command, capture_output=True, timeout=patient(30), check=True)
    assert done.stderr == b"2"
    assert same(done.stdout, name)
    assert watch.usage() == (RIGHT if source_of(stack) in TELLING else ABSENT)


# ---- configurations that are not ours ----


def in_mode(text: str, mode: str) -> str:
    """The bootstrap with another mode for response bodies; full duplex needs the trailers too."""
    tree = yaml.safe_load(text)
    (listener,) = tree["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    processing = manager["http_filters"][0]["typed_config"]["processing_mode"]
    processing["response_body_mode"] = mode
    processing["response_trailer_mode"] = "SEND" if mode == "FULL_DUPLEX_STREAMED" else "SKIP"
    return to_yaml(tree)


@pytest.fixture(scope="module", params=["BUFFERED", "BUFFERED_PARTIAL", "STREAMED", "FULL_DUPLEX_STREAMED"])
def foreign(request: pytest.FixtureRequest, engine: FixedEngine) -> Iterator[tuple[Stack, str]]:
    stack = FixedStack(engine, source="body")
    try:
        with pytest.MonkeyPatch.context() as patch:  # only for its start: other stacks start beside it
            patch.setattr(
                "extproc.demo.stack.render", lambda settings: in_mode(render(settings), request.param)
            )
            stack.start()
        yield stack, request.param
    finally:
        stack.close()


@pytest.mark.parametrize("coding", ["identity", "gzip"])
@pytest.mark.parametrize("name", ["json", "3 MB", "events with usage", "events without usage", "error 500"])
async def test_bodies_in_any_mode_pass_unchanged_and_are_read(
    foreign: tuple[Stack, str], name: str, coding: str
) -> None:
    """3 MB fit into what our route lets Envoy buffer (limits.body), in both directions."""
    stack, _ = foreign
    watch = Watch(stack)
    status, got, headers = await ask(stack, name, **{"accept-encoding": coding})
    packed = headers.get("content-encoding") == "gzip"
    assert (gzip.decompress(got) if packed else got) == BODIES[name]
    assert not packed or got == gzip.compress(BODIES[name], mtime=0)
    usage = watch.usage()
    told = status == 200 and name != "events without usage"
    assert usage == (RIGHT if told else ABSENT)


# ---- usage asked for on behalf of the client ----


@pytest.fixture(scope="module")
def asking(engine: FixedEngine) -> Iterator[Stack]:
    with FixedStack(engine, include_usage=True) as running:
        yield running


def last_sent(engine: FixedEngine) -> bytes:
    return engine.received[-1]


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_stream_is_asked_for_its_usage_and_nothing_else_is_changed(
    asking: Stack, engine: FixedEngine, chunked: bool
) -> None:
    body = b'{ "model" : "demo","stream":true, "messages":[{"role":"user","content":"events with usage"}],"x":1.50}'
    url = f"{asking.url}/v1/chat/completions"
    headers = {"content-type": "application/json", "accept-encoding": "identity"}
    data: Any = body
    if chunked:

        async def pieces() -> AsyncIterator[bytes]:
            yield body[:20]
            yield body[20:]

        data = pieces()
    watch = Watch(asking)
    async with aiohttp.ClientSession() as session, session.post(url, data=data, headers=headers) as answer:
        assert answer.status == 200
        assert same(await answer.read(), "events with usage")
    assert last_sent(engine) == b'{"stream_options":{"include_usage":true},' + body[1:]
    assert watch.usage() == RIGHT


MESSAGES = b'"messages":[{"role":"user","content":"events with usage"}]'


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"demo","stream":false,%s}' % MESSAGES,
        b'{"model":"demo","stream":true,"stream_options":{"include_usage":true},%s}' % MESSAGES,
    ],
)
async def test_what_needs_no_asking_stays_byte_for_byte(
    asking: Stack, engine: FixedEngine, body: bytes
) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{asking.url}/v1/chat/completions", data=body) as answer,
    ):
        assert answer.status == 200
    assert last_sent(engine) == body


async def test_without_the_setting_a_stream_stays_byte_for_byte(stack: Stack, engine: FixedEngine) -> None:
    await ask(stack, "events without usage")
    assert b"stream_options" not in last_sent(engine)


# ---- what the access log need not tell ----


#: How Envoy is configured: requests are held or come in pieces, are steered by metadata or by a header.
SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "buffered": ({}, {}),
    "full_duplex": ({}, {"request_body_mode": "full_duplex", "retries": 0}),
    "original_dst": ({"requests": {"fallbacks": 0}}, {"steering": "original_dst"}),
}


@pytest.fixture(scope="module", params=SHAPES)
def sparing(request: pytest.FixtureRequest, engine: FixedEngine) -> Iterator[Stack]:
    gateway, envoy = SHAPES[request.param]
    stack = FixedStack(engine, source="trailers")
    stack.settings.gateway.update(gateway)
    stack.settings.envoy.update(envoy)
    with stack:
        yield stack


async def test_the_access_log_leaves_out_what_clean_ends_told_and_nothing_else(sparing: Stack) -> None:
    """Clients keep their connections: one that closes it before the end is told is logged as one that left.

    Of an answer without usage Envoy's filter makes no trailers, so that the log alone tells of it.
    """
    timeout, plain = aiohttp.ClientTimeout(patient(30)), {"accept-encoding": "identity"}
    logged = 0.0
    async with aiohttp.ClientSession(f"{sparing.url}", timeout=timeout, headers=plain) as session:
        for name in ("error 429", "events without usage", "error 500", "503 once", "cut", "reset once"):
            endings = metric(sparing, "kvsteer_endings_total")
            for number, asked in enumerate(("json", "events with usage", name), 1):
                body = {"model": "demo", "messages": [{"role": "user", "content": asked}]}
                try:
                    async with session.post("/v1/chat/completions", json=body) as answer:
                        await answer.read()
                except aiohttp.ClientError:
                    assert asked == "cut"
                wait_for_more(sparing, "kvsteer_endings_total", endings + number)
            logged += 1
            wait_for_more(sparing, "kvsteer_log_entries_total", logged)
            assert metric(sparing, "kvsteer_log_entries_total") == logged, name


def wait_for_more(stack: Stack, name: str, wanted: float) -> None:
    until(lambda: metric(stack, name) >= wanted, 5, f"{name} does not become {wanted}")


# ---- limits of time ----


@pytest.fixture(params=["first_byte", "silence", "total"])
def limited(request: pytest.FixtureRequest, engine: FixedEngine) -> Iterator[tuple[Stack, str]]:
    made = FixedStack(engine, source="access_log")
    made.settings.pool["timeouts"] = {request.param: "2s"}
    with made:
        yield made, request.param


async def test_limits_of_time_end_what_they_say_and_nothing_else(limited: tuple[Stack, str]) -> None:
    """Late headers, a gap between two pieces, and a steady stream that takes longer than the limit."""
    stack, limit = limited
    for name, limits in (
        ("late", {"first_byte", "silence", "total"}),
        ("gap", {"silence", "total"}),
        ("slow", {"total"}),
    ):
        watch, began, whole = Watch(stack), time.monotonic(), False
        try:
            status, got, _ = await ask(stack, name)
            whole = status == 200 and same(got, name)
            assert whole or status == 504
        except aiohttp.ClientPayloadError:
            pass
        ending = watch.ending()
        assert whole == (limit not in limits), f"{limit}: {name}"
        assert ending["by"] == ("complete" if whole else "upstream"), f"{limit}: {name}"
        assert watch.usage() == (RIGHT if whole else ABSENT)
        assert whole or time.monotonic() - began < bar(4), f"{limit}: {name} took too long to be ended"
