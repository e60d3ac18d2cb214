"""A request whose adapter no replica serves, as Envoy sees it: it waits, and goes on when the adapter is there."""

import pytest

from extproc.core.adapter_loads import Loading, LoadRules
from extproc.core.adapter_waits import MOST, Waits
from extproc.core.adapters import AdapterRules, Adapters
from extproc.core.decide import Decision
from extproc.core.ending import Ending
from extproc.core.exchange import Exchange
from extproc.core.pool import Pool
from extproc.core.prompt import Prompt
from extproc.core.replies import wait_for
from extproc.core.states import DECIDED, HELD, NO_CANDIDATE, STEERED
from extproc.core.steering import Rules, Steering
from tests.unit.messages import answer, chat, metadata_destination, request_body, request_headers

ADDRESS = "10.0.0.1:8000"


class Middle:
    def random(self) -> float:
        return 0.5


@pytest.fixture
def steering() -> Steering:
    pool = Pool("p", models=["base"], now=0.0)
    pool.adapters = Adapters(AdapterRules(names={"law": "base"}))
    loading = Loading(pool.adapters, LoadRules(paths={"law": "/lora/law"}, wait=10.0))
    loading.patience = wait_for(12.0)
    pool.adapters.loading = loading
    pool.adapters.listed(pool.join(ADDRESS, 0.0), {})
    return Steering([pool], Rules(), Middle())


def loading_of(steering: Steering) -> Loading:
    adapters = steering.pools[0].adapters
    assert adapters is not None
    assert adapters.loading is not None
    return adapters.loading


def asked(steering: Steering, model: str) -> tuple[Exchange, bytes]:
    exchange = Exchange(steering)
    exchange.receive(request_headers(), 0.0)
    reply = exchange.receive(request_body(chat(model=model)), 0.0)
    assert isinstance(reply[0], bytes)
    return exchange, reply[0]


def test_it_waits_and_is_answered_when_its_adapter_was_loaded(steering: Steering) -> None:
    loading, (replica,) = loading_of(steering), steering.pools[0].replicas
    exchange, data = asked(steering, "law")
    told = answer(data).override_message_timeout
    assert (exchange.state, told.ToMilliseconds()) == (HELD, 12_000)
    due: list[float] = []
    exchange.due = due.append
    step = loading.plan([replica], 0.0)
    assert step is not None
    loading.began(step, 0.0)
    loading.let_go([replica], 0.5)
    assert due == []
    loading.done(step, 1.0, 1.0)
    loading.let_go([replica], 1.0)
    assert due == [1.0]
    reply = exchange.let_go(1.0)
    assert isinstance(reply[0], bytes)
    assert metadata_destination(answer(reply[0])) == ADDRESS
    assert (exchange.state, exchange.outcome, exchange.waited) == (DECIDED, STEERED, 1.0)
    assert loading.use.last(replica, "law", 50.0) == 50.0, "in flight"
    exchange.end(60.0)
    assert loading.use.last(replica, "law", 100.0) == 60.0


def test_after_the_longest_wait_it_is_told_that_nobody_can_take_it(steering: Steering) -> None:
    exchange, _ = asked(steering, "law")
    due: list[float] = []
    exchange.due = due.append
    loading_of(steering).let_go(steering.pools[0].replicas, 10.0)
    assert due == [10.0]
    reply = exchange.let_go(10.0)
    assert isinstance(reply[0], bytes)
    assert answer(reply[0]).immediate_response.status.code == 503
    assert exchange.outcome == NO_CANDIDATE


def test_one_whose_client_leaves_is_waited_for_no_more(steering: Steering) -> None:
    exchange, _ = asked(steering, "law")
    assert loading_of(steering).waits.names() == {"law": 1}
    exchange.end(1.0)
    assert loading_of(steering).waits.names() == {}
    assert loading_of(steering).waits.ended["left"] == 1


def test_requests_for_the_model_itself_go_at_once(steering: Steering) -> None:
    exchange, _ = asked(steering, "base")
    assert (exchange.state, exchange.outcome) == (DECIDED, STEERED)


def test_a_replica_that_does_not_find_an_adapter_it_lists_is_asked_again(steering: Steering) -> None:
    pool, (replica,) = steering.pools[0], steering.pools[0].replicas
    assert pool.adapters is not None
    for model, listed, doubted in (
        ("law", {}, False),
        ("base", {"law": "base"}, False),
        ("law", {"law": "base"}, True),
    ):
        pool.adapters.listed(replica, listed)
        decision = Decision(1, pool, Prompt(dialect="openai_chat", kind="generate", model=model), 0.0)
        decision.replica, ending = replica, Ending()
        ending.status = 404
        steering.learn(decision, ending, 1.0)
        assert (replica.slot in pool.adapters.doubted) is doubted
    assert pool.adapters.listing(replica) == {"law"}, (
        "what clients can make engines answer changes nothing yet"
    )


class Client:
    def due(self, now: float) -> None:
        pass


def test_only_so_many_wait() -> None:
    waits = Waits(10.0)
    assert all(waits.hold(Client(), key, "a", 0.0) for key in range(MOST))
    assert not waits.hold(Client(), MOST, "a", 0.0)
    assert waits.ended["full"] == 1
    assert not Waits(0.0).hold(Client(), 1, "a", 0.0), "where nothing may wait"
