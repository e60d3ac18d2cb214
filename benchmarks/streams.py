"""Many open streams and huge bodies at once: what they take of memory, and what they cost other requests.

    .venv/bin/python -m benchmarks.streams [--streams 10000] [--bodies 16] [--mebibytes 32] [--check]

A gateway process on the fast transport, and clients that write frames as an Envoy would. Streams stay open after
their decision, as those of long answers do. A decision's latency is that of a whole request: headers and body there,
steering answer back, one at a time on a connection of its own, in a process of its own (an Envoy's worker thread does
not make 512 MiB of bodies between two of its events).
"""

import argparse
import asyncio
import multiprocessing
import os
import re
import statistics
import struct
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import orjson
import yaml

from extproc.demo.processes import Child, answers, free_port
from extproc.io.transports.h2 import frames
from extproc.io.transports.h2.headers import literal
from extproc.pb import ext_proc_pb2 as pb

_FIELDS = {
    b":method": b"POST",
    b":scheme": b"http",
    b":path": b"/envoy.service.ext_proc.v3.ExternalProcessor/Process",
    b":authority": b"gateway",
    b"content-type": b"application/grpc",
    b"te": b"trailers",
}
_OPEN = b"".join(literal(*pair) for pair in _FIELDS.items())
#: No table of fields is kept, as the gateway's SETTINGS ask (RFC 7541, section 6.3).
_NO_TABLE = b"\x20"
_MIB = 2**20
#: What is promised: bytes a stream, P99 with streams open and with bodies under way as multiples of the idle one.
_MOST_BYTES, _WITH_STREAMS, _WITH_BODIES = 15 * 1024, 1.5, 3.0
#: How a message begins that asks to wait for another one (`override_message_timeout`).
_WAIT = b"\x52"
#: Who sends bodies gives way to who times decisions, as they would be on machines of their own.
_SENDER = 10
#: Seconds of decisions alone before each time.
_ALONE = 5.0
#: Rest between two decisions that are timed, seconds.
_PAUSE = 0.002


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


def _message(stream: int, message: Any) -> list[bytes]:
    raw = message.SerializeToString()
    framed = struct.pack(">BI", 0, len(raw)) + raw
    return [
        _frame(frames.DATA, 0, stream, framed[at : at + frames.FRAME])
        for at in range(0, len(framed), frames.FRAME)
    ]


