"""Requests that wait in a gateway: who is held, who goes when, and what is told of it. Times worked out by hand."""

import math
import random
from typing import Any

import pytest

from extproc.core.elsewhere import Elsewhere
from extproc.core.exchange import Exchange
from extproc.core.holding import CLOSED, FULL, LEFT, LONGEST_WAIT, OPEN
from extproc.core.journal import Batch, Placed, decode, encode
from extproc.core.journal import Held as HeldRow
from extproc.core.outbox import Outbox
from extproc.core.pool import Pool
from extproc.core.prompt import Prompt
from extproc.core.shared import Shared
from extproc.core.states import DECIDED, HELD, OVER
from extproc.core.steering import Rules, Steering
from extproc.core.traits import Traits
from extproc.core.waiting import RoomSettings, WaitingRoom
from extproc.pb import ext_proc_pb2 as pb
from tests.unit.messages import answer, chat, request_body, request_headers, set_headers

SPEED = 1000.0  # prompt tokens a second
#: A chat of 4,000 bytes is about 1,000 tokens, so a second of work.
SECOND = "x" * 4000


class Bench:
    """A gateway of one pool that binds late, and what its exchanges answered."""

    def __init__(self, replicas: int = 1, most: int = 2**20, rules: Rules | None = None, **room: Any) -> None:
        traits = Traits(prefill_speed=SPEED, stale_after=math.inf)
        self.pool = Pool("p", traits=traits, policy_settings={"decode": 0.0, "near": 0.0})
        for number in range(replicas):
            self.pool.join(f"10.0.0.{number + 1}:8000", 0.0)
        self.mind = Steering([self.pool], rules or Rules(), random.Random(1))
        self.holding = self.mind.holding
        self.holding.furnish(WaitingRoom(self.pool, RoomSettings(**room)), most, 1.0)
        self.hall = self.holding.halls["p"]
        self.answers: dict[int, pb.ProcessingResponse] = {}
        self.looks = 0
        self.holding.on_due = self._look

    def _look(self) -> None:
        self.looks += 1

    def busy(self, seconds: float, number: int = 1, key: int = -1) -> None:
        """A replica has so much to do, whose end will be told."""
        replica = self.pool.get(f"10.0.0.{number}:8000")
        assert replica is not None
        self.mind.ledger.charge(key, replica, seconds * SPEED, 100, 0.0, told=True)

    def ask(self, name: int, now: float, text: str = SECOND, **fields: Any) -> Exchange:
        exchange = Exchange(self.mind)

        def due(at: float) -> None:
            self.answers[name] = answer(exchange.let_go(at)[0])

        exchange.due = due
        exchange.receive(request_headers(), now)
        reply = answer(exchange.receive(request_body(chat(f"{name} {text}", **fields)), now)[0])
        if exchange.state == HELD:
            assert reply.override_message_timeout.seconds == 61, "the longest wait and a second"
            assert reply.WhichOneof("response") is None
        else:
            self.answers[name] = reply
        return exchange


def test_in_an_idle_fleet_a_request_is_answered_as_it_comes() -> None:
    bench = Bench()
    exchange = bench.ask(1, 5.0)
    assert exchange.state == DECIDED
    assert (exchange.waited, bench.looks, len(bench.holding)) == (0.0, 0, 0)


def test_a_request_is_held_while_the_replica_is_busy_and_goes_when_it_is_nearly_free() -> None:
    bench = Bench(theta=0.25)
    bench.busy(2.0)
    exchange = bench.ask(1, 1.0)
    assert exchange.state == HELD
    assert exchange.outcome == "ended_early"
    assert bench.looks == 1, "somebody is to look by the clock"
    assert bench.holding.pump(1.5) == pytest.approx(1.75, abs=0.01), "2.0 s less a horizon of 0.25"
    assert not bench.answers
    bench.holding.pump(1.76)
    assert set_headers(bench.answers[1])["x-gateway-destination-endpoint"] == "10.0.0.1:8000"
    assert exchange.state == DECIDED
    assert exchange.outcome == "steered"
    assert exchange.waited == pytest.approx(0.76)
    assert exchange.decision is not None
    assert exchange.decision.at == pytest.approx(1.76), "the wait is no time of the engine's"
    assert bench.hall.ended[OPEN] == 1


def test_a_first_token_stirs_and_lets_the_next_go() -> None:
    bench = Bench(theta=0.25)
    bench.busy(5.0)
    exchange = bench.ask(1, 1.0)
    looked = bench.looks
    bench.mind.watched[-1] = Exchange(bench.mind)
    bench.mind.first_token(-1, 2.0)
    assert bench.looks > looked
    bench.holding.pump(2.0)
    assert exchange.state == DECIDED


