"""Decision records say what was known at their moments, although what replicas told is kept once for many of them."""

from typing import Any

import pytest

from extproc.core.exchange import Exchange
from extproc.core.sample import Sample
from extproc.io.records import Records
from tests.unit.messages import chat, request_body, request_headers
from tests.unit.test_ending import mind


class World:
    """A mind of two replicas whose decisions are kept."""

    def __init__(self) -> None:
        self.steering = mind(2)
        self.pool = self.steering.pools[0]
        self.records = Records(10)

    def decide(self, now: float) -> None:
        exchange = Exchange(self.steering)
        exchange.receive(request_headers(), now)
        exchange.receive(request_body(chat()), now)
        self.records.settled(exchange, 0.0)

    def hear(self, at: float, running: float) -> None:
        for replica in list(self.pool.replicas):
            self.pool.observe(replica.address, Sample(at=at, running=running, waiting=0.0))

    def column(self, name: str) -> list[list[Any]]:
        """A field of every candidate, for each record, oldest first."""
        return [[row.get(name) for row in kept["candidates"]] for kept in reversed(self.records.last(10))]


def test_a_record_keeps_the_samples_of_its_moment_when_new_ones_come() -> None:
    world = World()
    world.decide(1.0)
    world.hear(2.0, running=3.0)
    world.decide(3.0)
    world.decide(3.5)
    world.hear(4.0, running=5.0)
    world.decide(5.0)
    assert world.column("running") == [[None, None], [3.0, 3.0], [3.0, 3.0], [5.0, 5.0]]
    assert world.column("sample_age") == [[None, None], [1.0, 1.0], [1.5, 1.5], [1.0, 1.0]]


def test_requests_in_flight_are_those_of_the_decision_and_count_it() -> None:
    world = World()
    for now in (1.0, 1.1, 1.2):
        world.decide(now)
    assert [sum(column) for column in world.column("in_flight")] == [1, 2, 3]


def test_a_bias_that_changed_is_in_the_next_record_and_not_in_the_last() -> None:
    world = World()
    world.decide(1.0)
    replica = world.pool.replicas[0]
    replica.cost = 3.0
    replica.refresh(1.5)
    world.decide(2.0)
    assert [column[0] for column in world.column("bias")] == [1.0, 3.0]


@pytest.mark.parametrize("change", ["leave", "restart"])
def test_who_left_or_began_anew_is_told_of_as_such(change: str) -> None:
    world = World()
    world.hear(1.0, running=2.0)
    world.decide(1.5)
    first = world.pool.replicas[0].address
    if change == "leave":
        world.pool.leave(first)
    else:
        world.pool.restarted(first, 2.0)
    world.decide(2.5)
    assert world.column("running")[0] == [2.0, 2.0]
    running = dict(zip(world.column("replica")[1], world.column("running")[1], strict=True))
    assert running.get(first) is None
    assert [value for address, value in running.items() if address != first] == [2.0]


def test_a_record_keeps_the_policy_and_the_shared_state_of_its_moment() -> None:
    world = World()
    world.decide(1.0)
    world.pool.adopt("random", {}, version=4)
    world.decide(2.0)
    world.records.shared = lambda: "degraded"
    world.decide(3.0)
    told = [
        (kept["policy"], kept["policy_version"], kept["shared"]) for kept in reversed(world.records.last(3))
    ]
    assert told == [("charged_cost", 0, "off"), ("random", 4, "off"), ("random", 4, "degraded")]