def _chat(size: int, number: int) -> bytes:
    content = f"{number} " + "all work and no play " * (size // 21)
    return orjson.dumps({"model": "m", "messages": [{"role": "user", "content": content}], "stream": True})


class Peer(asyncio.Protocol):
    """A connection that sends requests and counts answers of each stream."""

    def __init__(self) -> None:
        self._tail = b""
        self._next = 1
        self._credit = 0
        self._window, self._room = 65_535, asyncio.Event()
        self._given: dict[int, int] = {}
        self._waiting: dict[int, tuple[int, asyncio.Future[None]]] = {}
        self._transport: Any = None
        self._unblocked = asyncio.Event()
        self._unblocked.set()

    @classmethod
    async def connect(cls, port: int) -> "Peer":
        """A connection that has greeted."""
        _, made = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet; windows as large as they can be."""
        self._transport = transport
        window = struct.pack(">HI", frames.INITIAL_WINDOW_SIZE, 2**30)
        self._transport.write(frames.PREFACE + _frame(frames.SETTINGS, 0, 0, window) + frames.SETTINGS_ACK)
        self._transport.write(_frame(frames.WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**30)))

    def pause_writing(self) -> None:
        """The gateway reads more slowly than this writes."""
        self._unblocked.clear()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._unblocked.set()

    def data_received(self, data: bytes) -> None:
        """Count answers, and note windows."""
        data = self._tail + data
        at = 0
        while at + 9 <= len(data):
            word, _flags, stream = struct.unpack_from(">IBI", data, at)
            stop = at + 9 + (word >> 8)
            if stop > len(data):
                break
            self._one(word & 0xFF, stream, data[at + 9 : stop])
            at = stop
        self._tail = data[at:]

    def _one(self, kind: int, stream: int, payload: bytes) -> None:
        if kind == frames.WINDOW_UPDATE:
            more = struct.unpack(">I", payload)[0]
            if stream:
                self._given[stream] = self._given.get(stream, 0) + more
            else:
                self._window += more
            self._room.set()
        elif kind == frames.DATA and stream in self._waiting:
            left, future = self._waiting[stream]
            if payload[5:6] == _WAIT:
                return
            if left == 1 and b"x-gateway-destination-endpoint" not in payload:
                raise SystemExit(f"stream {stream} was not steered: {payload!r}")
            self._waiting[stream] = (left - 1, future)
            if left == 1 and not future.done():
                future.set_result(None)
        elif kind in (frames.RST_STREAM, frames.GOAWAY):
            raise SystemExit(f"the gateway ended stream {stream}: {payload.hex()}")

    async def request(self, body: bytes) -> int:
        """Headers and body, in windows as they are given; back when both are answered. The stream stays open."""
        stream, self._next = self._next, self._next + 2
        head, told = pb.ProcessingRequest(), pb.ProcessingRequest(request_body=pb.HttpBody(body=body))
        head.request_headers.headers.headers.add(key=":path", raw_value=b"/v1/chat/completions")
        told.request_body.end_of_stream = True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[stream] = (2, future)
        block = _NO_TABLE + _OPEN if stream == 1 else _OPEN
        self._transport.write(_frame(frames.HEADERS, frames.END_HEADERS, stream, block))
        given = 256 * 1024  # a stream's window at its beginning, as the gateway's SETTINGS say
        for piece in _message(stream, head) + _message(stream, told):
            size = len(piece) - 9
            while given + self._given.get(stream, 0) < size or self._window < size:
                self._room.clear()
                await self._room.wait()
            given -= size
            self._window -= size
            await self._unblocked.wait()
            self._transport.write(piece)
        await future
        del self._waiting[stream]
        self._given.pop(stream, None)
        return stream

    def finish(self, stream: int) -> None:
        """The exchange is over."""
        self._transport.write(_frame(frames.DATA, frames.END_STREAM, stream))

    def close(self) -> None:
        """Leave."""
        self._transport.abort()


async def decisions(peer: Peer, count: int = 0, until: "asyncio.Future[Any] | None" = None) -> list[float]:
    """Milliseconds that each took: `count` of them, or as many as fit until something is done."""
    took: list[float] = []
    body = _chat(2048, 0)
    while len(took) < count or (until is not None and not until.done()):
        began = time.perf_counter()
        stream = await peer.request(body)
        took.append((time.perf_counter() - began) * 1e3)
        peer.finish(stream)
        await asyncio.sleep(_PAUSE)
    return took


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def family(pid: int) -> tuple[int, int]:
    """The same of a process and of its children together."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return resident(pid), sum(resident(int(child)) for child in children)


async def peak(pid: int, until: "asyncio.Future[Any]") -> tuple[int, int]:
    """The most that it had, and that its children had, looked at fifty times a second."""
    most, others = family(pid)
    while not until.done():
        await asyncio.sleep(0.02)
        now, them = family(pid)
        most, others = max(most, now), max(others, them)
    return most, others


class Apart:
    """Decisions that are timed in a process of their own.

    Args:
        port: the gateway's.
        samples: decisions to warm up with.
    """

    def __init__(self, port: int, samples: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, its = context.Pipe()
        self._process = context.Process(target=_apart, args=(port, samples, its), daemon=True)
        self._process.start()
        its.close()

    async def until(self, done: "Awaitable[Any]") -> list[float]:
        """Those from now on until something is done."""
        loop = asyncio.get_running_loop()
        self._ours.send(True)
        await done
        self._ours.send(True)
        made: list[float] = await loop.run_in_executor(None, self._ours.recv)
        return made

    def stop(self) -> None:
        """Enough."""
        self._ours.send(False)


def _apart(port: int, samples: int, told: Any) -> None:
    async def measure() -> None:
        peer, loop = await Peer.connect(port), asyncio.get_running_loop()
        await decisions(peer, samples)
        while await loop.run_in_executor(None, told.recv):
            stopped = loop.run_in_executor(None, told.recv)
            told.send(await decisions(peer, until=stopped))

    asyncio.run(measure())


def p99(took: list[float]) -> float:
    """The 99th percentile."""
    return statistics.quantiles(took, n=100)[98]


def _said(name: str, took: list[float], idle: list[float] | None = None) -> str:
    beside = f", {p99(took) / p99(idle):.2f} times the idle one" if idle else ""
    return f"{name}: P50 {statistics.median(took):.2f} ms, P99 {p99(took):.2f} ms{beside} ({len(took)} decisions)"


async def open_streams(child: Child, port: int, count: int, samples: int) -> list[str]:
    """Decisions alone, and with `count` streams open; what a stream takes. Returns what is above its limit."""
    other, holder = await Peer.connect(port), await Peer.connect(port)
    await decisions(other, samples)  # warm: caches, records
    idle = await decisions(other, samples)
    before = resident(child.pid)
    for number in range(0, count, 100):
        await asyncio.gather(*(holder.request(_chat(512, number + more)) for more in range(100)))
    each = (resident(child.pid) - before) / count
    busy = await decisions(other, samples)
    for peer in (holder, other):
        peer.close()
    print(f"{count} open streams: {each / 1024:.1f} KB each")
    print(_said("  idle", idle))
    print(_said("  with them open", busy, idle))
    wrong = [f"a stream takes {each / 1024:.1f} KB"] if each > _MOST_BYTES else []
    return wrong + (
        [f"P99 with streams {p99(busy) / p99(idle):.2f}"] if p99(busy) > _WITH_STREAMS * p99(idle) else []
    )


async def huge_bodies(child: Child, port: int, args: argparse.Namespace) -> list[str]:
    """Decisions alone, and while bodies come at once on one connection, in turns; what they take at most."""
    size, other = args.mebibytes * _MIB, Apart(port, args.samples)
    bodies = [_chat(size, number)[: size - 64] + b'"}],"x":1}' for number in range(args.bodies)]
    idle: list[float] = []
    took: list[float] = []
    most = readers = 0
    before, seconds = resident(child.pid), 0.0
    os.nice(_SENDER)
    for _ in range(args.rounds):
        idle += await other.until(asyncio.sleep(_ALONE))
        sender, began = await Peer.connect(port), time.perf_counter()
        sent = asyncio.gather(*(sender.request(body) for body in bodies))
        looking = asyncio.ensure_future(peak(child.pid, sent))
        took += await other.until(sent)
        seconds += time.perf_counter() - began
        now, them = await looking
        most, readers = max(most, now), max(readers, them)
        sender.close()
    other.stop()
    print(f"{args.bodies} bodies of {args.mebibytes} MiB at once: {seconds / args.rounds:.1f} s")
    print(
        f"  memory: at most {(most - before) / _MIB:.0f} MiB more, and {readers / _MIB:.0f} MiB of who reads them"
    )
    await asyncio.sleep(1)
    print(f"  a second later: {(sum(family(child.pid)) - before) / _MIB:.0f} MiB more, together")
    print(f"  {_became(port + 1)}")
    print(_said("  idle", idle))
    print(_said("  beside them", took, idle))
    times = p99(took) / p99(idle)
    return [f"P99 beside bodies {times:.1f}"] if times > _WITH_BODIES else []


def _became(admin: int) -> str:
    """What became of the bodies, as the gateway counts."""
    with urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics", timeout=10) as answer:
        told: list[tuple[str, str]] = re.findall(
            r'kvsteer_large_bodies_total{how="(.*)"} (\d+)', answer.read().decode()
        )
    return "large bodies: " + ", ".join(f"{how} {count}" for how, count in told if count != "0")


def gateway(folder: Path, port: int) -> Child:
    """A gateway that listens on `port`, with 16 replicas that nobody is asked about."""
    tree = {
        "grpc": {"address": f"127.0.0.1:{port}", "transport": "fast"},
        "admin": {"address": f"127.0.0.1:{port + 1}"},
        "limits": {"body": "64MiB"},
        "pools": [{"name": "p", "engine": "vllm", "replicas": [f"127.0.0.{i + 1}:9" for i in range(16)]}],
    }
    path = folder / "kvsteer.yaml"
    path.write_text(yaml.safe_dump(tree))
    child = Child("gateway", [sys.executable, "-m", "extproc", "serve", "-c", str(path)], folder)
    child.wait_until(lambda: answers(port), 20)
    return child


async def _run(child: Child, port: int, args: argparse.Namespace) -> list[str]:
    wrong: list[str] = []
    if args.only != "bodies":
        wrong += await open_streams(child, port, args.streams, args.samples)
    if args.only != "streams":
        wrong += await huge_bodies(child, port, args)
    return wrong


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--bodies", type=int, default=16)
    parser.add_argument("--mebibytes", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=2, help="times that the bodies are sent")
    parser.add_argument("--only", choices=("streams", "bodies"), help="one of the two")
    parser.add_argument("--samples", type=int, default=1000, help="decisions that are timed")
    parser.add_argument("--check", action="store_true", help="fail above what is promised")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        port = free_port(2)  # and the admin port
        child = gateway(Path(folder), port)
        try:
            wrong = asyncio.run(_run(child, port, args))
        finally:
            child.stop()
    if args.check and wrong:
        raise SystemExit("; ".join(wrong))


if __name__ == "__main__":
    main()