@pytest.mark.parametrize(
    "event",
    [
        lambda bench: bench.pool.join("10.0.0.9:8000", 2.0),
        lambda bench: bench.pool.tick(2.0),
        lambda bench: bench.ask(2, 2.0).end(2.0),
        lambda bench: bench.pool.adopt("least_tokens", {}),
    ],
    ids=["a replica joins", "time passes for replicas", "an exchange ends", "another policy is adopted"],
)
def test_what_may_let_a_request_go_stirs(event: Any) -> None:
    bench = Bench()
    bench.busy(5.0)
    bench.ask(1, 1.0)
    looked = bench.looks
    event(bench)
    assert bench.looks > looked


def test_while_nothing_is_held_nothing_stirs() -> None:
    bench = Bench()
    exchange = bench.ask(1, 1.0)
    exchange.end(2.0)
    bench.pool.tick(2.0)
    bench.pool.join("10.0.0.9:8000", 2.0)
    assert bench.looks == 0


def test_a_client_that_leaves_frees_place_bytes_and_its_turn() -> None:
    bench = Bench()
    bench.busy(5.0)
    exchange = bench.ask(1, 1.0)
    assert bench.hall.size > 4000
    exchange.end(1.5)
    assert exchange.state == OVER
    assert (len(bench.holding), bench.hall.size, bench.hall.room.own) == (0, 0, 0)
    assert bench.hall.ended[LEFT] == 1
    bench.mind.ledger.release(-1, 2.0)
    bench.holding.pump(2.0)
    assert not bench.answers
    assert len(bench.mind.ledger) == 0


def test_after_the_longest_wait_a_request_goes_however_busy_the_replica_is() -> None:
    bench = Bench()  # 60 s
    bench.busy(500.0)
    exchange = bench.ask(1, 1.0)
    bench.holding.pump(60.9)
    assert exchange.state == HELD
    bench.holding.pump(61.0)
    assert exchange.state == DECIDED
    assert bench.hall.ended[LONGEST_WAIT] == 1


def test_above_the_bound_in_bytes_or_requests_a_request_is_bound_as_it_comes() -> None:
    bench = Bench(most=6000)
    bench.busy(5.0)
    assert bench.ask(1, 1.0).state == HELD
    assert bench.ask(2, 1.0).state == DECIDED, "4,000 bytes wait, and 4,000 more are above 6,000"
    few = Bench(requests=1)
    few.busy(5.0)
    assert few.ask(1, 1.0).state == HELD
    assert few.ask(2, 1.0).state == DECIDED
    assert bench.hall.ended[FULL] == few.hall.ended[FULL] == 1


def test_a_gateway_that_stops_decides_all_that_waits_and_holds_nothing_more() -> None:
    bench = Bench()
    bench.busy(50.0)
    exchanges = [bench.ask(number, 1.0) for number in range(3)]
    bench.holding.close(2.0)
    assert [exchange.state for exchange in exchanges] == [DECIDED] * 3
    assert bench.ask(9, 2.0).state == DECIDED
    assert bench.hall.ended[CLOSED] == 3


def test_another_policy_lets_all_go_and_charged_cost_holds_again() -> None:
    bench = Bench(most=2**20)
    bench.busy(50.0)
    exchange = bench.ask(1, 1.0)
    bench.pool.adopt("least_tokens", {})
    bench.holding.pump(1.0)
    assert exchange.state == DECIDED
    assert bench.ask(2, 1.0).state == DECIDED
    bench.pool.adopt("charged_cost", {"most": 20.0})
    assert bench.ask(3, 1.0).state == HELD
    assert bench.pool.policy.most == 5.0, (
        "what waits keeps to its prefix without being charged much for leaving it"
    )  # type: ignore[attr-defined]


def test_without_any_replica_a_request_is_refused_at_once_not_held() -> None:
    bench = Bench(replicas=0)
    exchange = bench.ask(1, 1.0)
    assert exchange.outcome == "no_candidate"
    drained = Bench()
    drained.pool.replicas[0].drain("operator", 1.0)
    assert drained.ask(1, 1.0).outcome == "no_candidate"


def test_without_a_body_or_with_one_nobody_reads_a_request_without_a_prompt_goes_at_once() -> None:
    bench = Bench()
    bench.busy(5.0)
    exchange = Exchange(bench.mind)
    exchange.receive(request_headers("/v1/models", end=True, method="GET"), 1.0)
    assert exchange.state == DECIDED


def test_the_body_that_asks_for_usage_goes_on_with_a_request_that_was_held() -> None:
    bench = Bench(rules=Rules(include_usage=True))
    bench.busy(1.0)
    bench.ask(1, 0.0, stream=True)
    bench.mind.ledger.release(-1, 0.5)
    bench.holding.pump(0.5)
    assert b"include_usage" in bench.answers[1].request_body.response.body_mutation.body


def test_messages_while_it_is_held_decide_nothing() -> None:
    bench = Bench()
    bench.busy(5.0)
    exchange = bench.ask(1, 1.0)
    assert exchange.receive(request_body(chat("another")), 1.1)[0] is None
    exchange.receive(pb.ProcessingRequest(response_headers=pb.HttpHeaders()).SerializeToString(), 1.2)
    assert exchange.state == HELD
    assert len(bench.holding) == 1


