"""News of other gateways: the wire, and what becomes of batches that come late, twice, or never."""

import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.decide import bind, weigh
from extproc.core.journal import (
    MOST_BYTES,
    SCHEMA,
    Batch,
    Engine,
    Forgotten,
    Placed,
    Refused,
    Relayed,
    Ruled,
    Running,
    Table,
    decode,
    encode,
    heard,
    pack_chain,
    pack_hashes,
    told,
    unpack_chain,
)
from extproc.core.ledger import Ledger
from extproc.core.outbox import Outbox
from extproc.core.pool import Pool
from extproc.core.prompt import Chain, Prompt
from extproc.core.sample import Sample
from extproc.core.shared import Shared
from tests.examples import examples

A, B = "10.0.0.1:8000", "10.0.0.2:8000"
ENGINES = [Engine("chat", A), Engine("chat", B)]


def pool() -> Pool:
    made = Pool("chat", now=0.0, distrust=0.5)
    made.join(A, 0.0)
    made.join(B, 0.0)
    return made


def view(*pools: Pool) -> Shared:
    return Shared(pools or [pool()], ("me", 1))


def chain(*hashes: int) -> Chain:
    return Chain(list(hashes), [1024 * (i + 1) for i in range(len(hashes))])


def placed(key: int, engine: int = 0, *hashes: int, tokens: int = 100) -> Placed:
    return Placed(key, engine, 50.0, tokens, 0.01, [pack_chain(chain(*hashes))] if hashes else [])


def say(seq: int, **news: object) -> Batch:
    return Batch("other", 7, seq, engines=list(ENGINES), **news)


def books(shared: Shared, address: str) -> tuple[int, int]:
    replica = shared.pools["chat"].get(address)
    assert replica is not None
    return replica.books.requests, replica.books.tokens


def holds(shared: Shared, address: str, *hashes: int) -> int:
    mine = shared.pools["chat"]
    replica = mine.get(address)
    assert replica is not None
    return mine.index.match(hashes).get(replica.slot, 0)


# -- the wire ----------------------------------------------------------------------------------------------


def test_a_batch_comes_back_as_it_was_sent() -> None:
    batch = say(
        3,
        placed=[placed(1, 0, 11, 12), placed(2, 1)],
        ended=[5],
        firsts=[6],
        table=Table(3, 0, 1, [Running(9, 1, 2.0, 30, 0.5)]),
        forgotten=[Forgotten(1, pack_hashes([4]))],
    )
    assert decode(encode(batch)) == batch
    assert unpack_chain(batch.placed[0].chains[0]) == chain(11, 12)


def test_a_sample_comes_back_with_its_age() -> None:
    sample = Sample(at=90.0, running=3.0, kv_capacity=5000, asleep=False, adapters=("x",), started=1e9)
    row = msgspec.msgpack.decode(msgspec.msgpack.encode(told(0, sample, 0.25)), type=type(told(0, sample, 0)))
    back = heard(row, 200.0)
    assert back == Sample(
        at=199.75, running=3.0, kv_capacity=5000, asleep=False, adapters=("x",), started=1e9
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "malformed"),
        (b"\x91" * 100_000, "malformed"),
        (b"\x92\x01" + b"\xc6\x7f\xff\xff\xff", "malformed"),
        (b"\x00" * (MOST_BYTES + 1), "too_large"),
        (msgspec.msgpack.encode((2, b"anything")), "schema"),
        (msgspec.msgpack.encode((0, b"")), "schema"),
        (msgspec.msgpack.encode((1, b"\x91" * 9000)), "malformed"),
        (msgspec.msgpack.encode((1, msgspec.msgpack.encode(["g", "boot", 1]))), "malformed"),
        (encode(say(1, placed=[Placed(1, 2, 1.0, 1, 0.0)])), "malformed"),
        (encode(say(1, placed=[Placed(1, 0, math.nan, 1, 0.0)])), "malformed"),
        (encode(say(1, placed=[Placed(1, 0, math.inf, 1, 0.0)])), "malformed"),
        (encode(say(1, placed=[Placed(1, 0, -1.0, 1, 0.0)])), "malformed"),
        (encode(say(1, ended=[-4])), "malformed"),
        (encode(say(1, ended=[1] * 5000)), "malformed"),
        (encode(say(1, table=Table(1, 1, 1, []))), "malformed"),
    ],
)
def test_what_is_no_batch_is_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(Refused) as refused:
        decode(data)
    assert refused.value.reason == reason


