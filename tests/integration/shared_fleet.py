"""Three gateways behind a real Envoy that share a real Redis, each by a cable of its own that can be cut."""

import asyncio
import contextlib
import itertools
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import orjson
import redis

from extproc.cli.state_views import differences
from extproc.demo.drive import Outcome, ask
from extproc.demo.processes import Child, free_port
from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import QUICK, until
from tests.integration.patience import bar, patient

GATEWAYS = 3
#: Streamed requests a second: few enough that two cores run everything, and that a wait is a fault's doing.
RATE = 40.0
#: Within so many seconds of a fault's end all gateways must agree.
CONVERGED = 5.0

#: Hashes of two requests: a Redis that is killed takes with it what it took and nobody had read yet.
LOST = 32


class Loop:
    """An event loop in a thread of its own, beside a test that waits."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, Any], seconds: float = 120.0) -> Any:
        """Run a coroutine there and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def begin(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine there."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """End it."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Cable:
    """A TCP proxy. What is cut in one direction is kept, and delivered when it is mended, as TCP itself would."""

    def __init__(self, loop: Loop, target: int) -> None:
        self.port = free_port()
        self.target = target
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: dict[str, asyncio.Event] = {}
        loop.do(self._start())

    def cut(self, direction: str) -> None:
        """Let nothing through any more: "there" (calls) or "back" (answers)."""
        self._loop.do(self._set(direction, False))

    def mend(self) -> None:
        """Let everything through."""
        for direction in self._open:
            self._loop.do(self._set(direction, True))

    def close(self) -> None:
        """End every connection."""
        self._loop.do(self._close())

    async def _start(self) -> None:
        self._open = {"there": asyncio.Event(), "back": asyncio.Event()}
        for event in self._open.values():
            event.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def _set(self, direction: str, is_open: bool) -> None:
        event = self._open[direction]
        event.set() if is_open else event.clear()

    async def _close(self) -> None:
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError), contextlib.closing(writer):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
            with contextlib.closing(far_writer):
                pumps = [
                    asyncio.ensure_future(self._pump("there", reader, far_writer)),
                    asyncio.ensure_future(self._pump("back", far_reader, writer)),
                ]
                try:
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for pump in pumps:
                        pump.cancel()
                    await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, direction: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(2**16):
                await self._open[direction].wait()
                writer.write(data)
                await writer.drain()
            await self._open[direction].wait()  # an end, too, is not heard through a cut


class Fleet(Stack):
    """The stack. `redis` is the server that all cables lead to now."""

    def __init__(self) -> None:
        super().__init__(
            StackSettings(
                replicas=4, gateways=GATEWAYS, engine=QUICK, redis_url="", envoy={"message_timeout": "1s"}
            )
        )
        self.loop = Loop()
        self.cables: list[Cable] = []
        self.redis_port = 0
        self._names = itertools.count()

    def start(self) -> None:
        """Redis, its cables, then the rest."""
        self.lead_to(*self.another_redis())
        self.cables = [Cable(self.loop, self.redis_port) for _ in range(GATEWAYS)]
        super().start()
        self.agreed()

    def close(self) -> None:
        """As the stack's."""
        super().close()
        for cable in self.cables:
            cable.close()
        self.loop.close()

    def configuration(self, number: int) -> dict[str, Any]:
        """Each gateway knows Redis by its own cable."""
        port = self.cables[number].port
        redis = {"url": f"redis://127.0.0.1:{port}/0", "deadline": f"{bar(0.25):g}s"}  # as by default
        return {**super().configuration(number), "redis": redis}

    def another_redis(self) -> tuple[Child, int]:
        """A further server under a name of its own."""
        return self.new_redis(f"redis-{next(self._names)}")

    def lead_to(self, child: Child, port: int) -> None:
        """New connections come out at this server."""
        self.redis, self.redis_port = child, port
        for cable in self.cables:
            cable.target = port

    @contextmanager
    def client(self, port: int = 0) -> Iterator[redis.Redis]:
        """Redis itself, with no cable between."""
        with redis.Redis(port=port or self.redis_port, decode_responses=True) as made:
            yield made

    def states(self, *numbers: int) -> list[dict[str, Any]]:
        """What gateways say at /state; of all unless named."""
        return [self.admin("/state", number) for number in numbers or range(GATEWAYS)]

    def metric(self, name: str, number: int) -> float:
        """A gateway's metric without labels."""
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.gateway_ports[number][1]}/metrics", timeout=5
        ) as answer:
            lines = answer.read().decode().splitlines()
        return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])

    def agreed(self, *numbers: int, seconds: float = CONVERGED) -> None:
        """Wait until views are equal and each lease has one holder; fail saying what differs."""
        deadline = time.monotonic() + patient(seconds)
        before: dict[tuple[str, ...], str] | None = None
        while True:
            seen = _disagreements(self.states(*numbers))
            lasting = [text for what, text in seen.items() if before is None or what in before]
            if before is not None and not lasting:
                return
            assert time.monotonic() < deadline, f"after {patient(seconds):g} s: " + "; ".join(lasting)
            before = seen
            time.sleep(0.25)

    def checked(self) -> bool:
        """As a person would ask: kvsteer state --check. What it finds amiss is in the test's output."""
        urls = [f"http://127.0.0.1:{admin}" for _, admin in self.gateway_ports]
        argv = [sys.executable, "-m", "extproc", "state", "--check"]
        done = subprocess.run(
            [*argv, *(word for url in urls for word in ("--admin", url))],
            capture_output=True, text=True, timeout=patient(30), check=False,
        )  # fmt: skip
        if done.returncode:
            sys.stdout.write(done.stdout + done.stderr)
        return done.returncode == 0

    def idle(self) -> None:
        """Wait until every book is empty, which must be soon after the last request ended."""

        def left() -> list[str]:
            return [
                f"{said['gateway']}: {said['journal']['requests_of_others']} of others, {row['requests']} in all"
                for said in self.states()
                for row in said["pools"][0]["replicas"]
                if row["requests"] or row["tokens"] or said["journal"]["requests_of_others"]
            ]

        until(lambda: not left(), CONVERGED, f"nothing runs, and every book says so, not {left()}")

    def unequal(self) -> int:
        """Pairs of prefix hash and replica by which views of the index differ, of the replica where it is worst."""
        rows = [[row["entries"] for row in said["pools"][0]["replicas"]] for said in self.states()]
        return max(max(column) - min(column) for column in zip(*rows, strict=True))

    def holders(self) -> dict[str, list[str]]:
        """Lease -> gateways that hold it at this moment, by their own clocks."""
        held: dict[str, list[str]] = {}
        for said in self.states():
            for lease in said["leases"]:
                held.setdefault(lease["lease"], []).extend([said["gateway"]] * lease["held"])
        return held

    def untroubled(self) -> None:
        """No gateway's log tells of a fault of its own."""
        for number in range(GATEWAYS):
            log = self.children[f"gateway-{number}"].log.read_text()
            assert "Traceback" not in log, log[-3000:]
            assert "background task failed" not in log


