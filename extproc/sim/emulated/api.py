"""The HTTP side: vLLM's paths, plus /_control and /_truth."""

import asyncio
import hashlib
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
import xxhash
from aiohttp import web

from extproc.sim.emulated import answers, problems
from extproc.sim.emulated.answers import Answer
from extproc.sim.emulated.bodies import read_json
from extproc.sim.emulated.faults import BadControl, Control, Scope
from extproc.sim.emulated.jobs import Job, Reader
from extproc.sim.emulated.life import Life
from extproc.sim.emulated.prefill import Prefill
from extproc.sim.emulated.problems import Problem
from extproc.sim.emulated.ranks import HEADER
from extproc.sim.emulated.scheduler import Sequence
from extproc.sim.emulated.sinks import Collector, EventWriter, reset

if TYPE_CHECKING:
    from extproc.sim.emulated.server import EmulatedEngine

#: Longest JSON of request headers that is echoed, bytes; aiohttp refuses header lines over 8,190.
_MAX_ECHO = 8000


#: Served only where adapters may come and go at run time.
_AT_RUN_TIME = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})


class _Route(NamedTuple):
    methods: tuple[str, ...]
    handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
    scope: Scope | None = None  # which faults hit it; None = none do


class Api:
    """Answers the requests of one engine."""

    def __init__(self, engine: "EmulatedEngine") -> None:
        self._engine = engine
        self._settings = engine.settings
        self._reader = Reader(engine.settings)
        self._prefill = Prefill(engine.settings)
        self._numbers = itertools.count(1)
        get, post, compute = ("GET", "HEAD"), ("POST",), ("POST",)
        self._routes = {
            "/v1/chat/completions": _Route(compute, self._chat, "requests"),
            "/v1/completions": _Route(compute, self._completion, "requests"),
            "/v1/embeddings": _Route(compute, self._embeddings, "requests"),
            "/rerank": _Route(compute, self._rerank, "requests"),
            "/v1/rerank": _Route(compute, self._rerank, "requests"),
            "/v2/rerank": _Route(compute, self._rerank, "requests"),
            "/score": _Route(compute, self._score, "requests"),
            "/v1/score": _Route(compute, self._score, "requests"),
            "/tokenize": _Route(compute, self._tokenize, "requests"),
            "/v1/models": _Route(get, self._models, "requests"),
            "/v1/load_lora_adapter": _Route(post, self._load_adapter, "requests"),
            "/v1/unload_lora_adapter": _Route(post, self._unload_adapter, "requests"),
            "/metrics": _Route(get, self._metrics, "metrics"),
            "/health": _Route(get, self._empty, "health"),
            "/ping": _Route(get + post, self._empty, "health"),
            "/version": _Route(get, self._version),
            "/_control": _Route(get + post, self._control),
            "/_truth": _Route(get, self._truth),
        }

    def restarted(self) -> None:
        """The engine started anew: adapters loaded at run time are gone."""
        self._reader = Reader(self._settings)

    async def close(self) -> None:
        """Ask other replicas nothing any more."""
        await self._prefill.close()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Any request of any connection."""
        route = self._routes.get(request.path)
        if route is None or (request.path in _AT_RUN_TIME and not self._settings.runtime_adapters):
            return self._json(b'{"detail":"Not Found"}', status=404)
        if request.method not in route.methods:
            allow = {"allow": ", ".join(route.methods)}
            return self._json(b'{"detail":"Method Not Allowed"}', status=405, headers=allow)
        if request.headers.get("expect", "").lower() == "100-continue" and request.transport:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        counts = self._engine.life.books.requests
        counts["received"] += route.scope == "requests"
        if route.scope and (answer := await self._suffer(request, route.scope)):
            return answer
        try:
            return await route.handler(request)
        except Problem as problem:
            counts["refused"] += route.scope == "requests"
            return self._refuse(problem)

    async def _suffer(self, request: web.BaseRequest, scope: Scope) -> web.StreamResponse | None:
        """Let the faults that are on hit this request; the answer, if one of them gives it."""
        faults, counts = self._engine.faults, self._engine.life.books.requests
        if error := faults.hit_by_error(scope):
            counts["failed"] += 1
            return self._refuse(problems.injected(error.status, error.retry_after))
        if faults.hit_by_hang(scope):
            counts["hung"] += 1
            await asyncio.Event().wait()  # until the client goes away
        if faults.reset and faults.reset.when == "before_headers" and faults.hit_by_reset(scope):
            counts["reset"] += 1
            assert request.transport is not None
            reset(request.transport)
            await asyncio.Event().wait()  # the lost connection cancels this
        return None

    # -- requests that compute -------------------------------------------------------------------------------

    async def _chat(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._generate(request, self._reader.chat, chat=True)

    async def _completion(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._generate(request, self._reader.completion, chat=False)

    async def _generate(
        self, request: web.BaseRequest, read: Callable[[dict[str, Any]], Job], *, chat: bool
    ) -> web.StreamResponse:
        life = self._engine.ranks.of(request.headers.get(HEADER))
        body, headers = await self._receive(request)
        job = read(body)
        received = await self._prefill.elsewhere(request, body, job, life.books)
        sequences = self._sequences(life, job, self._settings.tokens_per_chunk if job.stream else 0)
        if received:
            for seq in sequences:
                seq.received = seq.stream.prompt_tokens
        answer = Answer(job, chat, self._request_id(request), int(time.time()), self._settings)
        if job.stream:
            return await self._stream(request, life, answer, sequences, headers, chat)
        await self._collect(life, sequences)
        return self._json(answer.whole(sequences), headers=headers)

    async def _embeddings(self, request: web.BaseRequest) -> web.StreamResponse:
        body, headers, job = await self._pool(request, self._reader.embedding)
        as_base64 = body.get("encoding_format") == "base64"
        number = self._request_id(request)
        created = int(time.time())
        return self._json(
            answers.embeddings(job, number, created, self._settings, as_base64), headers=headers
        )

    async def _rerank(self, request: web.BaseRequest) -> web.StreamResponse:
        body, headers, job = await self._pool(
            request, lambda body: self._reader.pairs(body, "query", "documents")
        )
        documents = [doc["text"] if isinstance(doc, dict) else doc for doc in body["documents"]]
        top_n = body["top_n"] if type(body.get("top_n")) is int else None
        return self._json(answers.ranking(job, self._request_id(request), documents, top_n), headers=headers)

    async def _score(self, request: web.BaseRequest) -> web.StreamResponse:
        _, headers, job = await self._pool(request, lambda body: self._reader.pairs(body, "text_1", "text_2"))
        return self._json(answers.scores(job, self._request_id(request), int(time.time())), headers=headers)

    async def _pool(
        self, request: web.BaseRequest, read: Callable[[dict[str, Any]], Job]
    ) -> tuple[dict[str, Any], dict[str, str], Job]:
        """A request whose answer is computed with its prompts and generates nothing."""
        life = self._engine.ranks.of(request.headers.get(HEADER))
        body, headers = await self._receive(request)
        job = read(body)
        await self._collect(life, self._sequences(life, job, 0))
        return body, headers, job

    async def _receive(self, request: web.BaseRequest) -> tuple[dict[str, Any], dict[str, str]]:
        """The JSON of a request, and the headers of its answer."""
        limit = self._settings.max_body
        try:
            raw = await request.read()
        except web.HTTPRequestEntityTooLarge:
            raise problems.body_too_large(limit) from None
        headers = self._echo(request, raw) if self._settings.echo_headers else {}
        kind, coding = request.headers.get("content-type", ""), request.headers.get("content-encoding", "")
        return read_json(raw, kind, coding, limit), headers

    def _sequences(self, life: Life, job: Job, stride: int) -> list[Sequence]:
        if not life.has_room(len(job.streams)):
            life.books.queue_rejections += 1
            raise problems.busy()
        return [
            Sequence(stream, output, reason=reason, stride=stride, adapter=job.adapter)
            for stream, output, reason in zip(job.streams, job.outputs, job.reasons, strict=True)
        ]

    async def _collect(self, life: Life, sequences: list[Sequence]) -> None:
        done = asyncio.get_running_loop().create_future()
        Collector(sequences, done)
        life.submit(sequences)
        await self._until(done, life, sequences)

    async def _stream(
        self,
        request: web.BaseRequest,
        life: Life,
        answer: Answer,
        sequences: list[Sequence],
        headers: dict[str, str],
        chat: bool,
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={**headers, **self._own_headers()})
        response.content_type = "text/event-stream"
        response.charset = "utf-8"
        await response.prepare(request)
        if request.transport is None:
            raise asyncio.CancelledError
        done = asyncio.get_running_loop().create_future()
        writer = EventWriter(answer, sequences, request.transport, life.books, done, chat)
        writer.framed = request.version >= (1, 1)
        writer.reset_after = self._reset_after()
        life.submit(sequences)
        await self._until(done, life, sequences)
        await response.write_eof()
        return response

    def _reset_after(self) -> int | None:
        fault = self._engine.faults.reset
        if fault is None or fault.when != "mid_stream" or not self._engine.faults.hit_by_reset("requests"):
            return None
        return fault.after_chunks

    async def _until(self, done: "asyncio.Future[None]", life: Life, sequences: list[Sequence]) -> None:
        """Wait for the answer. A client that goes away cancels this task, and so its sequences."""
        try:
            await done
        except asyncio.CancelledError:
            life.cancel(sequences)
            life.books.requests["cancelled"] += 1
            raise
        life.books.requests["completed"] += 1

    # -- the rest --------------------------------------------------------------------------------------------

    async def _tokenize(self, request: web.BaseRequest) -> web.StreamResponse:
        body, headers = await self._receive(request)
        tokens = self._reader.tokenize(body)
        answer = {
            "count": len(tokens),
            "max_model_len": self._settings.longest,
            "tokens": tokens,
            "token_strs": None,
        }
        return self._json(orjson.dumps(answer), headers=headers)

    async def _models(self, _: web.BaseRequest) -> web.StreamResponse:
        return self._json(
            answers.models(self._settings, self._reader.adapters, int(self._engine.life.started))
        )

    async def _load_adapter(self, request: web.BaseRequest) -> web.StreamResponse:
        name, path = await self._adapter_named(request, "lora_name", "lora_path")
        reader = self._reader
        if name in reader.adapters:
            raise problems.adapter_loaded(name)
        if path.rstrip("/").endswith("/missing"):
            raise problems.no_adapter(name, path)
        await asyncio.sleep(self._settings.adapter_register_ms / 1000 / self._settings.speed)
        if not reader.adapters.add(name, path):
            raise problems.adapter_loaded(name)
        if reader is self._reader:  # else it restarted meanwhile
            self._engine.life.scheduler.slots.put(name)
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def _unload_adapter(self, request: web.BaseRequest) -> web.StreamResponse:
        (name,) = await self._adapter_named(request, "lora_name")
        if not self._reader.adapters.remove(name):
            raise Problem(f"The lora adapter '{name}' cannot be found.", status=404, kind="NotFoundError")
        for life in self._engine.ranks.lives:
            life.scheduler.slots.drop(name)
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    async def _adapter_named(self, request: web.BaseRequest, *fields: str) -> list[str]:
        """What a call to load or unload says of these."""
        body, _ = await self._receive(request)
        found = [body.get(field) for field in fields]
        for field, value in zip(fields, found, strict=True):
            if not isinstance(value, str) or not value:
                raise problems.missing(field)
        return [str(value) for value in found]

    async def _metrics(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.Response(body=self._engine.metrics().encode(), headers=self._own_headers())
        response.headers["content-type"] = "text/plain; version=0.0.4; charset=utf-8"
        if "gzip" in request.headers.get("accept-encoding", ""):
            response.enable_compression(web.ContentCoding.gzip)
        return response

    async def _empty(self, _: web.BaseRequest) -> web.StreamResponse:
        return web.Response(headers=self._own_headers())

    async def _version(self, _: web.BaseRequest) -> web.StreamResponse:
        return self._json(b'{"version":"0.32.0"}')

    async def _control(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method != "POST":
            return self._json(orjson.dumps(self._engine.state()))
        try:
            control = Control.read(await request.read())
            answer = self._engine.control(control)
        except BadControl as error:
            raise Problem(str(error), param="/_control") from None
        return self._json(orjson.dumps(answer))

    async def _truth(self, _: web.BaseRequest) -> web.StreamResponse:
        return self._json(orjson.dumps(self._engine.truth()))

    def _refuse(self, problem: Problem) -> web.StreamResponse:
        headers = {} if problem.retry_after is None else {"retry-after": str(problem.retry_after)}
        return self._json(problem.body(), status=problem.status, headers=headers)

    def _json(
        self, body: bytes, *, status: int = 200, headers: dict[str, str] | None = None
    ) -> web.StreamResponse:
        own = {**self._own_headers(), "content-type": "application/json"}
        return web.Response(body=body, status=status, headers={**own, **headers} if headers else own)

    def _own_headers(self) -> dict[str, str]:
        return {"x-engine-id": self._settings.name, "server": "emulated-engine"}

    def _echo(self, request: web.BaseRequest, raw: bytes) -> dict[str, str]:
        received = {
            name.lower(): value
            for name, value in request.headers.items()
            if name[:2].lower() == "x-" or name.lower() == "traceparent"
        }
        listed = orjson.dumps(received).decode("utf-8", "replace").encode("ascii", "replace").decode()
        return {
            "x-received-sha256": hashlib.sha256(raw).hexdigest(),
            "x-received-headers": listed if len(listed) <= _MAX_ECHO else "{}",
        }

    def _request_id(self, request: web.BaseRequest) -> str:
        given = request.headers.get("x-request-id")
        if given:
            return given
        own = f"{self._settings.name} {self._engine.life.started} {next(self._numbers)}"
        return xxhash.xxh3_64_hexdigest(own.encode())