@given(st.binary(max_size=300), st.integers(0, 80), st.integers(0, 255))
@examples(40)
def test_random_truncated_and_changed_bytes_never_raise_anything_else(noise: bytes, at: int, to: int) -> None:
    good = encode(say(1, placed=[placed(1, 0, 11, 12)], ended=[2], table=Table(1, 0, 1, [])))
    changed = good[: at % len(good)] + bytes([to]) + good[at % len(good) + 1 :]
    for data in (noise, good[: at % len(good)], changed, good + noise):
        shared = view()
        try:
            batch = decode(data)
        except Refused:
            continue
        shared.hear(batch, (1, 0), 1.0)
        shared.expire(100.0)
        assert books(shared, A) == books(shared, B) == (0, 0)


@pytest.mark.parametrize(
    "data", [b"", b"x" * 11, b"\xff" * 12, b"\0" * 12, pack_chain(Chain([1, 2], [1024, 1024]))]
)
def test_what_is_no_chain_is_none(data: bytes) -> None:
    assert unpack_chain(data) is None


def test_items_that_a_later_release_adds_at_the_end_are_ignored() -> None:
    inner = msgspec.msgpack.decode(msgspec.msgpack.encode(say(4, ended=[1])))
    longer = msgspec.msgpack.encode((1, msgspec.msgpack.encode([*inner, {"new": [1, 2]}])))
    assert decode(longer).seq == 4


class _OfNext(Batch, array_like=True, gc=False):
    """A batch of the next schema, which has changed something."""

    changed: int = 1


