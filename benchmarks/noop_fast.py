"""The no-op of `noop_server` on the fast transport: parses each message, answers in kind, thinks nothing."""

import asyncio
import sys

import uvloop

from extproc.core.scattered import Pieces
from extproc.io.transports import Answer, Push
from extproc.io.transports.fast import FastTransport
from extproc.io.transports.h2 import grpc
from extproc.pb import ext_proc_pb2 as pb

_GO_ON = pb.ProcessingResponse(request_body=pb.BodyResponse()).SerializeToString()


class Noop:
    """A session that lets everything through."""

    held = False

    def receive_large(self, pieces: Pieces) -> tuple[Answer, bool, bool]:
        """A large body: dropped unread, and let through."""
        pieces.free()
        return _GO_ON, False, True

    def receive(self, data: bytes) -> tuple[Answer, bool, bool]:
        """Parse, answer in kind."""
        message = pb.ProcessingRequest.FromString(data)
        if message.WhichOneof("request") == "request_headers":
            reply = pb.ProcessingResponse(request_headers=pb.HeadersResponse())
        else:
            reply = pb.ProcessingResponse(request_body=pb.BodyResponse())
        return reply.SerializeToString(), False, True

    def rescue(self) -> Answer:
        """Nothing is held."""
        return None

    def called_by(self, trace: str) -> None:
        """Of no use to it."""

    def answer_by(self, push: Push) -> None:
        """Nothing is ever owed."""

    def end(self) -> None:
        """Nothing to release."""


async def main(port: int, large: int) -> None:
    """Serve until killed; messages above `large` bytes are not put together."""
    transport = FastTransport(
        f"127.0.0.1:{port}", Noop, max_message=64 * 2**20, max_streams=100_000, large=large
    )
    await transport.start()
    transport.set_ready(True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(int(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else grpc.NEVER))
