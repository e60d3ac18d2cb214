"""An ext_proc server that does what a request's path says, right or wrong."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc

from extproc.core import replies
from extproc.io.transports.health import SERVICE
from extproc.pb import ext_proc_pb2 as pb
from extproc.pb import health_pb2
from tests.integration.patience import patient

_SERVING = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING).SerializeToString()


def _headers(name: str = "", value: bytes = b"") -> bytes:
    message = pb.ProcessingResponse(request_headers=pb.HeadersResponse())
    if name:
        option = message.request_headers.response.header_mutation.set_headers.add()
        option.header.key, option.header.raw_value = name, value
        option.append_action = pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    data: bytes = message.SerializeToString()
    return data


def _answers(
    how: str, context: grpc.ServicerContext, at_body: bool, to: str, released: threading.Event
) -> list[bytes] | None:
    """What to say to a message; None ends the stream with OK. A hung stream waits for the end of the test."""
    go_on = replies.CONTINUE_REQUEST_BODY if at_body else _headers()
    if how.endswith("at-body") and not at_body:
        return [go_on]
    fault = how.removesuffix("-at-body")
    if fault == "silent":
        released.wait(patient(20))
    elif fault == "abort":
        context.abort(grpc.StatusCode.INTERNAL, "a fault")
    elif fault == "crash":
        raise RuntimeError("a fault that the test wants")
    lies = {
        "silent": None,
        "close": None,
        "wrong-kind": [replies.CONTINUE_RESPONSE_BODY],
        "empty": [b""],
        "garbage": [b"\xff\xff\xff\xff"],
        "twice": [go_on, go_on],
        "bad-value": [_headers("x-kvsteer-request-id", b"a\r\nb: c")],
        "authority": [_headers(":authority", b"a")],
        "outside": [replies.steer(to, 0, "r", at_headers=not at_body)],
    }
    return lies.get(fault, [go_on])


@contextmanager
def lying_gateway(outside: str) -> Iterator[int]:
    """Its port; `outside` is where its picks lead, which is no replica of the pool."""

    released = threading.Event()

    def process(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        how = ""
        for data in requests:
            message = pb.ProcessingRequest.FromString(data)
            kind = message.WhichOneof("request")
            for header in message.request_headers.headers.headers:
                if header.key == ":path":
                    how = header.raw_value.decode().strip("/")
            answers = _answers(how, context, kind == "request_body", outside, released)
            if answers is None:
                return
            yield from answers

    server = grpc.server(ThreadPoolExecutor(16))
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                SERVICE, {"Process": grpc.stream_stream_rpc_method_handler(process)}
            ),
            grpc.method_handlers_generic_handler(
                "grpc.health.v1.Health",
                {"Check": grpc.unary_unary_rpc_method_handler(lambda _request, _context: _SERVING)},
            ),
        )
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        released.set()
        server.stop(0).wait(patient(5))
