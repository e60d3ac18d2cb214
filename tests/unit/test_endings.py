"""Each exchange that is over is learned from, counted and kept once, when all is told or nothing more comes."""

from dataclasses import replace

import pytest
from google.protobuf import json_format
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.samples import Sample

from extproc.core.ending import Ending
from extproc.core.exchange import Exchange
from extproc.core.fleet import Replica
from extproc.core.outcome import Ended
from extproc.core.reply import ALL_TOLD, NEUTRAL
from extproc.core.steering import Steering
from extproc.core.usage.record import Usage
from extproc.io.endings import Endings
from extproc.io.outcome_metrics import OutcomeMetrics
from extproc.io.records import Records, ending_of
from extproc.pb import ext_proc_pb2 as pb
from tests.examples import examples
from tests.unit.messages import chat, request_body, request_headers
from tests.unit.test_ending import mind, replica, trailers


class World:
    """A mind, and what it hears of ends."""

    def __init__(
        self, *, logged: bool = True, replicas: int = 2, costs: dict[str, float] | None = None
    ) -> None:
        self.steering: Steering = mind(replicas, costs)
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

    def entries(self, result: str) -> float | None:
        return self.registry.get_sample_value("kvsteer_log_entries_total", {"result": result})

    def all_endings(self) -> list[Sample]:
        families = [family for family in self.registry.collect() if family.name == "kvsteer_endings"]
        return [sample for family in families for sample in family.samples if sample.name.endswith("_total")]

    def counted(self, by: str, status: str) -> float | None:
        labels = {"pool": "p", "by": by, "status": status}
        return self.registry.get_sample_value("kvsteer_endings_total", labels)


def chain_of(exchange: Exchange) -> list[int]:
    """Hashes of its prompt. Take them before the end is settled: a record drops them."""
    assert exchange.decision is not None
    assert exchange.decision.prompt is not None
    return list(exchange.decision.prompt.chains[0].hashes)


