"""What full duplex costs a streamed answer: how late its first token comes, and the gateway's CPU for a long one.

    python -m benchmarks.duplex [--check] [--streams 4] [--chunks 10000] [--requests 400] [--rounds 3]

One Envoy before one replica, one gateway, three ways: `bare` knows no gateway, `request` sends it the request's body
in full duplex and nothing of the response, `echo` sends it both in full duplex, and every piece of the answer comes
back through it.

* First token: the replica stamps the first event with the clock of this machine when it writes it, 5 ms after its
  headers; late is what the client's clock says beyond that. One request at a time, the ways in turn, so that all have
  the machine as it is. `ask` is from the request to the first event, the decision and those 5 ms included.
* CPU: some streams at once, whose replica writes one event of 190 bytes each millisecond, so that most are a message
  of their own; user and system time of the gateway's process from /proc, less what it takes idle.

Every answer is compared byte for byte. With --check the exit status is 1 when in the median round `echo` has a P99 of
the first token's lateness more than 3 ms above `bare`'s.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import uvloop
import yaml

from benchmarks.journal_gates import put_ahead
from benchmarks.server_cpu import cpu_seconds
from extproc.config import parse
from extproc.demo.processes import Child, answers, free_port, program
from extproc.envoyconfig import bootstrap

WAYS = ("bare", "request", "echo")
#: Most milliseconds by which the P99 of the first token's lateness may rise.
MOST_LATER = 3.0
#: Seconds between the headers of an answer and its first event, and between events of a long one.
THINKING, PACE = 0.005, 0.001
_FDS = "FULL_DUPLEX_STREAMED"
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "word " * 400}], "stream": True})
_EVENT = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "delta": {"content": "tok "}, "finish_reason": None}],
    "usage": None,
}
_USAGE = {
    **_EVENT,
    "choices": [],
    "usage": {"prompt_tokens": 400, "completion_tokens": 7, "total_tokens": 407},
}


def events(chunks: int) -> list[bytes]:
    """A long answer: so many events, then usage and the end."""
    told = [*[_EVENT] * chunks, _USAGE]
    return [*(b"data: " + json.dumps(event).encode() + b"\n\n" for event in told), b"data: [DONE]\n\n"]


# -- the replica -----------------------------------------------------------------------------------------------


def chunk(data: bytes) -> bytes:
    """A chunk of HTTP/1.1."""
    return b"%x\r\n%b\r\n" % (len(data), data)


async def replica(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers by path: /first with a stamped event, /long/N with N events at their pace."""
    while head := (await reader.readuntil(b"\r\n\r\n")).lower():
        await _body(reader, head)
        writer.write(_HEAD)
        path = head.split(b" ", 2)[1]
        if path == b"/first":
            await asyncio.sleep(THINKING)
            writer.write(chunk(b"data: %020d\n\n" % time.monotonic_ns()) + chunk(b"data: [DONE]\n\n"))
        else:
            await _long(writer, int(path.rpartition(b"/")[2]))
        writer.write(b"0\r\n\r\n")


async def _long(writer: asyncio.StreamWriter, chunks: int) -> None:
    began = time.monotonic()
    for number, event in enumerate(events(chunks)):
        writer.write(chunk(event))
        await asyncio.sleep(max(0.0, began + number * PACE - time.monotonic()))


async def _body(reader: asyncio.StreamReader, head: bytes) -> None:
    if b"transfer-encoding: chunked" in head:
        while size := int(await reader.readline(), 16):
            await reader.readexactly(size + 2)
        await reader.readline()
    elif b"content-length: " in head:
        await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))


async def serve_replica(port: int) -> None:
    """The replica's process."""
    server = await asyncio.start_server(replica, "127.0.0.1", port)
    await server.serve_forever()


# -- the client ------------------------------------------------------------------------------------------------


