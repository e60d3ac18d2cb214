"""What a gateway's breaker finds reaches the others as a doubt: bounded, soon over, and never enough by itself."""

import random

import pytest

from extproc.core.breaker import CLOSED, OPEN
from extproc.core.fleet import DOUBTED, Replica
from extproc.core.journal import Batch, Engine, Refused, Troubled, decode, encode
from extproc.core.ledger import Ledger
from extproc.core.outbox import Outbox
from extproc.core.outcome import Ended
from extproc.core.pool import Pool
from extproc.core.shared import Shared
from extproc.core.steering import Rules, Steering

ADDRESSES = [f"10.0.0.{number}:8000" for number in range(1, 5)]


def pool(count: int = 4) -> Pool:
    made = Pool("chat", now=0.0)
    for address in ADDRESSES[:count]:
        made.join(address, 0.0)
    return made


def say(seq: int, *troubled: tuple[int, float], gateway: str = "other") -> Batch:
    engines = [Engine("chat", address) for address in ADDRESSES]
    return Batch(gateway, 7, seq, engines=engines, troubled=[Troubled(*row) for row in troubled])


def fail(replica: Replica, now: float) -> None:
    replica.answered(f"request {now}", 500, None, now)


def test_a_doubted_replica_gets_a_quarter_and_one_own_failure_opens_its_breaker() -> None:
    mine = pool()
    replica = mine.replicas[0]
    Shared([mine], ("me", 1)).hear(decode(encode(say(0, (0, 1.0)))), (1, 0), 10.0)
    assert (replica.share, replica.barred) == (DOUBTED, None), "others' word alone takes nobody out"
    fail(replica, 10.5)
    assert replica.breaker.state == OPEN


def test_a_doubt_is_over_when_its_time_is_and_then_three_failures_open_as_ever() -> None:
    mine = pool()
    replica = mine.replicas[0]
    Shared([mine], ("me", 1)).hear(say(0, (0, 1.0)), (1, 0), 10.0)
    mine.tick(11.0)
    assert replica.share == 1.0
    fail(replica, 11.1)
    fail(replica, 11.2)
    assert replica.breaker.state == CLOSED
    fail(replica, 11.3)
    assert replica.breaker.state == OPEN


def test_a_doubt_never_lasts_longer_than_a_breaker_stays_open() -> None:
    mine = pool()
    Shared([mine], ("me", 1)).hear(say(0, (0, 1e12)), (1, 0), 10.0)
    mine.tick(17.9)
    assert mine.replicas[0].share == DOUBTED
    mine.tick(18.0)  # BreakerSettings.longest is 8 s
    assert mine.replicas[0].share == 1.0


def test_that_it_is_well_again_ends_the_doubt() -> None:
    mine = pool()
    shared = Shared([mine], ("me", 1))
    shared.hear(say(0, (0, 5.0)), (1, 0), 10.0)
    shared.hear(say(1, (0, 0.0)), (2, 0), 10.2)
    assert mine.replicas[0].share == 1.0


@pytest.mark.parametrize(("count", "doubted"), [(1, 0), (2, 0), (3, 1), (4, 1)])
def test_no_word_of_others_reaches_half_of_a_pool(count: int, doubted: int) -> None:
    mine = pool(count)
    shared = Shared([mine], ("me", 1))
    for seq in range(3):
        for gateway in ("one", "two"):
            shared.hear(say(seq, *((engine, 8.0) for engine in range(4)), gateway=gateway), (seq, 0), 10.0)
    assert sum(replica.share < 1 for replica in mine.replicas) == doubted
    assert not any(replica.barred for replica in mine.replicas)


def test_what_lay_in_the_stream_for_longer_than_it_says_is_over() -> None:
    mine = pool()
    Shared([mine], ("me", 1)).hear(say(0, (0, 1.0)), (1, 0), 10.0, 1.5)
    assert mine.replicas[0].share == 1.0


def test_news_of_an_engine_that_is_none_are_refused() -> None:
    with pytest.raises(Refused):
        decode(encode(say(0, (4, 1.0))))


def test_a_breaker_that_opens_and_closes_is_told_once_each() -> None:
    mine = pool()
    steering = Steering([mine], Rules(), random.Random(1))
    outbox = Outbox("me", 1, [mine], Ledger(), lambda: None)
    steering.on_breaker = outbox.troubled
    outbox.batch(0.0)
    told = []
    for number, (status, at) in enumerate(((500, 1.0), (500, 1.1), (500, 1.2), (500, 1.3), (200, 2.5))):
        if at == 2.5:
            mine.tick(2.4)  # a second after it opened it lets one try
            mine.replicas[0].sent(str(number), 2.4)
        steering.answered(Ended(ADDRESSES[0], str(number), status, None, False), at)
        batch = outbox.batch(at)
        told += [(at, batch.engines[row.engine].address, round(row.seconds, 6)) for row in batch.troubled]
    assert told == [(1.2, ADDRESSES[0], 1.0), (2.5, ADDRESSES[0], 0.0)]


def test_a_breaker_that_opened_while_nothing_could_be_told_is_told_with_what_is_left() -> None:
    """Opened at 1.2 for a second; one word is made at 1.7, another is due when it is half open."""
    mine = pool()
    steering = Steering([mine], Rules(), random.Random(1))
    outbox = Outbox("me", 1, [mine], Ledger(), lambda: None)
    steering.on_breaker = outbox.troubled
    for number in range(3):
        steering.answered(Ended(ADDRESSES[0], str(number), 500, None, False), 1.2)
    assert [round(row.seconds, 6) for row in outbox.batch(1.7).troubled] == [0.5]
    steering.on_breaker(mine, mine.replicas[0], 0.5)
    assert outbox.batch(2.3).troubled == []
