"""Many open streams and huge bodies at once: what they take of memory, and what they cost other requests.

    .venv/bin/python -m benchmarks.streams [--streams 10000] [--bodies 16] [--mebibytes 32] [--check]

A gateway process on the fast transport, and clients that write frames as an Envoy would. Streams stay open after
their decision, as those of long answers do. A decision's latency is that of a whole request: headers and body there,
steering answer back, one at a time on a connection of its own, in a process of its own (an Envoy's worker thread does
not make 512 MiB of bodies between two of its events).

Bodies are sent by a process that runs only where nobody else wants the processor, as it would be on a machine of its
own. That holds within one session only, so the gateway is in this one's. What the machine does to decisions all the
same is told by a no-op beside: the same bodies to a server that drops them and decides nothing.
"""

import argparse
import asyncio
import multiprocessing
import os
import re
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import yaml

from benchmarks.h2_peer import Peer, chat
from extproc.demo.processes import Child, answers, free_port

_MIB = 2**20
#: What is promised: bytes a stream, P99 with streams open and with bodies under way as multiples of the idle one.
_MOST_BYTES, _WITH_STREAMS, _WITH_BODIES = 15 * 1024, 1.5, 3.0
#: Seconds of decisions alone before each time.
_ALONE = 5.0
#: Rest between two decisions that are timed, seconds.
_PAUSE = 0.002


async def decisions(peer: Peer, count: int = 0, until: "asyncio.Future[Any] | None" = None) -> list[float]:
    """Milliseconds that each took: `count` of them, or as many as fit until something is done."""
    took: list[float] = []
    body = chat(2048, 0)
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
        steered: whether they have to name a replica.
    """

    def __init__(self, port: int, samples: int, *, steered: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, its = context.Pipe()
        self._process = context.Process(target=_apart, args=(port, samples, steered, its), daemon=True)
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


def _apart(port: int, samples: int, steered: bool, told: Any) -> None:
    async def measure() -> None:
        peer, loop = await Peer.connect(port, steered=steered), asyncio.get_running_loop()
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
        await asyncio.gather(*(holder.request(chat(512, number + more)) for more in range(100)))
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


class Beside:
    """Decisions of one server, alone and while bodies come at once on one connection, in turns.

    Args:
        child: the server.
        port: where it is.
        samples: decisions to warm up with.
        steered: whether it is a gateway.

    Attributes:
        idle, took: milliseconds of decisions alone, and beside bodies.
        before, most, readers: bytes of its memory at first and at most, and of its children at most.
        seconds: that bodies took, all times together.
    """

    def __init__(self, child: Child, port: int, samples: int, *, steered: bool = True) -> None:
        self._pid, self._port, self._steered = child.pid, port, steered
        self._other = Apart(port, samples, steered=steered)
        self.idle: list[float] = []
        self.took: list[float] = []
        self.before, self.most, self.readers = resident(child.pid), 0, 0
        self.seconds = 0.0

    async def turn(self, bodies: list[bytes]) -> None:
        """Both, once."""
        self.idle += await self._other.until(asyncio.sleep(_ALONE))
        sender, began = await Peer.connect(self._port, steered=self._steered), time.perf_counter()
        sent = asyncio.gather(*(sender.request(body) for body in bodies))
        looking = asyncio.ensure_future(peak(self._pid, sent))
        self.took += await self._other.until(sent)
        self.seconds += time.perf_counter() - began
        now, them = await looking
        self.most, self.readers = max(self.most, now), max(self.readers, them)
        sender.close()

    @property
    def times(self) -> float:
        """How many times the idle P99 the one beside bodies is."""
        return p99(self.took) / p99(self.idle)

    def stop(self) -> None:
        """Enough."""
        self._other.stop()


async def huge_bodies(child: Child, port: int, noop: Child | None, args: argparse.Namespace) -> list[str]:
    """Decisions beside bodies, and what these take at most; the same of a no-op, which is at `port` + 2."""
    size = args.mebibytes * _MIB
    ours = Beside(child, port, args.samples)
    control = Beside(noop, port + 2, args.samples, steered=False) if noop else None
    turns = [ours, control] if control else [ours]
    bodies = [chat(size, number)[: size - 64] + b'"}],"x":1}' for number in range(args.bodies)]
    if noop:
        _give_way()
    for _ in range(args.rounds):
        for each in turns:
            await each.turn(bodies)
    for each in turns:
        each.stop()
    more = (ours.most - ours.before) / _MIB
    print(f"{args.bodies} bodies of {args.mebibytes} MiB at once: {ours.seconds / args.rounds:.1f} s")
    print(f"  memory: at most {more:.0f} MiB more, and {ours.readers / _MIB:.0f} MiB of who reads them")
    await asyncio.sleep(1)
    print(f"  a second later: {(sum(family(child.pid)) - ours.before) / _MIB:.0f} MiB more, together")
    print(f"  {_became(port + 1)}")
    print(_said("  idle", ours.idle))
    print(_said("  beside them", ours.took, ours.idle))
    if control:
        print(_said("  a no-op idle", control.idle))
        print(_said("  a no-op beside them", control.took, control.idle))
    return [f"P99 beside bodies {ours.times:.1f}"] if ours.times > _WITH_BODIES else []


def _give_way() -> None:
    """Run only where no other process of this session wants the processor, and be interrupted when one does."""
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(19)


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
    command = [sys.executable, "-m", "extproc", "serve", "-c", str(path)]
    return _started("gateway", command, folder, port)


def _started(name: str, command: list[str], folder: Path, port: int) -> Child:
    child = Child(name, command, folder, session=False)
    child.wait_until(lambda: answers(port), 20)
    return child


def no_op(folder: Path, port: int) -> Child:
    """A server that drops large bodies and lets everything through."""
    command = [sys.executable, "-m", "benchmarks.noop_fast", str(port), str(128 * 1024)]
    return _started("no-op", command, folder, port)


async def _run(child: Child, port: int, folder: Path, args: argparse.Namespace) -> list[str]:
    wrong: list[str] = []
    if args.only != "bodies":
        wrong += await open_streams(child, port, args.streams, args.samples)
    if args.only != "streams":
        noop = None if args.short else no_op(folder, port + 2)
        try:
            wrong += await huge_bodies(child, port, noop, args)
        finally:
            if noop:
                noop.stop()
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
    parser.add_argument(
        "--short", action="store_true", help="bodies in a hurry: no no-op, and nobody gives way"
    )
    parser.add_argument("--check", action="store_true", help="fail above what is promised")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        port = free_port(3)  # and the admin port, and the no-op's
        child = gateway(Path(folder), port)
        try:
            wrong = asyncio.run(_run(child, port, Path(folder), args))
        finally:
            child.stop()
    if args.check and wrong:
        raise SystemExit("; ".join(wrong))


if __name__ == "__main__":
    main()
