"""A waiting room on the event loop: looks that are asked for, looks by the clock, and answers given later."""

import asyncio
import math
import random
from typing import Any

from extproc.core.exchange import Exchange
from extproc.core.holding import Holding
from extproc.core.ledger import Ledger
from extproc.core.pool import Pool
from extproc.core.steering import Rules, Steering
from extproc.core.traits import Traits
from extproc.core.waiting import RoomSettings, WaitingRoom
from extproc.io.sessions import ExchangeSession
from extproc.io.transports import Answer
from extproc.io.waking import Waking
from tests.unit.messages import answer, chat, request_body, request_headers, set_headers


class Clock:
    def __init__(self) -> None:
        self.now = 1.0

    def __call__(self) -> float:
        return self.now


class Looked(Holding):
    """Counts the looks; `again` is what they return, `takes` how long one is."""

    def __init__(self, clock: Clock) -> None:
        super().__init__([], Ledger())
        self.clock = clock
        self.looks = self.closed = 0
        self.again, self.takes, self.waits, self.raises = math.inf, 0.0, 1, False

    def __len__(self) -> int:
        return self.waits

    def pump(self, now: float) -> float:
        self.looks += 1
        self.clock.now += self.takes
        if self.raises:
            raise ValueError("a fault of ours")
        return self.again

    def close(self, now: float) -> None:
        self.closed += 1


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_happens_in_one_turn_is_one_look() -> None:
    holding = Looked(Clock())
    Waking(holding, holding.clock)
    for _ in range(5):
        holding.on_due()
    assert holding.looks == 0, "not from within what happens"
    await turns()
    assert holding.looks == 1


async def test_by_the_clock_it_is_looked_again_only_while_something_waits() -> None:
    holding = Looked(Clock())
    waking = Waking(holding, holding.clock)
    holding.again = 1.0  # at once
    holding.on_due()
    async with asyncio.timeout(30):
        while holding.looks < 3:
            await asyncio.sleep(0)
    holding.waits = 0
    await turns(10)
    looked = holding.looks
    await asyncio.sleep(0.01)
    assert holding.looks == looked
    waking.close()
    assert holding.closed == 1


async def test_after_a_look_that_took_long_the_next_comes_later() -> None:
    holding = Looked(Clock())
    Waking(holding, holding.clock)
    holding.takes = 0.005  # the next one 20 ms later
    holding.on_due()
    await turns()
    began = asyncio.get_running_loop().time()
    holding.on_due()
    async with asyncio.timeout(30):
        while holding.looks < 2:
            await asyncio.sleep(0)
    assert asyncio.get_running_loop().time() - began >= 0.019


async def test_a_fault_of_ours_lets_everything_go() -> None:
    holding = Looked(Clock())
    Waking(holding, holding.clock)
    holding.raises = True
    holding.on_due()
    await turns()
    assert holding.closed == 1


class Watcher:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def settled(self, exchange: Exchange, seconds: float) -> None:
        self.told.append(exchange.outcome)

    def failed(self, exchange: Exchange, error: Exception) -> None:
        self.told.append("failed")

    def ended(self, exchange: Exchange) -> None:
        self.told.append("ended")


def held_session() -> tuple[ExchangeSession, Steering, Watcher, list[tuple[Answer, bool]]]:
    """A session whose request waits, since the one replica has 5 s of work."""
    pool = Pool("p", traits=Traits(prefill_speed=1000.0, stale_after=math.inf))
    replica = pool.join("10.0.0.1:8000", 0.0)
    mind, watcher, pushed = Steering([pool], Rules(), random.Random(1)), Watcher(), []
    mind.holding.furnish(WaitingRoom(pool, RoomSettings()), 2**20, 1.0)
    mind.ledger.charge(-1, replica, 5000.0, 100, 1.0, told=True)
    session = ExchangeSession(mind, watcher, Clock())
    assert session.receive(request_headers())[1:] == (False, False)
    assert not session.held
    data, close, settled = session.receive(request_body(chat()))
    assert (answer(data).override_message_timeout.seconds, close, settled) == (61, False, False)
    assert session.held
    session.answer_by(lambda data, close: pushed.append((data, close)))
    return session, mind, watcher, pushed


def test_a_session_that_was_held_answers_by_the_way_it_was_given() -> None:
    session, mind, watcher, pushed = held_session()
    assert watcher.told == []
    mind.ledger.release(-1, 1.0)
    mind.holding.pump(1.0)
    ((data, close),) = pushed
    assert set_headers(answer(data))["x-gateway-destination-endpoint"] == "10.0.0.1:8000"
    assert not close
    assert not session.held
    session.end()
    assert watcher.told == ["steered", "ended"]


def test_a_fault_of_ours_while_it_answers_closes_the_stream_with_ok() -> None:
    _, mind, watcher, pushed = held_session()

    def fails(*_: Any, **__: Any) -> None:
        raise ValueError("a fault of ours")

    mind.decide = fails  # type: ignore[assignment]
    mind.ledger.release(-1, 1.0)
    mind.holding.pump(1.0)
    assert (pushed, watcher.told) == ([(None, True)], ["failed"])


def test_a_session_whose_stream_ends_while_it_is_held_leaves_nothing() -> None:
    session, mind, watcher, pushed = held_session()
    session.end()
    mind.holding.pump(100.0)
    assert (len(mind.holding), pushed, watcher.told) == (0, [], ["ended"])


async def test_how_late_looks_are_is_told_four_times_a_second_by_the_latest() -> None:
    holding = Looked(Clock())
    told: list[float] = []
    holding.looked = told.append  # type: ignore[method-assign]
    Waking(holding, holding.clock)
    for late in (0.125, 0.0625, 0.25):  # the loop was elsewhere for so long after each was asked for
        holding.on_due()
        holding.clock.now += late
        await turns()
    assert told == [0.25], "0.4375 s have gone by: the first two are within the quarter second"
    holding.on_due()
    holding.clock.now += 0.5
    await turns()
    assert told == [0.25, 0.5]