def test_one_end_that_can_not_be_learned_from_costs_no_other_that_waits_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    for name in ("id-1", "id-2", "id-3"):
        world.exchange(name)
    with monkeypatch.context() as faulty:
        faulty.setattr(world.steering, "learn", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            world.endings.sweep(3.1)
    assert len(world.endings) == 2, "those behind the faulty one still wait"
    world.endings.sweep(3.2)
    assert len(world.endings) == 0
    assert world.entries("missing") == 3


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


def test_a_prompt_that_reached_no_replica_is_not_believed_cached_and_its_entry_is_joined() -> None:
    """The client left while the gateway decided: Envoy's entry has no upstream."""
    world = World(replicas=1)
    exchange = world.exchange()
    pool, chain = world.steering.pools[0], chain_of(exchange)
    assert pool.index.match(chain), "placed when it was decided"
    world.endings.logged(Ended("", "id-1", None, None, True), 1.1)
    assert not pool.index.match(chain)
    assert world.counted("client", "unknown") == 1
    assert (world.entries("joined"), world.entries("missing")) == (1, None)


def test_without_a_log_a_prompt_that_left_no_time_to_be_computed_is_not_believed_cached() -> None:
    """The client left as it was decided: nothing proves that a replica got the prompt, nor could have computed it."""
    world = World(logged=False, replicas=1)
    exchange = Exchange(world.steering)
    exchange.receive(request_headers(x_request_id="id-1"), 1.0)
    exchange.receive(request_body(chat()), 1.0)
    pool, chain = world.steering.pools[0], chain_of(exchange)
    assert pool.index.match(chain)
    exchange.end(1.0)
    world.endings.ended(exchange, 1.0)
    assert not pool.index.match(chain)
    assert world.counted("unknown", "unknown") == 1


def test_without_a_log_a_prompt_that_had_time_or_is_known_to_have_reached_a_replica_stays_believed() -> None:
    for told, end in ((False, 60.0), (True, 1.0)):
        world = World(logged=False, replicas=1)
        exchange = Exchange(world.steering)
        exchange.receive(request_headers(x_request_id="id-1"), 1.0)
        exchange.receive(request_body(chat()), 1.0)
        pool, chain = world.steering.pools[0], chain_of(exchange)
        if told:
            exchange.first_token(1.0)
        exchange.end(end)
        world.endings.ended(exchange, end)
        assert pool.index.match(chain), (
            "computed by then, as far as the clock knows" if not told else "it answered"
        )


def test_what_the_log_says_of_a_replica_overrules_that_there_was_no_time() -> None:
    world = World(replicas=1)
    exchange = world.exchange()
    pool, chain = world.steering.pools[0], chain_of(exchange)
    world.endings.logged(Ended(replica(exchange), "id-1", 200, None, True, 1), 1.1)
    assert pool.index.match(chain)


def test_breakers_hear_of_no_entry_that_says_nothing_of_the_replica() -> None:
    """Three failures in a row open one: these are none, nor successes between those that are."""
    world = World(replicas=1)
    (known,) = world.steering.pools[0].replicas
    for number in range(3):
        for mute in (
            Ended("", f"a-{number}", None, None, False),
            Ended(known.address, f"b-{number}", 200, None, False, 1, code=200, unsure=True),
            Ended(known.address, f"c-{number}", 200, None, True, 1, code=200),
        ):
            world.steering.answered(mute, 1.0)
            assert known.breaker.state == "closed"
        world.steering.answered(Ended(known.address, f"d-{number}", None, None, False), 1.0)
    assert known.breaker.state == "open"


def test_what_envoy_itself_answered_before_any_replica_is_the_gateways_end() -> None:
    world = World(replicas=1)
    exchange = world.exchange()
    chain = chain_of(exchange)
    world.endings.logged(Ended("", "id-1", 503, None, False, code=503), 1.1)
    assert not world.steering.pools[0].index.match(chain)
    assert world.counted("gateway", "5xx") == 1


def test_entries_of_refused_requests_are_known_and_told_to_no_other_of_their_id() -> None:
    world = World()
    waiting = world.exchange()
    refused = Exchange(world.steering)
    refused.receive(request_headers(x_request_id="id-1"), 1.0)
    refused.end(1.0)
    world.endings.ended(refused, 1.0)
    world.endings.logged(Ended("", "id-1", 400, None, False, code=400), 1.1)
    assert waiting.ending is not None
    assert (waiting.ending.by, waiting.ending.status) == ("unknown", None)
    assert (world.entries("known"), world.entries("ambiguous")) == (1, 1)


def test_what_the_gateway_answered_stays_whatever_envoy_logs_of_it_and_is_counted_apart_from_envoys() -> None:
    world = World(replicas=1)
    only = world.steering.pools[0].replicas[0]
    only.drain("operator", 0.5)
    refused = world.exchange()
    world.endings.logged(Ended("", "id-1", 502, None, False, code=502), 1.1)
    assert refused.ending is not None
    assert (refused.ending.by, refused.ending.status) == ("gateway", 503)
    assert (world.counted("gateway", "unknown"), world.counted("gateway", "5xx")) == (1, None)
    assert world.entries("known") == 1


def test_a_record_tells_an_end_that_is_open_from_one_that_nobody_told() -> None:
    world = World()
    exchange = world.exchange()
    exchange.ending = exchange.ending or Ending()
    before = ending_of(exchange.ending, 1.0)
    world.endings.sweep(3.1)
    after = ending_of(exchange.ending, 1.0)
    assert before is not None
    assert after is not None
    assert (before["by"], after["by"]) == (None, "unknown")


def test_an_end_that_nobody_told_is_unknown_in_its_record() -> None:
    world = World()
    exchange = world.exchange()
    world.endings.sweep(3.1)
    record = ending_of(exchange.ending, 1.0)
    assert record is not None
    assert record["by"] == "unknown"


def test_a_stream_that_the_replica_broke_off_keeps_the_status_that_the_client_got() -> None:
    world = World()
    exchange = world.exchange()
    world.endings.logged(Ended(replica(exchange), "id-1", None, None, False, 1, code=200), 1.1)
    assert world.counted("upstream", "2xx") == 1
    assert exchange.ending is not None
    assert exchange.ending.usage is None


def test_a_cut_that_nobody_is_known_to_have_made_is_unknown() -> None:
    world = World()
    exchange = world.exchange()
    world.endings.logged(Ended(replica(exchange), "id-1", 200, None, False, 1, code=200, unsure=True), 1.1)
    assert world.counted("unknown", "2xx") == 1


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


def test_two_exchanges_of_one_id_are_finished_and_neither_is_told_anything() -> None:
    """The log can't tell them apart, nor the third that comes while entries of theirs may be on their way."""
    world = World()
    one, two = world.exchange("same"), world.exchange("same")
    entry = Ended(replica(one), "same", 200, None, False, 1, usage=Usage(100, 7, 64), verdict="complete")
    world.endings.logged(entry, 1.1)
    three = world.exchange("same")
    world.endings.logged(entry, 1.2)
    assert len(world.endings) == 0
    assert world.counted("unknown", "unknown") == 3
    assert [x.ending.usage for x in (one, two, three) if x.ending is not None] == [None] * 3
    assert world.entries("ambiguous") == 3


def test_an_entry_that_comes_before_the_stream_ends_is_not_lost() -> None:
    world = World()
    address = world.steering.pools[0].replicas[0].address
    world.endings.logged(
        Ended(address, "id-1", 200, None, False, 1, usage=Usage(100, 7, 64), verdict="complete"), 0.9
    )
    exchange = world.exchange()
    assert len(world.endings) == 0
    assert exchange.ending is not None
    assert (exchange.ending.by, exchange.ending.usage) == ("complete", Usage(100, 7, 64))
    assert world.entries("joined") == 1


def test_an_entry_of_an_earlier_exchange_is_not_taken_for_a_later_one_of_the_same_id() -> None:
    world = World()
    first = world.exchange(told=True)
    second = world.exchange()
    world.endings.logged(
        Ended(replica(first), "id-1", 200, None, False, 1, usage=Usage(9, 9, 9), verdict="complete"), 1.1
    )
    assert second.ending is not None
    assert (second.ending.by, second.ending.usage) == ("unknown", None)
    assert world.entries("known") == 1


def test_usage_of_the_log_is_not_taken_of_what_the_replica_broke_off_or_refused() -> None:
    world = World()
    for number, status in enumerate((None, 429, 503)):
        exchange = world.exchange(f"id-{number}")
        entry = Ended(
            replica(exchange),
            f"id-{number}",
            status,
            None,
            False,
            1,
            usage=Usage(100, 7, 64),
            verdict="complete",
        )
        world.endings.logged(entry, 1.1)
        assert exchange.ending is not None
        assert exchange.ending.usage is None


def test_what_nobody_claims_is_forgotten() -> None:
    world = World()
    for number in range(100):
        world.endings.logged(Ended("10.0.0.9:8000", f"other-{number}", 200, None, False), 1.0)
    world.exchange(told=True)
    assert world.endings.held == 101
    world.endings.sweep(3.1)
    assert world.endings.held == 0
    assert world.entries("unclaimed") == 100


@examples(30)
@given(
    st.permutations([(kind, number) for number in range(4) for kind in ("stream", "entry", "entry")]),
    st.sets(st.integers(0, 11)),
)
def test_whatever_is_lost_doubled_or_out_of_order_usage_is_right_or_absent(
    events: list[tuple[str, int]], lost: set[int]
) -> None:
    """Exchange n costs 100 + n tokens; each has two copies of its entry, and any of the messages may be lost."""
    world, done, now = World(), [], 1.0
    for place, (kind, number) in enumerate(events):
        now += 0.1
        if place in lost and kind == "entry":
            continue
        if kind == "stream":
            done.append((number, world.exchange(f"id-{number}", now=now)))
        else:
            usage = Usage(100 + number, 7, 64)
            entry = Ended(
                "10.0.0.1:8000", f"id-{number}", 200, None, False, 1, usage=usage, verdict="complete"
            )
            world.endings.logged(entry, now)
    world.endings.sweep(now + 2.5)
    assert len(world.endings) == world.endings.held == 0
    for number, exchange in done:
        got = exchange.ending.usage if exchange.ending is not None else None
        assert got in (None, Usage(100 + number, 7, 64))
    assert sum(metric.value for metric in world.all_endings()) == 4


@pytest.mark.parametrize(
    ("path", "stream", "output", "kept"),
    [
        ("/v1/messages", True, 1, None),
        ("/v1/messages", True, 0, None),
        ("/v1/messages", True, 2, 2),
        ("/v1/messages", False, 1, 1),
        ("/v1/chat/completions", True, 1, 1),
    ],
)
def test_what_the_beginning_of_anthropics_streams_guesses_is_no_output(
    path: str, stream: bool, output: int, kept: int | None
) -> None:
    world = World()
    exchange = Exchange(world.steering)
    exchange.receive(request_headers(path, x_request_id="id-1"), 1.0)
    exchange.receive(request_body(chat(stream=stream)), 1.0)
    message = trailers(served=replica(exchange), usage=(100, output, 64))
    exchange.receive(message.SerializeToString(), 1.0)
    exchange.end(1.0)
    world.endings.ended(exchange, 1.0)
    assert exchange.ending is not None
    assert exchange.ending.usage == Usage(100, kept, 64)


OUTCOMES = [("10.0.0.1:8000", 200, 1), ("10.0.0.1:8000", 503, 1), ("10.0.0.1:8000", 200, 2), ("", 200, 1)]


@pytest.mark.parametrize(("served", "status", "attempts"), OUTCOMES)
def test_envoy_is_told_not_to_log_what_the_first_replica_answered_well(
    served: str, status: int, attempts: int
) -> None:
    world = World(replicas=1)
    world.steering.rules = replace(world.steering.rules, spares_log=True)
    exchange = Exchange(world.steering)
    exchange.receive(request_headers(x_request_id="id-1"), 1.0)
    exchange.receive(request_body(chat()), 1.0)
    message = trailers(served=served, status=status, attempts=attempts, usage=(100, 7, 64))
    reply = exchange.receive(message.SerializeToString(), 2.0)
    spared = reply == ALL_TOLD
    assert spared == ((served, status, attempts) == OUTCOMES[0])
    assert reply == (ALL_TOLD if spared else NEUTRAL["response_trailers"])


def test_what_says_so_is_metadata_beside_an_answer_that_changes_nothing() -> None:
    answer = pb.ProcessingResponse.FromString(ALL_TOLD[0])
    assert answer.WhichOneof("response") == "response_trailers"
    assert not answer.response_trailers.header_mutation.set_headers
    assert json_format.MessageToDict(answer.dynamic_metadata) == {"kvsteer": {"told": True}}


def failed(world: World, address: str, count: int) -> None:
    for number in range(count):
        world.steering.answered(Ended(address, f"failed-{number}", 500, None, False, 1, code=500), 1.0)


def test_a_breaker_hears_of_a_success_by_the_clean_end() -> None:
    """Three failures in a row open it, and a success in between begins the row anew."""
    world = World(replicas=1)
    (known,) = world.steering.pools[0].replicas
    failed(world, known.address, 2)
    world.exchange(told=True)
    failed(world, known.address, 2)
    assert known.breaker.state == "closed"
    failed(world, known.address, 1)
    assert known.breaker.state == "open"


def test_the_success_of_a_probe_closes_a_breaker_without_the_access_log() -> None:
    """It opens for a second; then one request is the probe."""
    world = World(replicas=1)
    (known,) = world.steering.pools[0].replicas
    failed(world, known.address, 3)
    assert known.breaker.state == "open"
    known.refresh(2.5)
    world.exchange("probe", told=True, now=2.5)
    assert known.breaker.state == "closed"


def test_an_entry_of_what_a_breaker_heard_already_counts_once() -> None:
    """With ten outcomes four failures open it: nine successes are told once each, though logged too."""
    world = World(replicas=1)
    (known,) = world.steering.pools[0].replicas
    for number in range(9):
        world.exchange(f"id-{number}", told=True)
        entry = Ended(known.address, f"id-{number}", 200, None, False, 1, code=200)
        world.endings.heard([entry], 1.1)
    assert world.entries("known") == 9
    assert len(known.breaker._outcomes) == 9


def test_an_entry_that_came_first_is_what_a_breaker_learns_from() -> None:
    world = World(replicas=1)
    (known,) = world.steering.pools[0].replicas
    entry = Ended(known.address, "id-1", 200, None, False, 1, code=200)
    world.endings.heard([entry], 0.9)
    assert len(known.breaker._outcomes) == 1
    world.exchange(told=True)
    assert len(known.breaker._outcomes) == 1


@pytest.mark.parametrize(
    "entry",
    [
        Ended("10.0.0.1:8000", "id-1", None, None, False, 1, code=200),
        Ended("10.0.0.1:8000", "id-1", 503, None, False, 1, code=503),
        Ended("10.0.0.1:8000", "id-2", 200, None, False, 1, code=200),
    ],
)
def test_an_entry_of_another_end_or_request_is_learned_from(entry: Ended) -> None:
    """Ids may be used again by clients: what failed is never taken for what succeeded."""
    world = World(replicas=1)
    (known,) = world.steering.pools[0].replicas
    world.exchange("id-1", told=True)
    world.endings.heard([entry], 1.1)
    assert len(known.breaker._outcomes) == 2


class Retried:
    """A world of three replicas, chosen in their order for their prices, and what Envoy's second tries tell there."""

    def __init__(self, *, logged: bool = True) -> None:
        costs = {f"10.0.0.{number}:8000": 100.0**number for number in (1, 2, 3)}
        self.world = World(replicas=3, logged=logged, costs=costs)
        (self.pool,) = self.world.steering.pools

    def exchange(self, request_id: str, *, now: float = 1.0) -> tuple[Exchange, Replica, str]:
        """A request on its way, where it goes first, and who serves it then."""
        exchange = Exchange(self.world.steering)
        exchange.receive(request_headers(x_request_id=request_id), now)
        exchange.receive(request_body(chat()), now)
        assert exchange.decision is not None
        assert exchange.decision.replica is self.pool.replicas[0], "the cheapest by far"
        first, second, *_ = exchange.decision.order
        return exchange, first, second.address

    def over(self, exchange: Exchange, now: float = 1.0) -> None:
        exchange.end(now)
        self.world.endings.ended(exchange, now)

    def entry(self, entry: Ended, now: float = 1.1) -> None:
        self.world.endings.heard([entry], now)

    def told(self, request_id: str, how: str, now: float = 1.0) -> Replica:
        """One that another replica answered with 200, told by `how`; who failed it."""
        exchange, first, second = self.exchange(request_id, now=now)
        entry = Ended(second, request_id, 200, None, False, 2, code=200)
        if how == "entry first":
            self.entry(entry, now)
        if how in ("end", "end and entry"):
            exchange.receive(trailers(served=second, attempts=2).SerializeToString(), now)
        if how == "headers and end":
            message = pb.ProcessingRequest(response_headers=pb.HttpHeaders())
            for name, value in trailers(served=second, attempts=2).attributes.items():
                message.attributes[name].CopyFrom(value)
            exchange.receive(message.SerializeToString(), now)
            exchange.receive(trailers(served=second, attempts=2).SerializeToString(), now)
        self.over(exchange, now)
        if how in ("entry", "end and entry"):
            self.entry(entry, now)
        return first

    def failed_tries(self, failing: Replica) -> float | None:
        labels = {"pool": "p", "replica": failing.address}
        return self.world.registry.get_sample_value("kvsteer_failed_tries_total", labels)


@pytest.mark.parametrize("how", ["end", "entry", "entry first", "end and entry", "headers and end"])
def test_a_replica_whose_first_tries_fail_is_out_after_three_of_them(how: str) -> None:
    """Clients get 200 from another one all the while. Each counts once, whoever tells it."""
    it = Retried()
    for number in range(3):
        first = it.told(f"id-{number}", how)
        assert first.breaker.state == ("open" if number == 2 else "closed"), number
        assert it.failed_tries(first) == number + 1
    assert [replica.breaker.state for replica in it.pool.replicas] == ["open", "closed", "closed"]
    assert it.pool.replicas[0].excluded(1.1) == "breaker"


def test_without_the_access_log_they_count_too() -> None:
    it = Retried(logged=False)
    for number in range(3):
        first = it.told(f"id-{number}", "end")
    assert first.breaker.state == "open"


def test_other_gateways_hear_of_a_breaker_that_first_tries_open() -> None:
    it, heard = Retried(), []
    it.world.steering.on_breaker = lambda _pool, replica, seconds: heard.append((replica.address, seconds))
    for number in range(3):
        first = it.told(f"id-{number}", "end")
    assert heard == [(first.address, 1.0)]


def test_a_probe_that_another_replica_answers_has_failed() -> None:
    """Open for one second; the probe fails, so it is open for two; the next one is answered, and closes it."""
    it = Retried()
    for number in range(3):
        first = it.told(f"id-{number}", "end")
    first.refresh(2.0)
    assert it.told("probe", "end", 2.0) is first
    assert (first.breaker.state, first.breaker.rest(2.0)) == ("open", 2.0)
    first.refresh(4.0)
    exchange, first, _ = it.exchange("next", now=4.0)
    exchange.receive(trailers(served=first.address).SerializeToString(), 4.0)
    it.over(exchange, 4.0)
    assert first.breaker.state == "closed"


@pytest.mark.parametrize(("number", "attempts"), [(0, 2), (1, 1), (2, 2), (1, 3)])
def test_where_envoy_chose_by_itself_nobody_is_blamed(number: int, attempts: int) -> None:
    it = Retried()
    for count in range(5):
        exchange, first, _ = it.exchange(f"id-{count}")
        assert exchange.decision is not None
        served = exchange.decision.order[number].address
        exchange.receive(trailers(served=served, attempts=attempts).SerializeToString(), 1.0)
        it.over(exchange)
        assert it.failed_tries(first) is None
    assert [replica.breaker.state for replica in it.pool.replicas] == ["closed"] * 3


def test_first_tries_that_failed_long_ago_are_counted_and_open_nothing() -> None:
    """Streams of 10 s: what failed at 1.0 is told at 11.0, when a breaker opened then would let one try."""
    it = Retried()
    under_way = [it.exchange(f"id-{number}", now=1.0) for number in range(4)]
    for exchange, _first, second in under_way:
        exchange.receive(trailers(served=second, attempts=2).SerializeToString(), 11.0)
        it.over(exchange, 11.0)
    first = it.pool.replicas[0]
    assert (first.breaker.state, it.failed_tries(first)) == ("closed", 4)


@pytest.mark.parametrize("how", ["end", "entry", "entry of another gateway's"])
def test_first_tries_that_failed_before_a_later_one_was_answered_open_nothing(how: str) -> None:
    it = Retried()
    under_way = [it.exchange(f"id-{number}", now=1.0) for number in range(3)]
    well, first, _ = it.exchange("well", now=1.3)
    lasted = Duration(nanos=100_000_000).SerializeToString()
    entry = Ended(
        first.address, "well", 200, None, False, 1, code=200, lasted=lasted
    )  # it came at 1.4 or later
    if how == "end":
        well.receive(trailers(served=first.address).SerializeToString(), 1.4)
    if how != "entry of another gateway's":
        it.over(well, 1.4)
    if how != "end":
        it.entry(entry, 1.7)
    for exchange, _first, second in under_way:
        exchange.receive(trailers(served=second, attempts=2).SerializeToString(), 1.8)
        it.over(exchange, 1.8)
    assert (first.breaker.state, it.failed_tries(first)) == ("closed", 3)


@pytest.mark.parametrize("how", ["end", "entry"])
def test_whom_envoy_does_not_know_is_not_blamed_when_the_next_one_fails(how: str) -> None:
    """The list is A, B, C. One that B answers at the first try shows that A was passed over; then B fails."""
    it = Retried()
    for number, attempts in enumerate((1, 2, 2, 2)):
        exchange, _first, _ = it.exchange(f"id-{number}")
        assert exchange.decision is not None
        served = exchange.decision.order[attempts].address
        if how == "end":
            exchange.receive(trailers(served=served, attempts=attempts).SerializeToString(), 1.0)
        it.over(exchange)
        if how == "entry":
            it.entry(Ended(served, f"id-{number}", 200, None, False, attempts, code=200))
    assert sorted(it.failed_tries(replica) or 0 for replica in it.pool.replicas) == [0, 0, 3]
    assert it.failed_tries(it.pool.replicas[0]) is None


def test_a_replica_that_began_anew_is_not_blamed_for_what_it_was() -> None:
    it = Retried()
    exchange, first, second = it.exchange("id-1")
    it.pool.leave(first.address)
    again = it.pool.join(first.address, 1.0)
    exchange.receive(trailers(served=second, attempts=2).SerializeToString(), 1.0)
    it.over(exchange)
    assert (first.failed_tries, again.failed_tries) == (0, 0)
    assert not again.breaker._outcomes


def test_where_too_many_wait_the_oldest_few_are_given_up_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extproc.io.endings._MOST", 10)
    monkeypatch.setattr("extproc.io.endings._AT_ONCE", 4)
    world = World()
    waiting = [world.exchange(f"id-{n}") for n in range(11)]
    assert len(world.endings) == 7
    assert [exchange.ending is not None and exchange.ending.over for exchange in waiting] == [True] * 4 + [
        False
    ] * 7
    for n in range(11, 14):
        world.exchange(f"id-{n}")
    assert len(world.endings) == 10
