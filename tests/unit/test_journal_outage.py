"""What waits while Redis is away, and the stream's time by which a full one is trimmed."""

import random
from unittest.mock import AsyncMock

import pytest

from extproc.config import RedisSettings
from extproc.core.decide import bind, weigh
from extproc.core.exchange import Exchange
from extproc.core.journal import unpack_chain
from extproc.core.ledger import Ledger
from extproc.core.outbox import Outbox
from extproc.core.pool import Pool
from extproc.core.prompt import Chain, Prompt
from extproc.core.reach import Reach
from extproc.core.shared import Shared
from extproc.core.steering import Rules, Steering
from extproc.io.journal import Reader
from extproc.io.journal_counts import JournalCounts
from extproc.io.journal_stream import StreamClock
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


def reader(now: list[float]) -> Reader:
    pool = Pool("chat", now=0.0)
    shared = Shared([pool], ("me", 1))
    counts = JournalCounts("me", 1)
    settings = RedisSettings(url="redis://127.0.0.1:1")
    return Reader(settings, shared, counts, StreamClock(), lambda: now[0], Reach(["chat"]))


def test_an_entry_is_not_older_than_the_last_read_that_left_nothing_unread() -> None:
    """A Redis whose time jumped back gives ids that stand still: by them everything new would seem old."""
    now = [50.0]
    made = reader(now)
    made._stream_clock.saw((1_700_000_000_000, 0), 50.0)
    assert made._age((1_700_000_000_000, 9), 90.0) == 40.0, "it may be so old, for all that is known"
    made._emptied = 89.5
    assert made._age((1_700_000_000_000, 9), 90.0) == 0.5
    assert made._age((1_700_000_039_900, 0), 90.0) == pytest.approx(0.1)


async def test_before_the_first_entries_are_read_the_time_of_redis_is_known() -> None:
    made, oldest = reader([50.0]), b"1700000000000-0"
    made._redis = AsyncMock()
    made._redis.time.return_value = (1_700_000_060, 250_000)
    made._redis.xread.return_value = [[b"kvsteer:journal", [(oldest, {b"b": b""})]]]
    made._redis.eval.return_value = oldest
    made._reach.loaded("chat", (1_700_000_000_000, 0))  # the snapshot came first
    assert await made._round(), "that was all"
    assert made._age((1_700_000_000_000, 0), 50.0) == 60.25
    assert made._reach.whole


async def test_what_was_cut_off_unread_is_a_gap() -> None:
    now = [50.0]
    made = reader(now)
    made._redis = AsyncMock()
    made._redis.time.return_value = (1_700_000_000, 0)
    made._redis.xread.return_value = [[b"kvsteer:journal", [(b"1700000003000-0", {b"b": b""})]]]
    made._redis.eval.return_value = b"1700000003000-0"
    made.last, made._read = (1_700_000_000_000, 0), 49.0
    made._reach.read(made.last)
    made._reach.loaded("chat", made.last)
    await made._round()
    assert made._reach.whole, "it read a second ago, and the journal keeps more"
    made._read, made.last = 47.0, (1_700_000_000_000, 0)
    await made._round()
    assert not made._reach.whole
    made._reach.loaded("chat", (1_700_000_003_000, 0))
    assert made._reach.whole


def test_a_full_batch_leaves_the_rest_to_the_next_which_is_due_at_once() -> None:
    pool, ledger = Pool("chat", now=0.0), Ledger()
    pool.join("10.0.0.1:8000", 0.0)
    outbox = Outbox("me", 1, [pool], ledger, lambda: None)
    ledger.listener = outbox
    chain = Chain(list(range(1, 201)), [64 * (i + 1) for i in range(200)])
    for key in range(1, 41):
        prompt = Prompt(dialect="d", kind="generate", chains=[chain], size=12_800)
        decision = weigh(pool, prompt, random.Random(1), key=key, now=1.0)
        assert decision.replica is not None
        bind(decision, decision.replica, ledger)
    assert not outbox.behind
    # A row is 40 bytes and 200 times 12: the 27th makes 65,880, above the 65,536 at which a batch is closed.
    assert len(outbox.batch(2.0).placed) == 27
    assert outbox.behind
    assert len(outbox.batch(2.0).placed) == 13
    assert not outbox.behind


async def test_a_reader_whose_gateways_own_batches_do_not_come_back_connects_anew_once_a_second() -> None:
    """As after a switchover: the writer was told to go elsewhere, and the reader hears an old server's silence."""
    now = [50.0]
    made = reader(now)
    made._redis = AsyncMock()
    reconnect = made._redis.guard.reconnect
    made._counts.sending(6, 49.0)
    made._counts.echoed(6, 49.1)
    made._counts.sent(6, 100, 49.2)  # the writer hears of it after the reader
    assert made._counts.deaf_for(60.0) == 0
    made._counts.sending(7, 49.9)
    made._counts.sent(7, 100, 50.0)
    for at, times in ((50.9, 0), (51.0, 1), (51.5, 1), (52.0, 2)):
        now[0] = at
        await made._mind_echo()
        assert reconnect.call_count == times
    made._counts.echoed(7, 52.1)
    now[0] = 60.0
    await made._mind_echo()
    assert reconnect.call_count == 2


def test_how_late_news_come_is_the_mean_of_what_came_back_since_it_was_last_asked() -> None:
    counts = JournalCounts("me", 1)
    assert counts.lately() is None
    for seq, (made, back) in enumerate([(0.0, 0.25), (1.0, 1.75), (2.0, 2.125)]):
        counts.sending(seq, made)
        if seq < 2:
            counts.echoed(seq, back)
    assert counts.lately() == 0.5  # of 0.25 and 0.75 s
    assert counts.lately() is None, "nothing came back since"
    counts.echoed(2, 2.125)
    assert counts.lately() == 0.125