def _disagreements(states: list[dict[str, Any]]) -> dict[tuple[str, ...], str]:
    found: dict[tuple[str, ...], str] = {}
    for other in states[1:]:
        for what, text in differences(states[0], other).items():
            found[(other["gateway"], *what)] = text
    for said in states:
        name = said["gateway"]
        if said["shared"] != "ok":
            found[name, "shared"] = f"{name} is {said['shared']}: {said['shared_why']}"
        if len(said["journal"]["peers"]) != len(states) - 1:
            found[name, "peers"] = f"{name} hears {said['journal']['peers']}"
    for lease in states[0]["leases"]:
        rows = [(said["gateway"], row) for said in states for row in said["leases"]]
        held = [name for name, row in rows if row["lease"] == lease["lease"] and row["held"]]
        named = {row["holder"] for _, row in rows if row["lease"] == lease["lease"]}
        if len(held) != 1 or named != set(held):
            found["lease", lease["lease"]] = f"{lease['lease']} is held by {held}, and said to be by {named}"
    return found


class Traffic:
    """Streamed requests through Envoy, open loop, until it is stopped: chats of which every tenth turn is new."""

    def __init__(self, fleet: Fleet, rate: float = RATE) -> None:
        self._fleet, self._rate = fleet, rate
        self._stopped = False
        self.outcomes: list[Outcome] = []

    async def run(self) -> None:
        """Send until stopped, then wait for every answer."""
        began, tasks = time.monotonic(), []
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            for number in itertools.count():
                await asyncio.sleep(max(began + number / self._rate - time.monotonic(), 0))
                if self._stopped:
                    break
                tasks.append(asyncio.create_task(ask(session, self._fleet.url, _body(began, number))))
            self.outcomes = list(await asyncio.gather(*tasks))

    def stop(self) -> None:
        """Send nothing more."""
        self._stopped = True

    def assert_unharmed(self) -> None:
        """Every request was answered in full."""
        bad = Counter(o.failure for o in self.outcomes if o.failure)
        assert self.outcomes
        assert not bad, f"{bad.total()} of {len(self.outcomes)} requests failed: {dict(bad)}"


def _body(began: float, number: int) -> bytes:
    chat = f"chat {began} {number // 10} "
    text = chat * 100 + "and so on. " * 60 * (number % 10)
    messages = [{"role": "user", "content": text}]
    return orjson.dumps({"model": "demo", "messages": messages, "max_tokens": 60, "stream": True})


@contextmanager
def load(fleet: Fleet, lost: int = 0) -> Iterator[Traffic]:
    """Traffic around a fault. At its end: no client saw an error, no book says that anything runs, views are equal.

    So many pairs of prefix hash and replica may be `lost` with a Redis; those of tests before are not this one's.
    """
    traffic, loop, before = Traffic(fleet), Loop(), fleet.unequal()
    running = loop.begin(traffic.run())
    try:
        until(
            lambda: any(o["journal"]["requests_of_others"] for o in fleet.states()), 5, "requests are shared"
        )
        yield traffic
    finally:
        traffic.stop()
        running.result(60)
        loop.close()
    traffic.assert_unharmed()
    fleet.idle()
    fleet.agreed()
    until(
        lambda: fleet.unequal() <= before + lost,
        CONVERGED,
        "views of the index differ by no more than before",
    )
    until(fleet.checked, CONVERGED, "kvsteer state --check is content")
    fleet.untroubled()


def decision_times(fleet: Fleet, since: float, to: float) -> list[float]:
    """What decisions took in all gateways between two times (epoch s), in seconds, sorted."""
    rows = [
        row
        for number in range(GATEWAYS)
        for row in fleet.admin("/decisions?last=1000", number)["decisions"]
        if since <= row["at"] < to
    ]
    return sorted(row["decision_seconds"] for row in rows)


def quantile(values: list[float], share: float) -> float:
    """Of sorted values."""
    return values[min(int(share * len(values)), len(values) - 1)]
