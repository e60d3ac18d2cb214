"""A replica that says good-bye to one gateway drains in all of them, until it or an operator takes that back."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet import Replica
from extproc.core.journal import Batch, Engine, Leaving, Refused, decode, encode
from extproc.core.leaving import Leavings, Word
from extproc.core.ledger import Ledger
from extproc.core.lifecycle import ITSELF
from extproc.core.outbox import Outbox
from extproc.core.pool import Pool
from extproc.core.sample import Sample
from extproc.core.shared import Shared

ADDRESS = "10.0.0.1:8000"


class Gateway:
    """What one of them needs: it tells at each look, and hears what it is given."""

    def __init__(self, name: str) -> None:
        self.pool = Pool("chat", now=0.0)
        self.replica: Replica = self.pool.join(ADDRESS, 0.0)
        self.shared = Shared([self.pool], (name, 1))
        self.outbox = Outbox(name, 1, [self.pool], Ledger(), lambda: None)

    def tell(self, now: float) -> bytes:
        for pool, replica, word in self.shared.leavings.look(now):
            self.outbox.leaving(pool, replica, word.said, word.leaves)
        return encode(self.outbox.batch(now))

    def hear(self, data: bytes, now: float, lag: float = 0.0) -> None:
        batch = decode(data)
        self.shared.hear(batch, (batch.seq + 1, 0), now, lag)

    @property
    def state(self) -> str:
        return self.replica.life.state


@pytest.fixture
def one() -> Gateway:
    return Gateway("one")


@pytest.fixture
def two() -> Gateway:
    return Gateway("two")


def meet(one: Gateway, two: Gateway, now: float) -> None:
    """Both tell at one moment, and hear the other 20 ms later."""
    mine, theirs = one.tell(now), two.tell(now)
    one.hear(theirs, now + 0.02)
    two.hear(mine, now + 0.02)


def test_what_a_replica_said_to_one_gateway_counts_in_the_other(one: Gateway, two: Gateway) -> None:
    one.replica.drain(ITSELF, 10.0)
    meet(one, two, 10.1)
    assert (two.state, two.replica.life.cause) == ("quiescing", "replica")


def test_what_it_takes_back_is_taken_back_everywhere_and_stays_so(one: Gateway, two: Gateway) -> None:
    one.replica.drain(ITSELF, 10.0)
    meet(one, two, 10.1)
    one.replica.undrain(ITSELF, 11.0)
    for now in (11.1, 11.4, 13.5, 16.0):
        meet(one, two, now)
        assert (one.state, two.state) == ("healthy", "healthy")


def test_an_operators_undrain_at_the_gateway_that_only_heard_of_it_ends_it_in_both(
    one: Gateway, two: Gateway
) -> None:
    one.replica.drain(ITSELF, 10.0)
    meet(one, two, 10.1)
    two.replica.undrain("operator", 30.0)
    meet(one, two, 30.1)  # in this moment the first still says that it leaves
    meet(one, two, 30.4)
    assert (one.state, two.state) == ("healthy", "healthy")


def test_an_old_word_that_comes_late_drains_nobody_and_is_answered(one: Gateway, two: Gateway) -> None:
    one.replica.drain(ITSELF, 10.0)
    late = one.tell(10.1)
    two.replica.drain(ITSELF, 10.2)
    two.tell(10.3)
    two.replica.undrain(ITSELF, 12.0)
    two.tell(12.1)  # and the first never heard of it
    two.hear(late, 12.5, lag=2.4)
    assert two.state == "healthy"
    one.hear(two.tell(12.6), 12.62)
    assert one.state == "healthy", "who hears an older word says its own again"


def test_that_it_leaves_is_said_again_every_two_seconds_for_who_has_just_started(
    one: Gateway, two: Gateway
) -> None:
    one.replica.drain(ITSELF, 10.0)
    assert decode(one.tell(10.1)).leaving == [Leaving(0, 0.0, True)]
    assert decode(one.tell(11.0)).leaving == []
    again = one.tell(12.2)
    [row] = decode(again).leaving
    assert row.age == pytest.approx(2.1), "it was noticed at 10.1"
    two.hear(again, 12.3)
    assert two.state == "quiescing"


def test_an_operators_drain_of_its_own_hides_the_word_and_gives_way_to_it(one: Gateway, two: Gateway) -> None:
    two.replica.drain("operator", 5.0)
    one.replica.drain(ITSELF, 10.0)
    meet(one, two, 10.1)
    assert two.replica.life.cause == "operator"
    meet(one, two, 13.0)
    two.replica.undrain("operator", 20.0)
    meet(one, two, 20.1)
    assert (two.state, two.replica.life.cause) == ("quiescing", "replica"), "the replica still leaves"
    assert one.state == "quiescing", "the end of an order is no word of the replica"


def test_another_incarnation_is_not_meant(one: Gateway) -> None:
    engines = [Engine("chat", ADDRESS, 5000.0), Engine("chat", "10.0.0.9:8000")]
    one.pool.observe(ADDRESS, Sample(at=1.0, started=9000.0))
    leaving = [Leaving(0, 0.0, True), Leaving(1, 0.0, True)]
    one.hear(encode(Batch("x", 1, 0, engines=engines, leaving=leaving)), 1.0)
    assert one.pool.replicas[0].life.state != "quiescing"
    assert one.shared.unknown == 2


def test_a_row_of_no_engine_is_refused() -> None:
    with pytest.raises(Refused):
        decode(encode(Batch("x", 1, 0, leaving=[Leaving(0, 0.0, True)])))


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), min_size=1, max_size=8), st.integers(0, 99))
def test_the_newest_word_counts_in_any_order_and_however_often_it_comes(
    said: list[tuple[float, bool]], seed: int
) -> None:
    newest = max(said)
    words = [Word(*word) for word in said if word[0] < newest[0]] + [Word(*newest)]
    order = words * 2
    random.Random(seed).shuffle(order)
    pool = Pool("chat", now=0.0)
    replica = pool.join(ADDRESS, 0.0)
    made = Leavings([pool])
    for word in order:
        made.hear(pool, ADDRESS, word, 200.0)
    assert (replica.life.state == "quiescing") == newest[1]