def test_in_a_rolling_upgrade_the_newer_hears_both_and_the_older_its_own_with_nothing_half_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both versions write into one stream, by turns; the older skips and counts what it does not know."""
    stream = []
    for seq in range(10):
        old = Batch("old", 1, seq, engines=list(ENGINES), placed=[placed(seq + 1, 0, 100 + seq)])
        new = _OfNext("new", 2, seq, engines=list(ENGINES), placed=[placed(seq + 1, 1, 200 + seq)])
        stream += [encode(old), msgspec.msgpack.encode((SCHEMA + 1, msgspec.msgpack.encode(new)))]

    def hears(shared: Shared) -> int:
        refused = 0
        for number, data in enumerate(stream):
            try:
                shared.hear(decode(data), (number, 0), 1.0)
            except Refused as error:
                refused += error.reason == "schema"
        return refused

    older, newer = view(), view()
    assert hears(older) == 10
    assert (books(older, A), books(older, B)) == ((10, 1000), (0, 0))
    assert (holds(older, A, 103), holds(older, B, 203)) == (1, 0)
    assert (older.gaps, older.malformed, older.unknown) == (0, 0, 0)
    monkeypatch.setattr("extproc.core.journal.READ", frozenset({SCHEMA, SCHEMA + 1}))
    assert hears(newer) == 0
    assert (books(newer, A), books(newer, B)) == ((10, 1000), (10, 1000))
    assert (holds(newer, A, 103), holds(newer, B, 203)) == (1, 1)
    assert newer.gaps == 0


# -- one view ----------------------------------------------------------------------------------------------


def test_a_placement_of_another_gateway_counts_in_books_and_index() -> None:
    shared = view()
    assert shared.hear(say(0, placed=[placed(1, 0, 11, 12)]), (1, 0), 10.0)
    assert books(shared, A) == (1, 100)
    assert holds(shared, A, 11, 12, 13) == 2
    assert holds(shared, B, 11) == 0


def test_others_keys_never_meet_our_own() -> None:
    shared, own = view(), Ledger()
    replica = shared.pools["chat"].get(A)
    assert replica is not None
    own.charge(1, replica, 10.0, 7, 0.0)
    shared.hear(say(0, placed=[placed(1, 0)]), (1, 0), 1.0)
    shared.hear(say(1, ended=[1]), (2, 0), 1.0)
    assert books(shared, A) == (1, 7)
    own.release(1, 2.0)
    assert books(shared, A) == (0, 0)


def test_an_end_that_comes_before_its_placement_counts() -> None:
    shared = view()
    shared.hear(say(1, ended=[1]), (2, 0), 1.0)
    shared.hear(say(0, placed=[placed(1)]), (1, 0), 1.0)
    assert books(shared, A) == (0, 0)


def test_a_table_replaces_the_former_and_leaves_what_came_after_it() -> None:
    shared = view()
    shared.hear(say(0, placed=[placed(1), placed(2)]), (1, 0), 1.0)
    shared.hear(say(2, placed=[placed(3)]), (3, 0), 1.0)
    shared.hear(say(1, table=Table(1, 0, 1, [Running(2, 0, 0.0, 100, 0.0)])), (2, 0), 1.0)
    assert books(shared, A) == (2, 200)  # 2 by the table, 3 placed after it


def test_a_table_in_parts_takes_effect_with_its_last() -> None:
    shared = view()
    shared.hear(say(0, placed=[placed(1)]), (1, 0), 1.0)
    shared.hear(say(2, table=Table(1, 1, 2, [Running(5, 1, 0.0, 10, 0.0)])), (2, 0), 1.0)
    assert books(shared, A) == (1, 100)
    shared.hear(say(1, table=Table(1, 0, 2, [Running(6, 1, 0.0, 20, 0.0)])), (3, 0), 1.0)
    assert (books(shared, A), books(shared, B)) == ((0, 0), (2, 30))


def test_a_gateway_silent_for_three_seconds_is_dropped_and_its_return_is_clean() -> None:
    shared = view()
    shared.hear(say(0, placed=[placed(1)]), (1, 0), 1.0)
    assert shared.expire(4.0) == []
    assert shared.expire(4.01) == ["other"]
    assert books(shared, A) == (0, 0)
    shared.missed = False
    shared.hear(say(1, table=Table(1, 0, 1, [Running(1, 0, 5.0, 100, 9.0)])), (2, 0), 20.0)
    assert books(shared, A) == (1, 100)
    assert shared.missed, "a return asks for the tables"


def test_a_long_request_of_a_living_gateway_stays() -> None:
    shared = view()
    shared.hear(say(0, placed=[placed(1)]), (1, 0), 0.0)
    for second in range(1, 4000):
        shared.hear(say(second), (second, 0), float(second))
        assert shared.expire(float(second)) == []
    assert books(shared, A) == (1, 100)


def test_a_gateway_that_leaves_takes_its_tokens_and_late_news_bring_none_back() -> None:
    shared = view()
    shared.hear(say(0, placed=[placed(1)]), (1, 0), 1.0)
    shared.hear(say(2, leaves=True), (3, 0), 1.0)
    shared.hear(say(1, placed=[placed(2)]), (2, 0), 1.0)
    assert books(shared, A) == (0, 0)


def test_a_missing_batch_is_noticed_and_the_next_table_mends_it() -> None:
    shared = view()
    shared.hear(say(0, placed=[placed(1)]), (1, 0), 1.0)
    assert not shared.missed
    shared.hear(say(3), (4, 0), 1.0)
    assert shared.missed
    assert shared.gaps == 2
    shared.hear(say(4, table=Table(4, 0, 1, [])), (5, 0), 1.0)
    assert books(shared, A) == (0, 0)


def test_news_of_an_engine_that_restarted_do_not_reach_the_new_one() -> None:
    shared = view()
    shared.pools["chat"].observe(A, Sample(at=1.0, started=5000.0))
    old = [Engine("chat", A, 4000.0)]
    shared.hear(Batch("other", 7, 0, engines=old, placed=[placed(1, 0, 11)]), (1, 0), 1.0)
    assert books(shared, A) == (0, 0)
    assert holds(shared, A, 11) == 0
    assert shared.unknown == 1


def test_a_replicas_occupancy_follows_each_batch_and_each_silence() -> None:
    shared = view()
    replica = shared.pools["chat"].get(A)
    assert replica is not None
    shared.hear(say(0, placed=[placed(1), placed(2), placed(3)]), (1, 0), 1.0)
    assert replica.occupancy == pytest.approx(3 / replica.max_running)
    assert shared.requests == 3
    shared.hear(say(1, ended=[2]), (2, 0), 1.0)
    assert replica.occupancy == pytest.approx(2 / replica.max_running)
    shared.expire(10.0)
    assert (replica.occupancy, shared.requests) == (0, 0)


def test_what_runs_on_a_replica_that_joins_later_is_charged_then() -> None:
    shared = Shared([Pool("chat", now=0.0)], ("me", 1))
    shared.hear(say(0, placed=[placed(1)]), (1, 0), 1.0)
    shared.pools["chat"].join(A, 1.0)
    shared.rebind(1.0)
    shared.rebind(1.0)
    assert books(shared, A) == (1, 100)


def test_a_correction_takes_back_what_was_placed_before_it_only() -> None:
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)):
        shared = view()
        batches = [
            say(0, placed=[placed(0, 0, 11, 12)]),
            say(1, forgotten=[Forgotten(0, pack_hashes([11, 12]))]),
            say(2, placed=[placed(0, 0, 11)]),
        ]
        for i in order:
            shared.hear(batches[i], (i, 0), 1.0)
        assert holds(shared, A, 11, 12) == 1, order


def test_samples_of_the_collector_reach_the_pool_and_older_ones_do_not() -> None:
    shared = view()
    shared.hear(say(0, sampled=[told(0, Sample(at=0.0, running=4.0), 0.5)]), (1, 0), 10.0)
    shared.hear(say(1, sampled=[told(0, Sample(at=0.0, running=9.0), 3.0)]), (2, 0), 10.0, 0.5)
    replica = shared.pools["chat"].get(A)
    assert replica is not None
    assert replica.sample == Sample(at=9.5, running=4.0)


def test_of_what_lay_in_the_stream_for_long_only_what_is_cached_counts() -> None:
    shared = view()
    old = say(0, placed=[placed(1, 0, 11, 12)], sampled=[told(0, Sample(at=0.0, running=4.0), 0.5)])
    assert shared.hear(old, (1, 0), 10.0, 3.5)
    assert (books(shared, A), len(shared.peers)) == ((0, 0), 0)
    assert holds(shared, A, 11, 12) == 2
    assert shared.pools["chat"].get(A).sample == Sample(at=6.0, running=4.0)
    assert shared.pools["chat"].busy.rho(1, 11.0) == 0, "it is no work of this moment"
    shared.hear(say(1, placed=[placed(2)]), (2, 0), 10.0, 1.0)
    assert books(shared, A) == (1, 100)
    assert shared.missed, "the table says what else runs"
    assert shared.expire(12.1) == ["other"], "it was last heard 1 s before it was read"


def test_news_of_a_replica_that_is_not_known_are_noted_until_it_joins() -> None:
    shared = Shared([Pool("chat", now=0.0)], ("me", 1))
    shared.hear(say(0, placed=[placed(1, 0, 11), placed(2, 1)]), (1, 0), 1.0)
    assert shared.strangers == {("chat", A), ("chat", B)}
    shared.pools["chat"].join(A, 1.0)
    assert shared.arrived() == {"chat"}
    assert shared.strangers == {("chat", B)}


# -- any order, twice, with gaps ---------------------------------------------------------------------------

KEYS = st.integers(1, 6)
NEWS = st.one_of(
    st.tuples(
        st.just("placed"), KEYS, st.integers(0, 1), st.lists(st.integers(1, 9), max_size=3, unique=True)
    ),
    st.tuples(st.just("ended"), KEYS),
    st.tuples(st.just("forgot"), st.integers(0, 1), st.lists(st.integers(1, 9), max_size=3, unique=True)),
    st.tuples(st.just("table")),
    st.tuples(
        st.just("ruled"),
        st.integers(0, 1),
        st.integers(1, 3),
        st.integers(20, 32),
        st.booleans(),
        st.lists(st.integers(1, 9), max_size=2, unique=True),
    ),
)


def batches_of(script: list[list[tuple]], gateway: str, places: list[int]) -> list[tuple[Batch, int]]:
    """What a gateway that lives through a script tells: keys are used once, tables say what runs."""
    running: dict[int, Placed] = {}
    used: set[int] = set()
    found = []
    for seq, news in enumerate(script):
        batch = Batch(gateway, 1, seq, engines=list(ENGINES))
        for item in news:
            if item[0] == "placed" and item[1] not in used:
                used.add(item[1])
                row = placed(item[1], item[2], *item[3], tokens=10 * item[1])
                running[item[1]] = row
                batch.placed.append(row)
            elif item[0] == "ended" and item[1] in running:
                del running[item[1]]
                batch.ended.append(item[1])
            elif item[0] == "forgot":
                batch.forgotten.append(Forgotten(item[1], pack_hashes(item[2])))
            elif item[0] == "ruled":
                kept = [pack_chain(chain(key)) for key in item[5]] if item[4] else []
                batch.ruled.append(Ruled(item[1], item[2], item[3], item[3] / 32, item[4], kept))
            elif item[0] == "table":
                rows = [Running(k, r.engine, r.work, r.tokens, 0.0) for k, r in running.items()]
                batch.table = Table(seq, 0, 1, rows)
        found.append((batch, places.pop()))
    return found


def state(shared: Shared) -> object:
    mine = shared.pools["chat"]
    held = {
        (key, r.address) for key in range(1, 10) for r in mine.replicas if r.slot in mine.index.match([key])
    }
    assert mine.feedback is not None
    truths = [mine.feedback.truth.view(r.slot).believed for r in mine.replicas]
    return books(shared, A), books(shared, B), held, truths, mine.feedback.truth.scales


@given(
    st.lists(st.lists(NEWS, max_size=4), max_size=6),
    st.lists(st.lists(NEWS, max_size=4), max_size=6),
    st.randoms(use_true_random=False),
)
@examples(40)
def test_two_views_of_the_same_batches_end_equal_in_any_order_and_with_duplicates(
    one: list[list[tuple]], two: list[list[tuple]], rng: random.Random
) -> None:
    places = list(range(len(one) + len(two)))
    rng.shuffle(places)
    batches = batches_of(one, "g1", places) + batches_of(two, "g2", places)
    views = []
    for _ in range(2):
        shared, order = view(), batches + rng.choices(batches, k=4) if batches else []
        rng.shuffle(order)
        for batch, place in order:
            shared.hear(decode(encode(batch)), (place, 0), 1.0)
        views.append(state(shared))
    assert views[0] == views[1]


@given(st.lists(st.lists(NEWS, max_size=4), min_size=1, max_size=8), st.randoms(use_true_random=False))
@examples(25)
def test_whatever_was_lost_the_next_table_is_what_runs(script: list[list[tuple]], rng: random.Random) -> None:
    batches = batches_of([*script, [("table",)]], "g1", list(range(len(script) + 1)))
    shared = view()
    kept = [batch for batch, _ in batches[:-1] if rng.random() < 0.6]
    rng.shuffle(kept)
    for batch in [*kept, batches[-1][0]]:
        shared.hear(batch, (batch.seq, 0), 1.0)
    table = batches[-1][0].table
    assert table is not None
    for engine, address in enumerate((A, B)):
        tokens = [row.tokens for row in table.rows if row.engine == engine]
        assert books(shared, address) == (len(tokens), sum(tokens))


# -- what is told ------------------------------------------------------------------------------------------


class Told:
    """A pool, its ledger and its outbox."""

    def __init__(self) -> None:
        self.pool, self.ledger, self.woken = pool(), Ledger(), 0
        self.outbox = Outbox("me", 1, [self.pool], self.ledger, self.wake)
        self.ledger.listener = self.outbox
        self.outbox.batch(0.0)  # the first, which asks and has an empty table

    def wake(self) -> None:
        self.woken += 1

    def place(self, key: int, now: float, *hashes: int) -> None:
        prompt = Prompt(dialect="d", kind="generate", chains=[chain(*hashes)], size=1024 * len(hashes))
        decision = weigh(self.pool, prompt, random.Random(1), key=key, now=now)
        assert decision.replica is not None
        bind(decision, decision.replica, self.ledger)


def test_what_is_bound_and_ends_is_told_once() -> None:
    told = Told()
    told.place(1, 1.0, 11, 12)
    told.place(2, 1.0, 13)
    told.ledger.release(2, 1.0)
    told.ledger.release(2, 1.0)
    batch = told.outbox.batch(1.01)
    assert [row.key for row in batch.placed] == [1, 0]  # the second ended meanwhile
    assert batch.placed[0].age == pytest.approx(0.01)
    assert batch.ended == [2]
    assert unpack_chain(batch.placed[0].chains[0]) == chain(11, 12)
    assert not told.outbox.batch(1.02).placed


def test_the_first_news_of_an_idle_outbox_wakes_once() -> None:
    told = Told()
    told.outbox.idle = True
    told.place(1, 1.0, 11)
    told.place(2, 1.0, 12)
    assert told.woken == 1


def test_a_full_table_comes_in_parts_of_a_thousand() -> None:
    told = Told()
    for key in range(1, 2502):
        told.ledger.charge(key, told.pool.replicas[0], 1.0, 10, 1.0)
    parts = [told.outbox.batch(3.0).table for _ in range(4)]
    assert [len(part.rows) if part else None for part in parts] == [1000, 1000, 501, None]
    assert {(part.before, part.parts) for part in parts if part} == {(1, 3)}


def test_after_a_failure_placements_wait_again_and_a_table_stands_for_the_rest() -> None:
    told = Told()
    told.place(1, 1.0, 11)
    told.place(2, 1.0, 12)
    told.ledger.release(2, 1.0)
    told.outbox.batch(1.0)
    told.outbox.failed()
    batch = told.outbox.batch(1.1)
    assert len(batch.placed) == 2
    assert batch.ended == []
    assert batch.table is not None
    assert [row.key for row in batch.table.rows] == [1]


def test_when_nothing_can_be_sent_the_oldest_placements_go_and_are_counted() -> None:
    told = Told()
    decision = weigh(told.pool, None, random.Random(1), key=1, now=1.0)
    for _ in range(20_001):
        told.outbox.placed(decision, told.pool.replicas[0])
    assert told.outbox.dropped == {"placement": 1001, "end": 0, "other": 0}
    for key in range(50_001):
        told.outbox.ended(key)
    assert told.outbox.dropped["end"] == 50_001
    assert len(told.outbox) == 19_000


def test_two_gateways_see_each_other_through_their_batches() -> None:
    told, shared = Told(), Shared([pool()], ("you", 2))
    for key in range(1, 400):
        told.place(key, 1.0, 1000 + key, 2000 + key)
    for _ in range(3):
        shared.hear(decode(encode(told.outbox.batch(1.0))), (1, 0), 1.0)
    for address in (A, B):
        mine = told.pool.get(address)
        assert mine is not None
        assert books(shared, address) == (mine.books.requests, mine.books.tokens)


# ---- first tokens that another gateway saw ----


def test_a_first_token_that_a_third_gateway_saw_ends_the_prompts_work_here() -> None:
    chat = pool()
    seen = view(chat)
    seen.hear(say(0, placed=[placed(5)]), (1, 0), 0.0)
    assert chat.replicas[0].books.pending == 50.0
    third = Batch("third", 8, 0, relayed=[Relayed("other", 7, 5)])
    seen.hear(decode(encode(third)), (2, 0), 0.0)
    assert chat.replicas[0].books.pending == 0.0


def test_the_outlook_is_told_of_first_tokens_that_others_saw() -> None:
    chat = pool()
    seen = view(chat)
    seen.hear(say(0, placed=[Placed(5, 0, 4000.0, 4000, 0.0, [], told=True)]), (1, 0), 0.0)
    seen.hear(say(1, firsts=[5]), (2, 0), 0.1)
    assert chat.replicas[0].load[0] == 0.1, "nothing is ahead any more"
    assert chat.outlook.loads == [replica.load for replica in chat.replicas]


def test_ones_own_first_token_comes_back_by_whoever_saw_it() -> None:
    seen, mine = view(), []
    seen.on_first_token = lambda key, at: mine.append((key, at))
    relayed = [Relayed("me", 1, 5), Relayed("me", 2, 6), Relayed("nobody", 1, 7)]
    seen.hear(Batch("other", 7, 0, relayed=relayed), (1, 0), 2.0, 0.25)
    assert mine == [(5, 1.75)], "seen when the batch was made"


def test_what_is_behind_anothers_prompt_is_computed_since_the_batch_that_told_its_first_token() -> None:
    chat = pool()
    seen, books = view(chat), chat.replicas[0].books
    assert chat.replicas[0].prefill_speed == 8000.0
    rows = [Placed(key, 0, 1000.0, 1000, 0.0, [], told=True) for key in (5, 6)]
    seen.hear(say(0, placed=rows), (1, 0), 10.0)
    seen.hear(say(1, firsts=[5]), (2, 0), 10.3, 0.1)  # made at 10.2, so 0.1 s or 800 of the second are done
    assert books.backlog(10.3, 8000.0) == pytest.approx(200 / 8000)


def test_what_was_seen_for_others_is_told_once() -> None:
    box = Outbox("me", 1, [pool()], Ledger(), lambda: None)
    box.relay(("other", 7), 5)
    assert box.batch(0.0).relayed == [Relayed("other", 7, 5)]
    assert box.batch(0.0).relayed == []


def test_what_others_place_counts_as_used_where_caches_are_learned() -> None:
    mine = Pool("chat", now=0.0, distrust=0.5)
    replica = mine.join(A, 0.0)
    view(mine).hear(Batch("other", 1, 0, engines=[ENGINES[0]], placed=[placed(1, 0, 1, 2, 3)]), (5, 0), 10.0)
    assert mine.feedback is not None
    uses = mine.feedback.truth._slots[replica.slot].belief.reuse.look(chain(1, 2, 3), 3)
    assert [use.end for use in uses] == [2048, 3072]
