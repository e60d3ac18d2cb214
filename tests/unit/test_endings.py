"""Each exchange that is over is learned from, counted and kept once, when all is told or nothing more comes."""

from prometheus_client import CollectorRegistry

from extproc.core.exchange import Exchange
from extproc.core.outcome import Ended
from extproc.core.steering import Steering
from extproc.io.endings import Endings
from extproc.io.outcome_metrics import OutcomeMetrics
from extproc.io.records import Records
from tests.unit.messages import chat, request_body, request_headers
from tests.unit.test_ending import mind, replica, trailers


class World:
    """A mind, and what it hears of ends."""

    def __init__(self, *, logged: bool = True, replicas: int = 2) -> None:
        self.steering: Steering = mind(replicas)
        self.registry = CollectorRegistry()
        metrics = OutcomeMetrics(self.steering.pools, self.registry)
        self.endings = Endings(self.steering, metrics, Records(10), logged=logged)

    def exchange(self, request_id: str = "id-1", *, told: bool = False, now: float = 1.0) -> Exchange:
        exchange = Exchange(self.steering)
        exchange.receive(request_headers(x_request_id=request_id), now)
        exchange.receive(request_body(chat()), now)
        if told:
            message = trailers(served=replica(exchange), usage=(100, 7, 64))
            exchange.receive(message.SerializeToString(), now)
        exchange.end(now)
        self.endings.ended(exchange, now)
        return exchange

    def counted(self, by: str, status: str) -> float | None:
        labels = {"pool": "p", "by": by, "status": status}
        return self.registry.get_sample_value("kvsteer_endings_total", labels)


def test_what_trailers_told_is_counted_at_once() -> None:
    world = World()
    world.exchange(told=True)
    assert len(world.endings) == 0
    assert world.counted("complete", "2xx") == 1
    tokens = {"pool": "p", "kind": "cached"}
    assert world.registry.get_sample_value("kvsteer_settled_tokens_total", tokens) == 64


def test_what_they_did_not_tell_the_access_log_does() -> None:
    world = World()
    exchange = world.exchange()
    assert len(world.endings) == 1
    world.endings.logged(Ended(replica(exchange), "id-1", 200, None, True, 1), 1.1)
    assert len(world.endings) == 0
    assert world.counted("client", "2xx") == 1
    assert exchange.ending is not None
    assert (exchange.ending.served, exchange.ending.attempts) == (replica(exchange), 1)


def test_entries_of_others_and_entries_that_come_twice_change_nothing() -> None:
    world = World()
    exchange = world.exchange()
    for name in ("id-2", "id-1", "id-1"):
        world.endings.logged(Ended(replica(exchange), name, None, None, False), 1.1)
    assert world.counted("upstream", "unknown") == 1


def test_an_entry_that_never_comes_leaves_the_end_unknown() -> None:
    world = World()
    world.exchange()
    world.endings.sweep(2.9)
    assert len(world.endings) == 1
    world.endings.sweep(3.1)
    assert len(world.endings) == 0
    assert world.counted("unknown", "unknown") == 1


def test_nobody_waits_for_a_log_that_is_off() -> None:
    world = World(logged=False)
    world.exchange()
    assert len(world.endings) == 0


def test_what_no_replica_could_take_the_gateway_ended() -> None:
    world = World(replicas=0)
    exchange = world.exchange()
    assert exchange.ending is not None
    assert exchange.ending.by == "gateway"
    assert world.counted("gateway", "unknown") == 1


def test_two_exchanges_of_one_id_are_both_finished() -> None:
    world = World()
    world.exchange("same")
    world.exchange("same")
    assert len(world.endings) == 1
    world.endings.sweep(10.0)
    assert len(world.endings) == 0
