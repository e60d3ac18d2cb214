"""An engine whose answers are the same bytes each time, so that what a client got can be compared with what was sent.

The text of the request's message names the answer. Its usage is always 100 tokens in, 64 of them cached, 7 out.
"""

import asyncio
import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from aiohttp import web

USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 7,
    "total_tokens": 107,
    "prompt_tokens_details": {"cached_tokens": 64},
}


def chat_json(text: str = "hello", n: int = 1, **more: Any) -> bytes:
    """A chat completion in one piece."""
    choices = [
        {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for i in range(n)
    ]
    whole = {"id": "c", "object": "chat.completion", "model": "demo", "choices": choices, "usage": USAGE}
    return json.dumps({**whole, **more}).encode()


def chat_events(usage: bool, pieces: int = 5) -> list[bytes]:
    """The events of a streamed one."""
    head = {"id": "c", "object": "chat.completion.chunk", "model": "demo"}
    events: list[Any] = []
    for number in range(pieces):
        finish = "stop" if number == pieces - 1 else None
        choice = {"index": 0, "delta": {"content": f'tok {number} "usage": {{'}, "finish_reason": finish}
        events.append({**head, "choices": [choice], **({"usage": None} if usage else {})})
    if usage:
        events.append({**head, "choices": [], "usage": USAGE})
    return [*(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events), b"data: [DONE]\n\n"]


BODIES = {
    "json": chat_json(),
    "three choices": chat_json(n=3),
    "3 MB": chat_json("word " * 600_000),
    "events with usage": b"".join(chat_events(True)),
    "events without usage": b"".join(chat_events(False)),
    "error 429": b'{"error": {"message": "slow down"}, "usage": {"prompt_tokens": 5, "completion_tokens": 5}}',
    "error 500": b'{"error": {"message": "oh"}, "usage": {"prompt_tokens": 5, "completion_tokens": 5}}',
    "late": chat_json(),
    "slow": b"".join(chat_events(True, 40)),
    "cut": b"".join(chat_events(True)),
    "503 once": chat_json(),
    "reset once": chat_json(),
    "gap": b"".join(chat_events(True)),
}


class FixedEngine:
    """Any number of replicas in one thread.

    Attributes:
        replicas: their addresses.
        received: bodies of the requests, oldest first.
    """

    def __init__(self, count: int) -> None:
        self.replicas: list[str] = []
        self.received: list[bytes] = []
        self._count = count
        self._failed: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        """Listen on free ports."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def stop(self) -> None:
        """End the thread and what it serves."""
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        for _ in range(self._count):
            site = web.TCPSite(self._runner, "127.0.0.1", 0)
            await site.start()
        self.replicas = [f"{host}:{port}" for host, port in self._runner.addresses]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if not request.path.endswith("/chat/completions"):
            return web.json_response({})
        self.received.append(body)
        asked = json.loads(body)
        name = asked["messages"][0]["content"]
        number = request.headers.get("x-kvsteer-request-id", "")
        if name.endswith("once") and number not in self._failed:
            self._failed.add(number)
            return self._fail(request, name)
        if name.startswith("error"):
            return web.Response(body=BODIES[name], status=int(name[6:]), content_type="application/json")
        data = BODIES[name]
        if name == "late":
            await asyncio.sleep(4.0)
        if data.startswith(b"data:"):
            with suppress(ConnectionError):  # a client that left
                return await self._stream(request, name, data)
        return self._whole(request, data)

    def _fail(self, request: web.Request, name: str) -> web.Response:
        if name == "503 once":
            return web.Response(body=BODIES["error 500"], status=503, content_type="application/json")
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    def _whole(self, request: web.Request, data: bytes) -> web.Response:
        headers = {"content-type": "application/json"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            data, headers["content-encoding"] = gzip.compress(data, mtime=0), "gzip"
        return web.Response(body=data, headers=headers)

    async def _stream(self, request: web.Request, name: str, data: bytes) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        if "gzip" in request.headers.get("accept-encoding", ""):
            data = gzip.compress(data, mtime=0)
            answer.headers["content-encoding"] = "gzip"
        await answer.prepare(request)
        step = max(1, len(data) // 7)
        for at in range(0, len(data), step):
            if at >= 3 * step and name == "cut":
                assert request.transport is not None
                request.transport.abort()
                return answer
            if at >= 3 * step and name == "gap":
                name = ""
                await asyncio.sleep(4.0)
            await answer.write(data[at : at + step])
            await asyncio.sleep(0.4 if name == "slow" else 0.005)
        await answer.write_eof()
        return answer


@contextmanager
def fixed_engine(count: int = 2) -> Iterator[FixedEngine]:
    """Running replicas, ended afterwards."""
    engine = FixedEngine(count)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()
