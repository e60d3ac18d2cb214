"""Each transport against a foreign gRPC client, without Envoy: streams, health, limits, stopping."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from extproc.core.pool import Pool
from extproc.core.steering import Rules, Steering
from extproc.core.traits import Traits
from extproc.io import clock
from extproc.io.sessions import ExchangeSession
from extproc.io.transports import reflection
from extproc.pb import ext_proc_pb2 as pb
from extproc.pb import health_pb2, reflection_pb2
from tests.integration.patience import patient
from tests.integration.transports import TRANSPORTS
from tests.unit.messages import answer, chat, request_body, request_headers, set_headers

PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"


class Recorder:
    """A watcher that notes what it is told."""

    def __init__(self) -> None:
        self.settled_outcomes: list[str] = []
        self.callers: list[str] = []
        self.ended_count = 0

    def settled(self, exchange: Any, seconds: float) -> None:
        assert 0 <= seconds < patient(5)
        self.settled_outcomes.append(exchange.outcome)
        self.callers.append(exchange.caller)

    def failed(self, exchange: Any, error: Exception) -> None:
        raise AssertionError("the exchange failed") from error

    def ended(self, exchange: Any) -> None:
        self.ended_count += 1


class Served:
    """A transport with a core behind it and a channel to it."""

    def __init__(self, kind: str, max_streams: int = 100, max_message: int = 2**20) -> None:
        self.kind = kind
        pool = Pool("p", traits=Traits(stale_after=1e9), now=0.0)
        pool.join("10.0.0.1:8000", 0.0)
        self.mind = Steering([pool], Rules(), random.Random(1))
        self.watcher = Recorder()
        self.transport = TRANSPORTS[kind](
            "127.0.0.1:0",
            lambda: ExchangeSession(self.mind, self.watcher, clock.monotonic),
            max_message=max_message,
            max_streams=max_streams,
        )

    async def __aenter__(self) -> "Served":
        await self.transport.start()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.transport.port}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        await self.transport.stop(1.0)

    def stream(self, **metadata: str) -> Any:
        return self.channel.stream_stream(PROCESS)(metadata=tuple(metadata.items()))

    async def health(self, service: str) -> int:
        request = health_pb2.HealthCheckRequest(service=service).SerializeToString()
        reply = await self.channel.unary_unary("/grpc.health.v1.Health/Check")(request)
        return health_pb2.HealthCheckResponse.FromString(reply).status


@pytest.fixture(params=TRANSPORTS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
async def served(kind: str) -> AsyncIterator[Served]:
    async with Served(kind) as made:
        yield made


async def decided(call: Any) -> pb.ProcessingResponse:
    await call.write(request_headers())
    answer(await call.read())
    await call.write(request_body(chat()))
    return answer(await call.read())


async def gone(condition: Any) -> None:
    async with asyncio.timeout(patient(5)):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_traceparent_among_the_metadata_of_a_call_is_its_exchange_s_caller(served: Served) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    for call in (served.stream(traceparent=trace), served.stream()):
        await decided(call)
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
    assert served.watcher.callers == [trace, ""]


async def test_a_stream_is_steered_and_released_at_its_end(served: Served) -> None:
    call = served.stream()
    reply = await decided(call)
    assert set_headers(reply)["x-gateway-destination-endpoint"] == "10.0.0.1:8000"
    assert len(served.mind.ledger) == 1
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    await gone(lambda: len(served.mind.ledger) == 0)
    assert (served.watcher.settled_outcomes, served.watcher.ended_count) == (["steered"], 1)


async def test_a_cancelled_stream_is_released(served: Served) -> None:
    call = served.stream()
    await decided(call)
    call.cancel()
    await gone(lambda: len(served.mind.ledger) == 0)


async def test_another_mode_ends_the_stream_with_ok(served: Served) -> None:
    call = served.stream()
    await call.write(request_headers(mode=pb.ProcessingMode.GRPC))
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    await gone(lambda: served.watcher.settled_outcomes == ["other_mode"])


async def test_garbage_ends_its_own_stream_and_no_other(served: Served) -> None:
    good, bad = served.stream(), served.stream()
    await good.write(request_headers())
    answer(await good.read())
    await bad.write(b"\xff\xff\xff")
    assert await bad.read() is grpc.aio.EOF
    await good.write(request_body(chat()))
    assert set_headers(answer(await good.read()))


async def test_a_client_that_compresses_is_told_that_nothing_compressed_is_taken(served: Served) -> None:
    for how in (grpc.Compression.Gzip, grpc.Compression.Deflate):
        call = served.channel.stream_stream(PROCESS)(compression=how)
        if (
            served.kind == "fast"
        ):  # grpc.aio tells by the headers; a client that writes then tells of its own failure
            await call.write(request_headers(extra="x" * 1000))
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
    plain = served.stream()
    assert set_headers(await decided(plain))
    offered = dict(await plain.initial_metadata()).get("grpc-accept-encoding", "identity")
    assert offered == "identity"


@pytest.mark.parametrize(
    ("service", "when_ready", "when_not"),
    [
        ("", 1, 2),
        ("readiness", 1, 2),
        ("envoy.service.ext_proc.v3.ExternalProcessor", 1, 2),
        ("liveness", 1, 1),
    ],
)
async def test_health_follows_readiness_and_liveness_does_not(
    served: Served, service: str, when_ready: int, when_not: int
) -> None:
    assert await served.health(service) == when_not
    served.transport.set_ready(True)
    assert await served.health(service) == when_ready


async def test_health_of_an_unknown_service_is_not_found(served: Served) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.health("no.such.Service")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_health_watch_is_told_of_changes(served: Served) -> None:
    request = health_pb2.HealthCheckRequest(service="").SerializeToString()
    call = served.channel.unary_stream("/grpc.health.v1.Health/Watch")(request)
    assert health_pb2.HealthCheckResponse.FromString(await call.read()).status == 2
    served.transport.set_ready(True)
    assert health_pb2.HealthCheckResponse.FromString(await call.read()).status == 1
    call.cancel()


async def test_too_many_streams_are_refused_and_those_open_go_on(kind: str) -> None:
    async with Served(kind, max_streams=1) as served:
        first = served.stream()
        await first.write(request_headers())
        answer(await first.read())
        # Opened only now: two calls made at once may arrive in either order.
        second = served.stream()
        assert await second.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await first.write(request_body(chat()))
        assert set_headers(answer(await first.read()))


async def test_a_message_over_the_limit_ends_only_its_stream(kind: str) -> None:
    async with Served(kind, max_message=100_000) as served:
        call = served.stream()
        await call.write(request_headers())
        answer(await call.read())
        await call.write(request_body(chat("x" * 200_000)))
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await gone(lambda: len(served.mind.ledger) == 0)
        await decided(served.stream())


async def test_stopping_ends_decided_streams_with_ok_and_lets_the_undecided_decide(kind: str) -> None:
    async with Served(kind) as served:
        settled, pending = served.stream(), served.stream()
        await decided(settled)
        await pending.write(request_headers())
        answer(await pending.read())
        stopping = asyncio.create_task(served.transport.stop(5.0))
        await asyncio.sleep(0)
        await pending.write(request_body(chat()))
        assert set_headers(answer(await pending.read())), "a request under way was not steered any more"
        await asyncio.wait_for(stopping, patient(10))
        assert await settled.code() is grpc.StatusCode.OK
        assert await pending.code() is grpc.StatusCode.OK
        assert len(served.mind.ledger) == 0


async def test_an_address_in_use_is_an_oserror_that_names_it(served: Served) -> None:
    second = TRANSPORTS[served.kind](
        f"127.0.0.1:{served.transport.port}",
        lambda: None,
        max_message=1000,
        max_streams=1,  # type: ignore[arg-type,return-value]
    )
    with pytest.raises(OSError, match=str(served.transport.port)):
        await second.start()


async def test_a_stop_gives_back_the_part_of_a_body_that_nobody_else_has(kind: str) -> None:
    async with Served(kind) as served:
        call = served.stream()
        await call.write(request_headers(mode=pb.ProcessingMode.FULL_DUPLEX_STREAMED))
        await call.write(request_body(b"a part of a bo", end=False))
        other = served.stream()  # its answer tells that the part was read
        await decided(other)
        await served.transport.stop(0.1)
        first, piece = answer(await call.read()), answer(await call.read())
        assert first.WhichOneof("response") == "request_headers"
        streamed = piece.request_body.response.body_mutation.streamed_response
        assert (streamed.body, streamed.end_of_stream) == (b"a part of a bo", False)
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("path", reflection.PATHS)
async def test_reflection_answers_each_question_on_one_stream(kind: str, path: str) -> None:
    async with Served(kind) as served:
        call = served.channel.stream_stream(path)()
        for asked in (reflection_pb2.ServerReflectionRequest(list_services=""),) * 2:
            await call.write(asked.SerializeToString())
            told = reflection_pb2.ServerReflectionResponse.FromString(await call.read())
            names = {service.name for service in told.list_services_response.service}
            assert PROCESS.split("/")[1] in names
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK


async def test_a_stop_ends_reflection_that_is_open(kind: str) -> None:
    async with Served(kind) as served:
        call = served.channel.stream_stream(reflection.PATHS[0])()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString())
        await call.read()
        await served.transport.stop(5.0)
        assert await call.code() is grpc.StatusCode.OK