class Client:
    """One connection to one of Envoy's listeners."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, path: str) -> tuple[bytes, list[int]]:
        """The body of an answer, and when each piece of it came, nanoseconds of this machine's clock."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**20)
        head = f"POST {path} HTTP/1.1\r\nhost: b\r\ncontent-type: application/json\r\n"
        self._writer.write(f"{head}content-length: {len(_BODY)}\r\n\r\n{_BODY}".encode())
        status = await self._reader.readuntil(b"\r\n\r\n")
        if not status.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{path}: {status[:100]!r}")
        pieces, when = [], []
        while size := int(await self._reader.readline(), 16):
            pieces.append((await self._reader.readexactly(size + 2))[:-2])
            when.append(time.monotonic_ns())
        await self._reader.readline()
        return b"".join(pieces), when

    def close(self) -> None:
        """Close it."""
        if self._writer is not None:
            self._writer.close()


# -- the processes ---------------------------------------------------------------------------------------------


class Bench:
    """A replica, a gateway, and an Envoy with a listener for each way."""

    def __init__(self, folder: Path, transport: str) -> None:
        self.folder, self.transport = folder, transport
        self.replica, self.gateway, self.admin = free_port(), free_port(), free_port()
        self.listeners = {way: free_port() for way in WAYS}
        self.children: list[Child] = []

    def start(self) -> Child:
        """Start everything; returns the gateway."""
        self._child("replica", ["-m", "benchmarks.duplex", "--replica", str(self.replica)], self.replica)
        path = self.folder / "kvsteer.yaml"
        path.write_text(yaml.safe_dump(self._settings("echo")))
        gateway = self._child("gateway", ["-m", "extproc", "serve", "-c", str(path)], self.gateway)
        envoy = self.folder / "envoy.yaml"
        envoy.write_text(yaml.safe_dump(self._envoy()))
        argv = [program("envoy") or "envoy", "-c", str(envoy), "--concurrency", "1", "--use-dynamic-base-id"]
        self._child("envoy", [*argv, "--log-level", "error"], self.listeners["echo"], python=False)
        return gateway

    def close(self) -> None:
        """End every process."""
        for child in reversed(self.children):
            child.kill()

    def _child(self, name: str, argv: list[str], port: int, *, python: bool = True) -> Child:
        child = Child(name, [sys.executable, *argv] if python else argv, self.folder)
        self.children.append(child)
        child.wait_until(lambda: answers(port), 20)
        return child

    def put_ahead(self) -> bool:
        """Put everything, this process too, ahead of other work; False where that can't be."""
        return all(put_ahead(pid) for pid in (os.getpid(), *(child.pid for child in self.children)))

    def _settings(self, way: str) -> dict[str, Any]:
        pool = {"replicas": [f"127.0.0.1:{self.replica}"], "metrics": {"enabled": False}}
        envoy = {"listen": f"127.0.0.1:{self.listeners[way]}", "admin": f"127.0.0.1:{self.admin}"}
        return {
            "grpc": {"address": f"127.0.0.1:{self.gateway}", "transport": self.transport},
            "admin": {"address": f"127.0.0.1:{free_port()}"},
            "pools": [pool],
            "envoy": {**envoy, "request_body_mode": "full_duplex", "retries": 0, "access_log": False},
            "feedback": {"source": "off"},
        }

    def _envoy(self) -> dict[str, Any]:
        whole: dict[str, Any] = {}
        for way in WAYS:
            tree = bootstrap(parse(yaml.safe_dump(self._settings(way)), "bench"))
            (listener,) = tree["static_resources"]["listeners"]
            listener["name"] = way
            filters = listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
            if way == "bare":
                del filters[0]
            elif way == "echo":
                kinds = "response_header_mode", "response_body_mode", "response_trailer_mode"
                modes = dict(zip(kinds, ("SEND", _FDS, "SEND"), strict=True))
                filters[0]["typed_config"]["processing_mode"] |= modes
            whole = whole or {**tree, "static_resources": {**tree["static_resources"], "listeners": []}}
            whole["static_resources"]["listeners"].append(listener)
        return whole


# -- what is measured ------------------------------------------------------------------------------------------


class First(NamedTuple):
    """Milliseconds of one way in one round."""

    late_p50: float
    late_p99: float
    ask_p50: float
    ask_p99: float


