"""Lives of a whole fleet: whatever happens in whatever order, states stay legal and the books add up."""

import math
import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from extproc.core import lifecycle as life
from extproc.core.decide import bind, decide
from extproc.core.fleet import SOFT, Replica
from extproc.core.ledger import Ledger
from extproc.core.pool import Pool
from extproc.core.prompt import Chain, Prompt
from extproc.core.sample import Sample
from extproc.core.traits import Traits
from tests.examples import examples

ADDRESSES = [f"10.0.0.{number}:8000" for number in range(1, 5)]
#: Prompts are beginnings of these, so they share prefixes.
HASHES = [[100 * root + depth for depth in range(1, 9)] for root in range(3)]
PIECE = 4096

addresses = st.sampled_from(ADDRESSES)
counters = st.one_of(st.none(), st.floats(0, 1e6))


def prompt(root: int, depth: int) -> Prompt:
    chain = Chain(HASHES[root][:depth], list(range(PIECE, PIECE * (depth + 1), PIECE)))
    return Prompt(dialect="openai_chat", kind="generate", chains=[chain], size=PIECE * depth)


class Lives(RuleBasedStateMachine):
    """Everything that discovery, metrics, operators, clients and the clock can do to a pool."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pool = Pool("p", traits=Traits(kv_tokens=20_000, max_running=4, slow_floor=0.3), now=0.0)
        self.ledger, self.rng = Ledger(), random.Random(1)
        self.open: dict[int, Replica] = {}
        self.number = 0
        self.started = dict.fromkeys(ADDRESSES, 1000.0)
        self.ever: list[Replica] = []

    def remember(self) -> None:
        self.ever += [
            replica for replica in self.pool.replicas if not any(replica is old for old in self.ever)
        ]

    def exchange(self, pick: int) -> int | None:
        return list(self.open)[pick % len(self.open)] if self.open else None

    @rule()
    def backlogs_are_looked_at(self) -> None:
        for replica in self.pool.replicas:
            assert replica.backlog(self.now) >= 0.0

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.5, 1.1, 5.0, 31.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        gone = self.pool.tick(self.now)
        assert not [address for address in gone if self.pool.get(address)]
        assert all(replica.life.state != life.GONE for replica in self.pool.replicas)

    @rule(address=addresses, new=st.booleans())
    def joins(self, address: str, new: bool) -> None:
        before = self.pool.get(address)
        replica = self.pool.join(address, self.now, self.now if new else None)
        assert before is None or replica is before

    @rule(address=addresses)
    def leaves(self, address: str) -> None:
        self.pool.leave(address)
        assert self.pool.get(address) is None

    @rule(address=addresses)
    def restarts(self, address: str) -> None:
        before = self.pool.get(address)
        after = self.pool.restarted(address, self.now)
        self.started[address] += 10.0
        assert (before is None) == (after is None)
        if before is not None and after is not None:
            assert after.incarnation == before.incarnation + 1
            assert self.pool.index.count(after.slot) == 0
            assert after.books.requests == 0
            assert (after.life.state == life.QUIESCING) == (before.life.state == life.QUIESCING)

    @rule(
        address=addresses,
        anew=st.booleans(),
        load=st.tuples(*[st.one_of(st.none(), st.floats(0, 8))] * 2),
        used=st.one_of(st.none(), st.floats(0, 1)),
        work=st.tuples(*[counters] * 6),
        asleep=st.sampled_from([None, None, False, True]),
        capacity=st.sampled_from([None, 1000, 20_000, 10**9]),
    )
    def is_sampled(self, address, anew, load, used, work, asleep, capacity) -> None:  # type: ignore[no-untyped-def]
        self.started[address] += 10.0 * anew
        fields = ("prompt_tokens", "hit_tokens", "prefill_sum", "prefill_count", "tpot_sum", "tpot_count")
        sample = Sample(
            at=self.now,
            running=load[0],
            waiting=load[1],
            kv_used=used,
            kv_capacity=capacity,
            asleep=asleep,
            started=self.started[address],
            **dict(zip(fields, work, strict=True)),
        )
        replica = self.pool.observe(address, sample)
        assert replica is self.pool.get(address)
        assert replica is None or replica.sample is sample

    @rule(address=addresses, reason=st.sampled_from(["connect", "timeout", "status_404", "broken"]))
    def is_missed(self, address: str, reason: str) -> None:
        self.pool.failed(address, reason, self.now)

    @rule(address=addresses, deadline=st.sampled_from([None, 0.0, 5.0]))
    def is_drained(self, address: str, deadline: float | None) -> None:
        replica = self.pool.get(address)
        if replica is not None:
            replica.drain("operator", self.now, None if deadline is None else self.now + deadline)
            assert replica.life.state in (life.QUIESCING, life.GONE)
            assert replica.barred is not None

    @rule(address=addresses)
    def is_undrained(self, address: str) -> None:
        replica = self.pool.get(address)
        if replica is not None:
            replica.undrain("operator", self.now)
            assert replica.life.state != life.QUIESCING

    @rule(address=addresses, seconds=st.sampled_from([0.1, 50.0]))
    def backs_off(self, address: str, seconds: float) -> None:
        replica = self.pool.get(address)
        if replica is not None:
            replica.life.back_off("itself", self.now, seconds)
            replica.refresh(self.now)

    @rule(root=st.integers(0, 2), depth=st.integers(1, 8), readable=st.booleans())
    def a_request_comes(self, root: int, depth: int, readable: bool) -> None:
        self.number += 1
        decision = decide(
            self.pool,
            prompt(root, depth) if readable else None,
            self.ledger,
            self.rng,
            key=self.number,
            now=self.now,
        )
        if decision.replica is None:
            assert all(r.barred is not None and r.barred not in SOFT for r in self.pool.replicas)
            return
        assert decision.replica in self.pool.replicas
        assert decision.replica.life.state not in (life.QUIESCING, life.REREGISTERING, life.GONE)
        decision.replica.sent(str(self.number), self.now)
        self.open[self.number] = decision.replica
        if self.number % 5 == 0 and len(decision.order) > 1:  # it fell back to the next
            decision.replica = decision.order[1]
            bind(decision, decision.replica, self.ledger)
            self.open[self.number] = decision.replica

    @rule(pick=st.integers(0, 100))
    def a_first_token_comes(self, pick: int) -> None:
        key = self.exchange(pick)
        if key is not None:
            self.ledger.prompt_done(key, self.now)

    @rule(
        pick=st.integers(0, 100),
        status=st.sampled_from([200, 200, 404, 429, 500, 503, None]),
        retry_after=st.sampled_from([None, 2.0, 1e9]),
    )
    def a_request_ends(self, pick: int, status: int | None, retry_after: float | None) -> None:
        key = self.exchange(pick)
        if key is not None:
            replica = self.open.pop(key)
            replica.answered(str(key), status, retry_after, self.now)
            left = self.ledger.release(key, self.now)
            assert left is not None
            assert left >= 0.0
            assert self.ledger.release(key, self.now) is None

    @rule(pick=st.integers(0, 100))
    def a_client_leaves(self, pick: int) -> None:
        key = self.exchange(pick)
        if key is not None:
            self.open.pop(key).breaker.cancelled(str(key))
            self.ledger.release(key, self.now)

    @rule()
    def the_index_expires(self) -> None:
        self.pool.index.expire(self.now)

    @invariant()
    def states_are_legal(self) -> None:
        self.remember()
        for replica in self.pool.replicas:
            assert replica.life.state in life.STATES
            assert 0.0 <= replica.share <= 1.0
            assert replica.share > 0.0 or replica.barred == replica.life.state
            assert 0.0 < replica.bias <= 1.0
            assert replica.headroom is None or 0.0 <= replica.headroom <= 1.0
            assert replica.prefill_speed > 0.0
            assert replica.decode_speed > 0.0

    @invariant()
    def the_outlook_says_what_the_replicas_say(self) -> None:
        replicas, outlook = self.pool.replicas, self.pool.outlook
        open_ones = [r for r in replicas if r.share >= 1.0 and r.excluded(self.now) is None]
        assert outlook.all_open(replicas, self.now) == (0 < len(replicas) == len(open_ones))
        assert outlook.is_even == all(replica.bias == 1.0 for replica in replicas)
        assert outlook.is_crowded(replicas) == any(replica.crowded for replica in replicas)
        assert outlook.fastest == max([r.prefill_speed for r in replicas], default=math.inf)

    @invariant()
    def what_records_copy_is_what_the_books_say(self) -> None:
        replicas = self.pool.replicas
        assert self.pool.outlook.in_flight == [replica.books.requests for replica in replicas]
        assert self.pool.outlook.loads == [replica.load for replica in replicas]

    @invariant()
    def books_are_those_of_the_open_exchanges(self) -> None:
        assert len(self.ledger) == len(self.open)
        for replica in self.ever:
            mine = sum(owner is replica for owner in self.open.values())
            assert replica.books.requests == mine
            assert replica.books.tokens >= 0
            assert replica.books.pending >= 0.0
        assert sum(replica.books.tokens for replica in self.ever) == self.ledger.tokens

    @invariant()
    def the_index_names_only_replicas_that_are_there(self) -> None:
        slots = {replica.slot for replica in self.pool.replicas}
        assert len(slots) == len(self.pool.replicas), "two replicas have one slot"
        index = self.pool.index
        assert sum(index.count(slot) for slot in slots) == len(index), "entries of a replica that is gone"
        for hashes in HASHES:
            assert set(index.match(hashes)) <= slots

    def teardown(self) -> None:
        for key in list(self.open):
            self.ledger.release(key, self.now)
        assert len(self.ledger) == self.ledger.tokens == 0
        for replica in self.ever:
            books = replica.books
            assert (books.requests, books.tokens, books.pending) == (0, 0, 0.0)
            assert books.backlog(self.now, replica.prefill_speed) == 0.0


TestLives = Lives.TestCase
TestLives.settings = settings(examples(30), stateful_step_count=40)
