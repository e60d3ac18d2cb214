"""The yardstick: an ext_proc server on grpc.aio that answers "go on" and thinks nothing."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import uvloop

from extproc.pb import ext_proc_pb2 as pb

#: How each message is answered; the third tells how a response ended, where Envoy is to say so.
_REPLIES: dict[str, Callable[[], Any]] = {
    "request_headers": lambda: pb.ProcessingResponse(request_headers=pb.HeadersResponse()),
    "request_body": lambda: pb.ProcessingResponse(request_body=pb.BodyResponse()),
    "response_trailers": lambda: pb.ProcessingResponse(response_trailers=pb.TrailersResponse()),
}


async def process(_requests: object, context: Any) -> None:
    """Parse each message, answer in kind."""
    while (data := await context.read()) is not grpc.aio.EOF:
        message = pb.ProcessingRequest.FromString(data)
        await context.write(_REPLIES[message.WhichOneof("request") or ""]().SerializeToString())


async def health(_request: bytes, _context: Any) -> bytes:
    """Always serving (field 1 = 1), so that Envoy sends requests."""
    return b"\x08\x01"


async def main(port: int) -> None:
    """Serve until killed."""
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 64 * 2**20)])
    service = "envoy.service.ext_proc.v3.ExternalProcessor"
    methods = {"Process": grpc.stream_stream_rpc_method_handler(process)}
    checks = {"Check": grpc.unary_unary_rpc_method_handler(health)}
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(service, methods),
            grpc.method_handlers_generic_handler("grpc.health.v1.Health", checks),
        )
    )
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(int(sys.argv[1])))