async def first_tokens(bench: Bench, requests: int) -> dict[str, First]:
    """One round: so many requests each way, in turn."""
    clients = {way: Client(port) for way, port in bench.listeners.items()}
    late: dict[str, list[float]] = {way: [] for way in WAYS}
    asked: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(requests + 20):
        for way, client in clients.items():
            began = time.monotonic_ns()
            body, when = await client.ask("/first")
            stamp = body.split(b"\n")[0].removeprefix(b"data: ")
            if body != b"data: " + stamp + b"\n\ndata: [DONE]\n\n":
                raise RuntimeError(f"{way}: the answer was changed: {body!r}")
            if number >= 20:  # the first ones open connections
                late[way].append((when[0] - int(stamp)) / 1e6)
                asked[way].append((when[0] - began) / 1e6)
    for client in clients.values():
        client.close()
    return {way: First(*_both(late[way]), *_both(asked[way])) for way in WAYS}


def _both(values: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(values, n=100)
    return cuts[49], cuts[98]


async def long_streams(
    bench: Bench, way: str, streams: int, chunks: int, gateway: Child
) -> tuple[float, float]:
    """The gateway's CPU for one stream, seconds, and in how many pieces the client got it."""
    wanted = b"".join(events(chunks))
    clients = [Client(bench.listeners[way]) for _ in range(streams)]
    for client in clients:
        await client.ask("/first")
    began, before = time.monotonic(), cpu_seconds(gateway.pid)
    got = await asyncio.gather(*(client.ask(f"/long/{chunks}") for client in clients))
    spent, took = cpu_seconds(gateway.pid) - before, time.monotonic() - began
    for client in clients:
        client.close()
    if any(body != wanted for body, _ in got):
        raise RuntimeError(f"{way}: an answer was changed")
    idle = await _idle(gateway)
    pieces = statistics.mean(len(when) for _, when in got)
    return (spent - idle * took) / streams, pieces


async def _idle(gateway: Child) -> float:
    """CPU that the gateway takes for nothing, as a share of a core."""
    before = cpu_seconds(gateway.pid)
    await asyncio.sleep(3.0)
    return (cpu_seconds(gateway.pid) - before) / 3.0


async def measure(bench: Bench, gateway: Child, given: argparse.Namespace) -> bool:
    """Print everything; whether the first token comes in time."""
    print(f"{'way':9}{'late P50':>10}{'P99':>8}{'ask P50':>10}{'P99':>8}   ms")
    later = []
    for _ in range(given.rounds):
        told = await first_tokens(bench, given.requests)
        for way, first in told.items():
            print(
                f"{way:9}{first.late_p50:10.2f}{first.late_p99:8.2f}{first.ask_p50:10.2f}{first.ask_p99:8.2f}"
            )
        later.append(told["echo"].late_p99 - told["bare"].late_p99)
    print(f"the first token's P99 is later by {', '.join(f'{ms:.2f}' for ms in later)} ms")
    if given.streams:
        print(f"{'way':9}{'ms a stream':>14}{'us a chunk':>12}{'pieces':>9}   of {given.chunks} chunks")
    for way in ("request", "echo") * 2 if given.streams else ():
        spent, pieces = await long_streams(bench, way, given.streams, given.chunks, gateway)
        print(f"{way:9}{spent * 1e3:14.1f}{spent / given.chunks * 1e6:12.1f}{pieces:9.0f}", flush=True)
    return statistics.median(later) <= MOST_LATER


def main() -> int:
    """Start, measure, judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="judge the first token's lateness")
    parser.add_argument("--streams", type=int, default=4, help="long answers at once; 0 for none")
    parser.add_argument("--chunks", type=int, default=10_000, help="events of a long answer")
    parser.add_argument("--requests", type=int, default=400, help="first tokens of each way and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--transport", default="fast", choices=("fast", "grpcio"))
    parser.add_argument(
        "--ahead", action="store_true", help="ahead of other work on the machine (as root, on Linux)"
    )
    parser.add_argument("--replica", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.replica:
        uvloop.run(serve_replica(given.replica))
        return 0
    with tempfile.TemporaryDirectory(prefix="kvsteer-") as folder:
        bench = Bench(Path(folder), given.transport)
        try:
            gateway = bench.start()
            if given.ahead and not bench.put_ahead():
                parser.error("--ahead needs root and a Linux that shares cores out by sessions")
            held = uvloop.run(measure(bench, gateway, given))
        finally:
            bench.close()
    return 0 if held or not given.check else 1


if __name__ == "__main__":
    sys.exit(main())