def test_time_in_which_a_replica_runs_dry_while_something_waits_is_added_up() -> None:
    bench = Bench(replicas=2, theta=0.25)
    bench.busy(2.5, 1)
    bench.busy(9.0, 2, key=-2)
    bench.ask(1, 1.0)  # a second of work
    bench.mind.ledger.release(-2, 2.0)  # replica 2 is free; nobody looks
    bench.hall.look(2.0)  # until 2.0 both had work: 2 * 1.0 s
    bench.hall.look(2.5)  # half a second with one idle, which would be of use, and one busy
    assert bench.hall.seconds == pytest.approx(3.0)
    assert (bench.hall.idle, bench.hall.spared) == pytest.approx((0.5, 0.0))


def news(bench: Bench) -> Outbox:
    outbox = Outbox("me", 1, [bench.pool], bench.mind.ledger, lambda: None)
    bench.mind.ledger.listener = bench.holding.listener = outbox
    outbox.batch(0.0)
    return outbox


def test_what_is_held_is_told_to_other_gateways_and_so_is_its_end() -> None:
    bench = Bench()
    bench.busy(5.0)
    outbox = news(bench)
    left, bound = bench.ask(1, 1.0), bench.ask(2, 1.0)
    told = decode(encode(outbox.batch(1.5))).held
    assert [round(row.age, 3) for row in told] == [0.5, 0.5]
    assert all(row.pool == "p" and row.size > 4000 and row.chains for row in told)
    assert [(row.script, row.most) for row in told] == [("ascii", None)] * 2
    left.end(2.0)
    bench.mind.ledger.release(-1, 2.0)
    bench.holding.pump(2.0)
    batch = outbox.batch(2.0)
    assert told[0].key in batch.ended
    assert [row.key for row in batch.placed] == [told[1].key]
    assert bound.state == DECIDED


def test_what_is_bound_before_it_was_told_is_not_told_as_held() -> None:
    bench = Bench()
    bench.busy(5.0)
    outbox = news(bench)
    bench.ask(1, 1.0)
    left = bench.ask(2, 1.0)
    left.end(1.0)
    bench.mind.ledger.release(-1, 1.0)
    bench.holding.pump(1.0)
    batch = outbox.batch(1.0)
    assert not batch.held
    assert len(batch.placed) == 1


def row(key: int, age: float = 0.1, pool: str = "p") -> HeldRow:
    return HeldRow(key, pool, "m", "openai_chat", 4000, False, age)


def test_what_others_hold_is_in_the_room_until_it_is_placed_or_over() -> None:
    bench = Bench()
    there = Elsewhere({"p": bench.pool})
    one, two = ("g", 1), ("h", 1)
    there.hear(one, Batch("g", 1, 0, held=[row(1), row(2), row(3, pool="unknown")]), 5.0)
    there.hear(two, Batch("h", 1, 0, held=[row(1)]), 5.0)
    assert (len(there), len(bench.hall.room)) == (3, 3)
    there.hear(one, Batch("g", 1, 1, placed=[Placed(1, 0, 1.0, 1, 0.0)]), 5.1)
    assert (len(there), len(bench.hall.room)) == (2, 2)
    there.hear(one, Batch("g", 1, 2, ended=[2, 77]), 5.2)
    assert (len(there), len(bench.hall.room)) == (1, 1)
    there.hear(two, Batch("h", 1, 1, leaves=True), 5.3)
    assert (len(there), len(bench.hall.room)) == (0, 0)


def test_what_a_silent_gateway_held_is_forgotten_with_it() -> None:
    bench = Bench()
    shared = Shared([bench.pool], ("me", 1))
    shared.on_news = lambda: heard.append(1)
    heard: list[int] = []
    shared.hear(Batch("g", 1, 0, held=[row(1)]), (1, 0), 10.0)
    assert (shared.held, heard) == (1, [1])
    shared.expire(12.9)
    assert shared.held == 1
    shared.expire(13.1)
    assert (shared.held, len(bench.hall.room), heard) == (0, 0, [1, 1])


def test_the_room_bounds_what_others_may_tell() -> None:
    bench = Bench(requests=2)  # so 32 of others
    there = Elsewhere({"p": bench.pool})
    there.hear(("g", 1), Batch("g", 1, 0, held=[row(key) for key in range(100)]), 5.0)
    assert len(bench.hall.room) == len(there) == 32


def test_a_pool_without_a_room_ignores_what_others_hold() -> None:
    pool = Pool("p")
    there = Elsewhere({"p": pool})
    there.hear(("g", 1), Batch("g", 1, 0, held=[row(1)]), 5.0)
    assert len(there) == 0


def test_who_ranks_requests_may_put_one_before_others() -> None:
    bench = Bench()
    room = bench.hall.room
    short = Prompt(dialect="t", kind="generate", size=400, token_ids=True)
    long = Prompt(dialect="t", kind="generate", size=4000, token_ids=True)
    room.hold(1, short, 0.0)  # 0.1 s of work
    room.hold(2, long, 0.0, ahead=2.0)  # 1 s of work, and 2 s before others
    assert room.next_own(0.0) == 2
