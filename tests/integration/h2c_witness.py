"""Replicas that speak HTTP/2 without TLS alone (appProtocol kubernetes.io/h2c), and tell what reached them."""

import asyncio
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import h2.config
import h2.connection
import h2.events


class _Replica(asyncio.Protocol):
    """A connection: every request is answered once it is whole, with trailers."""

    def __init__(self) -> None:
        config = h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        self._h2 = h2.connection.H2Connection(config)
        self._bodies: dict[int, bytearray] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        host, port = transport.get_extra_info("sockname")
        self._at = f"{host}:{port}"
        self._h2.initiate_connection()
        self._transport.write(self._h2.data_to_send())

    def data_received(self, data: bytes) -> None:
        for event in self._h2.receive_data(data):
            if isinstance(event, h2.events.RequestReceived):
                self._bodies[event.stream_id or 0] = bytearray()
            elif isinstance(event, h2.events.DataReceived):
                self._bodies[event.stream_id or 0] += event.data or b""
                self._h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id or 0)
            elif isinstance(event, h2.events.StreamEnded):
                self._answer(event.stream_id or 0)
        self._transport.write(self._h2.data_to_send())

    def _answer(self, stream: int) -> None:
        body = bytes(self._bodies.pop(stream))
        told = {"at": self._at, "sha": hashlib.sha256(body).hexdigest()}
        self._h2.send_headers(stream, [(":status", "200"), ("content-type", "application/json")])
        self._h2.send_data(stream, json.dumps(told).encode())
        self._h2.send_headers(stream, [("x-checksum", "77")], end_stream=True)


@contextmanager
def h2c_witnesses(count: int) -> Iterator[list[str]]:
    """Their addresses."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    servers = [
        asyncio.run_coroutine_threadsafe(loop.create_server(_Replica, "127.0.0.1", 0), loop).result(10)
        for _ in range(count)
    ]
    try:
        yield [f"127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]
    finally:
        for server in servers:
            loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
