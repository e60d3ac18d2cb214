"""What waits while Redis is away, and the stream's time by which a full one is trimmed."""

import random

from extproc.core.decide import bind, weigh
from extproc.core.exchange import Exchange
from extproc.core.journal import unpack_chain
from extproc.core.ledger import Ledger
from extproc.core.outbox import Outbox
from extproc.core.pool import Pool
from extproc.core.prompt import Chain, Prompt
from extproc.core.steering import Rules, Steering
from extproc.io.journal import StreamClock
from extproc.io.records import Records


def test_a_request_that_ended_before_it_could_be_told_is_told_with_its_hashes() -> None:
    pool, ledger = Pool("chat", now=0.0), Ledger()
    pool.join("10.0.0.1:8000", 0.0)
    outbox = Outbox("me", 1, [pool], ledger, lambda: None)
    ledger.listener = outbox
    prompt = Prompt(dialect="d", kind="generate", chains=[Chain([1, 2], [1024, 2048])], size=2048)
    decision = weigh(pool, prompt, random.Random(1), key=5, now=1.0)
    assert decision.replica is not None
    bind(decision, decision.replica, ledger)
    exchange = Exchange(Steering([pool], Rules(), random.Random(1)))
    exchange.decision = decision
    ledger.release(5, 2.0)
    Records(10).ended(exchange)  # as the gateway does when a stream ends: the record keeps no chain
    assert prompt.chains == []
    for _ in range(2):
        (row,) = outbox.batch(3.0).placed
        told = unpack_chain(row.chains[0])
        assert (row.key, told and told.hashes) == (0, [1, 2])
        outbox.failed()  # and again, when the batch was not taken


def test_the_streams_time_goes_on_from_the_last_id_seen() -> None:
    clock = StreamClock()
    assert clock.time(100.0) == 0, "nothing is known before the first id"
    clock.saw((1_700_000_000_000, 0), 50.0)
    assert clock.time(53.5) == 1_700_000_003_500
    assert clock.age((1_700_000_000_000, 0), 53.5) == 3.5
