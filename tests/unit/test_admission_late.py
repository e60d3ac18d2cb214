"""Admission's queue and the room of late binding, one behind the other; values worked out by hand."""

import pytest

from extproc.config import parse
from extproc.core.admission.budget import Budget
from extproc.core.admission.desk import Desk
from extproc.core.admission.gate import Gate
from extproc.core.admission.identity import Source
from extproc.core.admission.meter import Meter
from extproc.core.admission.queue import QueueSettings
from extproc.core.admission.tenants import Tenants
from extproc.core.exchange import Exchange
from extproc.core.replies import wait_for
from extproc.core.states import DECIDED, HELD, STEERED
from extproc.envoyconfig import bootstrap
from extproc.io.sessions import ExchangeSession
from tests.unit.messages import answer, chat, request_body, request_headers
from tests.unit.test_holding import SECOND, Bench

#: A request of about 1,000 tokens and one of output has room, a second one has not.
ROOM = 1500.0


class Both(Bench):
    """One replica, busy for five seconds, in a pool that binds late, behind a budget for one request."""

    def __init__(self) -> None:
        super().__init__()
        tenants = Tenants({})
        budget = Budget("me", tenants.all, ROOM, 1, 0.0)
        budget.accounts["others"].hold = budget.accounts["others"].due = ROOM
        self.gate = Gate("p", tenants, QueueSettings(wait=10.0), budget, 0.0)
        self.desk = self.mind.desk = Desk(tenants, {"p": self.gate}, self.mind.router, Source(), wait_for(61))
        self.busy(5.0)

    def request(self, name: int, now: float) -> Exchange:
        exchange = self.ask(name, now, SECOND, max_tokens=1)

        def due(at: float) -> None:
            reply = exchange.let_go(at)
            if exchange.state != HELD:
                self.answers[name] = answer(reply[0])

        exchange.due = due
        return exchange

    def where(self, exchange: Exchange) -> tuple[bool, bool]:
        """Whether a request waits for admission, and whether for a replica."""
        return exchange._key in [t.key for t in self.gate.queue.all()], exchange._key in self.holding


def test_who_was_let_go_by_admission_waits_for_a_replica_and_goes_to_it_when_it_is_nearly_free() -> None:
    it = Both()
    first, second = it.request(1, 0.0), it.request(2, 0.0)
    assert (it.where(first), it.where(second)) == ((False, True), (True, False))
    first.end(1.0)
    it.desk.pump(1.0)
    assert it.where(second) == (False, True)
    assert second.state == HELD
    assert second.admitted is not None
    assert (second.admitted.goes, second.admitted.waited) == (True, 1.0)
    assert it.answers == {}
    it.holding.pump(4.7)  # 0.3 seconds ahead, and theta is 0.2
    assert it.answers == {}
    it.holding.pump(4.85)
    assert list(it.answers) == [2]
    assert (second.state, second.outcome, second.waited) == (DECIDED, STEERED, 4.85)
    second.end(6.0)
    assert (it.gate.budget.used, len(it.desk), len(it.holding)) == (0, 0, 0)


def test_a_client_that_leaves_in_the_second_room_frees_its_places_in_both() -> None:
    it = Both()
    first, second, third = (it.request(name, 0.0) for name in (1, 2, 3))
    first.end(1.0)
    it.desk.pump(1.0)
    second.end(2.0)
    it.desk.pump(2.0)
    assert (it.where(second), it.where(third)) == ((False, False), (False, True))
    third.end(3.0)
    assert (it.gate.budget.used, len(it.desk), len(it.holding)) == (0, 0, 0)


def test_who_waits_too_long_for_admission_is_refused_and_never_in_the_second_room() -> None:
    it = Both()
    _, second = it.request(1, 0.0), it.request(2, 0.0)
    it.desk.pump(10.0)
    assert it.answers[2].immediate_response.status.code == 503
    assert it.where(second) == (False, False)


def test_a_gateway_that_stops_lets_both_rooms_go() -> None:
    it = Both()
    first, second = it.request(1, 0.0), it.request(2, 0.0)
    it.holding.close(1.0)
    it.desk.close(1.0)
    assert (first.state, second.state) == (DECIDED, DECIDED)


def test_a_stream_is_answered_once_after_both_rooms() -> None:
    it, pushed, settled = Both(), [], []

    class Watcher:
        def settled(self, exchange: Exchange, seconds: float) -> None:
            settled.append(exchange.state)

        def failed(self, exchange: Exchange, error: Exception) -> None:
            raise error

        def ended(self, exchange: Exchange) -> None: ...

    first = it.request(1, 0.0)
    session = ExchangeSession(it.mind, Watcher(), lambda: 0.0)
    session.answer_by(lambda answer, close: pushed.append((answer is not None, close)))
    session.receive(request_headers())
    session.receive(request_body(chat(f"2 {SECOND}", max_tokens=1)))
    first.end(1.0)
    it.desk.pump(1.0)
    assert (pushed, settled, session.held) == ([], [], True)
    it.holding.pump(4.9)
    assert (pushed, settled, session.held) == ([(True, False)], [DECIDED], False)
    session.end()


def test_what_waits_in_the_rooms_is_work_ahead_of_the_replicas_but_nothing_they_carry() -> None:
    it = Bench()
    it.busy(1.5)  # no queue by itself; with two requests of a second each before it, it is
    meter = Meter(it.pool)
    before = meter.look(0.0)
    assert before.queueing == 0
    for name in (1, 2):
        assert it.ask(name, 0.0).state == HELD
    after = meter.look(0.0)
    assert (after.queueing, after.runtime) == (1, before.runtime)
    # A fifth of the way from what the cache holds to the 100 tokens that the replica carries.
    assert after.capacity == pytest.approx(before.capacity * 0.8 + before.runtime * 0.2)


def test_envoy_waits_as_long_as_both_rooms_together_may_take() -> None:
    text = (
        "pools: [{replicas: ['10.0.0.1:8000'], late_binding: {enabled: true, longest_wait: 20s}}]\n"
        "envoy: {message_timeout: 1s}\nadmission: {mode: 'on', queue: {wait: 5s}}"
    )
    settings = parse(text, "here")
    assert settings.longest_wait == 25
    assert '"max_message_timeout": "31s"' in str(bootstrap(settings)).replace("'", '"')
