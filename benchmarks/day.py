"""What a day brings, for benchmarks/soak_day.py: Envoy's messages of requests that nobody sent before, and engines.

Most are chats that go on, some have models or tenants that nobody knows, bodies that can't be read, or none; most end
cleanly with their usage, some clients leave, some answers are errors.
"""

import random
from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import Any, Final, NamedTuple

import orjson
from google.protobuf.any_pb2 import Any as Packed

from extproc.core.clean_end import FILTER
from extproc.core.sample import Sample
from extproc.core.usage.token_usage import NAMESPACE
from extproc.demo.workload import text
from extproc.pb import access_log_pb2 as log
from extproc.pb import ext_proc_pb2 as pb

_MODELS: Final = ("chat-large", "chat-small")
#: Chats that go on at once, of which the oldest is forgotten; most turns of one.
_CHATS, _TURNS = 200, 6
#: Dialects beside chats, with a body of each.
_OTHERS: Final = (
    ("/v1/completions", {"prompt": "say this again"}),
    ("/v1/responses", {"input": "and this"}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "as well"}], "max_tokens": 8}),
)


class Request(NamedTuple):
    """One request: its id, its messages up to the end of its body, and how long its answer takes, in seconds."""

    name: str
    messages: list[bytes]
    lasts: float


class Client:
    """Makes them, one after the other, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._systems = [text(self._rng, 1000) for _ in range(50)]
        self._chats: deque[list[dict[str, str]]] = deque(maxlen=_CHATS)
        self._numbers = count(1)

    def request(self) -> Request:
        """The next one."""
        rng, number = self._rng, next(self._numbers)
        path, body = self._asked(number)
        headers = {":path": path, ":method": "POST", "x-request-id": f"{number:032x}", **self._who()}
        if rng.random() < 0.2:
            headers["traceparent"] = f"00-{rng.getrandbits(128) | 1:032x}-{rng.getrandbits(64) | 1:016x}-01"
        first = pb.ProcessingRequest()
        for key, value in headers.items():
            first.request_headers.headers.headers.add(key=key, raw_value=value.encode())
        first.request_headers.end_of_stream = not body
        first.protocol_config.request_body_mode = pb.ProcessingMode.BUFFERED
        messages = [first.SerializeToString()]
        if body:
            whole = pb.HttpBody(body=body, end_of_stream=True)
            messages.append(pb.ProcessingRequest(request_body=whole).SerializeToString())
        return Request(headers["x-request-id"], messages, rng.expovariate(0.2))

    def _who(self) -> dict[str, str]:
        """Tenants that are known, that are not, and nobody."""
        drawn = self._rng.random()
        if drawn < 0.1:
            return {"x-tenant": f"stranger-{self._rng.getrandbits(64):x}"}
        return {"x-tenant": self._rng.choice(("one", "two"))} if drawn < 0.9 else {}

    def _asked(self, number: int) -> tuple[str, bytes]:
        rng, drawn = self._rng, self._rng.random()
        if drawn < 0.02:
            return f"/v1/nothing/{number}", b""
        if drawn < 0.04:
            return "/v1/chat/completions", rng.randbytes(200)
        model = f"no-model-{number}" if drawn < 0.08 else rng.choice(_MODELS)
        if drawn < 0.2:
            path, more = rng.choice(_OTHERS)
            return path, orjson.dumps({"model": model, "user": f"{number}", **more})
        body = {"model": model, "messages": self._chat(number), "max_tokens": rng.randrange(1, 512)}
        return "/v1/chat/completions", orjson.dumps({**body, "stream": rng.random() < 0.5})

    def _chat(self, number: int) -> list[dict[str, str]]:
        """One that goes on, or a new one."""
        rng = self._rng
        chat = rng.choice(self._chats) if self._chats and rng.random() < 0.6 else None
        if chat is None or len(chat) > 2 * _TURNS:
            chat = [{"role": "system", "content": rng.choice(self._systems)}]
            self._chats.append(chat)
        else:
            chat.append({"role": "assistant", "content": f"{number} {rng.randbytes(60).hex()}"})
        chat.append({"role": "user", "content": f"{number} {rng.randbytes(120).hex()}"})
        return chat


def clean_end(rng: random.Random, replica: str, tokens: int) -> bytes:
    """The message of an answer's clean end; of an error one time in fifty."""
    message = pb.ProcessingRequest(response_trailers=pb.HttpTrailers())
    fields: dict[str, Any] = {"response.code": 200.0, "upstream.address": replica}
    message.attributes[FILTER].update(fields | {"upstream.request_attempt_count": 1.0})
    if rng.random() < 0.02:
        message.attributes[FILTER].update({"response.code": 503.0})
        return message.SerializeToString()
    usage = pb.TokenUsage(model="m", extraction_status=pb.TokenUsage.COMPLETE)
    usage.input_tokens.value, usage.output_tokens.value = max(tokens, 1), rng.randrange(1, 300)
    usage.input_token_details.cached_tokens.value = rng.randrange(max(tokens, 1))
    packed = Packed()
    packed.Pack(usage)
    packed.type_url = "type.googleapis.com/envoy.data.ai.v3.TokenUsage"
    message.metadata_context.typed_filter_metadata[NAMESPACE].CopyFrom(packed)
    return message.SerializeToString()


def log_entry(name: str, replica: str) -> bytes:
    """Envoy's access log of a client that left."""
    made = log.StreamAccessLogsMessage()
    entry = made.http_logs.log_entry.add()
    host, _, port = replica.rpartition(":")
    address = entry.common_properties.upstream_remote_address.socket_address
    address.address, address.port_value = host, int(port)
    entry.common_properties.response_flags.downstream_connection_termination = True
    entry.request.request_id = name
    entry.response.response_code.value = 200
    return made.SerializeToString()


class Engines:
    """What scrapes say of every engine that was ever there, and who is there: one goes and another comes.

    Attributes:
        addresses: who is there now, oldest first.
    """

    def __init__(self, rng: random.Random, there: int, first: int) -> None:
        self._rng = rng
        self._numbers = count(first)
        self.addresses = deque(self._next() for _ in range(there))
        self._started: dict[str, float] = {}

    def replace(self) -> tuple[str, str]:
        """The one that goes and the one that comes."""
        gone, came = self.addresses.popleft(), self._next()
        self.addresses.append(came)
        self._started.pop(gone, None)
        return gone, came

    def restart(self, now: float) -> None:
        """One of them starts anew."""
        self._started[self._rng.choice(self.addresses)] = now

    def samples(self, now: float) -> Iterator[tuple[str, Sample]]:
        """What all of them say."""
        draw = self._rng.random
        for address in self.addresses:
            started = self._started.get(address, 0.0)
            done = (now - started) * 1000.0
            yield (
                address,
                Sample(
                    at=now, running=float(int(draw() * 20)), waiting=float(int(draw() * 2)), kv_used=draw(),
                    kv_capacity=200_000, max_running=128, prompt_tokens=done, generated_tokens=done / 10,
                    query_tokens=done, hit_tokens=done / 2, prefill_sum=done / 1e4, prefill_count=done / 1e3,
                    started=1e9 + started,
                ),
            )  # fmt: skip

    def _next(self) -> str:
        number = next(self._numbers)
        return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}:8000"
