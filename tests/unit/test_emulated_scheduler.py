"""The scheduler against times worked out by hand.

Unless said otherwise: 1,000 prompt tokens a second, 10 ms a step with tokens, nothing per sequence, blocks
of 4 tokens, 4 bytes a token. So a prompt of 40 tokens takes 40 ms and its first token comes at 50 ms.
"""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.sim.emulated.books import Books
from extproc.sim.emulated.cache import BlockPool
from extproc.sim.emulated.scheduler import Scheduler, Sequence
from extproc.sim.emulated.settings import EngineSettings
from extproc.sim.emulated.tokens import Cutter, TokenStream

SETTINGS = EngineSettings(
    prefill_speed=1000.0, step_ms=10.0, sequence_ms=0.0, block_size=4, kv_tokens=4004, max_running=8
)


class Bench:
    """A scheduler with its books, and sequences by name."""

    def __init__(self, **changes: Any) -> None:
        self.settings = dataclasses.replace(SETTINGS, **changes)
        self.books = Books()
        self.pool = BlockPool(self.settings.usable_blocks)
        self.scheduler = Scheduler(self.settings, self.books, self.pool)
        self.names: dict[Sequence, str] = {}

    def submit(self, name: str, tokens: int, output: int, at: float, text: str = "", **more: Any) -> Sequence:
        """`tokens` of prompt, made of `text` (by default the name) over and over."""
        data = ((text or name) * (tokens * 4))[: tokens * 4].encode()
        stream = TokenStream(Cutter(4.0, self.settings.block_size), data, 1)
        seq = Sequence(stream, output, **more)
        self.names[seq] = name
        self.scheduler.submit(seq, at)
        return seq

    def events(self, until: float) -> list[tuple[str, int, float, bool]]:
        """(name, tokens, ms, ended) of what happens until `until`."""
        return [
            (self.names[event.sequence], event.tokens, round(event.at * 1000, 3), event.ended)
            for event in self.scheduler.advance(until)
        ]


def test_a_lone_cold_prompt_takes_its_prefill_and_one_step():
    bench = Bench()
    bench.submit("a", 40, 1, at=0.0)
    assert bench.events(1.0) == [("a", 1, 50.0, True)]


def test_a_prompt_that_another_replica_computed_costs_its_last_token():
    """39 of 40 tokens came over: 1 ms for the last and one step. Nine full blocks of 4 can be hit by the next one."""
    bench = Bench()
    seq = bench.submit("a", 40, 1, at=0.0)
    seq.received = 40
    assert bench.events(1.0) == [("a", 1, 11.0, True)]
    assert (seq.cached, bench.books.hit_tokens, bench.books.computed_tokens) == (39, 0, 1)
    later = bench.submit("a", 40, 1, at=1.0)
    assert bench.events(2.0) == [("a", 1, 1014.0, True)]
    assert later.cached == 36


def test_more_that_was_hit_here_counts_instead_of_less_that_came_over():
    bench = Bench()
    bench.submit("a", 40, 1, at=0.0)
    bench.events(1.0)
    seq = bench.submit("a", 40, 1, at=1.0)
    seq.received = 20
    bench.events(2.0)
    assert seq.cached == 36


def test_chunks_of_a_lone_prompt_cost_nothing_extra():
    bench = Bench(step_budget=16)
    bench.submit("a", 40, 1, at=0.0)  # 16 + 16 + 8 tokens: 16 ms, 16 ms, 8 ms and the step
    assert bench.events(1.0) == [("a", 1, 50.0, True)]


def test_a_warm_prompt_pays_only_for_what_is_not_cached():
    bench = Bench()
    bench.submit("a", 40, 1, at=0.0)
    bench.events(1.0)
    # The same 40 tokens again: 9 of 10 blocks hit, the last one holds the token that has to be computed.
    again = bench.submit("a2", 40, 1, at=1.0, text="a")
    assert bench.events(2.0) == [("a2", 1, 1000 + 4 + 10, True)]
    assert again.cached == 36
    # 42 tokens: all ten blocks hit, 2 tokens are left.
    longer = bench.submit("a3", 42, 1, at=2.0, text="a")
    assert bench.events(3.0) == [("a3", 1, 2000 + 2 + 10, True)]
    assert longer.cached == 40


def test_decoding_gives_a_token_a_step():
    bench = Bench()
    bench.submit("a", 40, 4, at=0.0, stride=1)
    assert bench.events(1.0) == [
        ("a", 1, 50.0, False),
        ("a", 2, 60.0, False),
        ("a", 3, 70.0, False),
        ("a", 4, 80.0, True),
    ]


def test_a_stride_thins_the_events_but_not_the_time():
    bench = Bench()
    bench.submit("a", 40, 8, at=0.0, stride=3)
    assert bench.events(1.0) == [
        ("a", 1, 50.0, False),
        ("a", 4, 80.0, False),
        ("a", 7, 110.0, False),
        ("a", 8, 120.0, True),
    ]


def test_without_a_stride_only_the_end_is_told():
    bench = Bench()
    bench.submit("a", 40, 30, at=0.0)
    assert bench.events(1.0) == [("a", 30, 340.0, True)]


def test_each_sequence_that_gets_a_token_makes_the_step_longer():
    bench = Bench(sequence_ms=1.0)
    bench.submit("a", 40, 2, at=0.0)
    bench.submit("b", 40, 2, at=0.0)
    # Step 1: 80 ms of prompts + 10 + 2 x 1; step 2: 10 + 2 x 1.
    assert bench.events(1.0) == [("a", 2, 104.0, True), ("b", 2, 104.0, True)]


def test_a_prompt_that_comes_while_another_decodes_shares_its_steps():
    bench = Bench(step_budget=21)
    bench.submit("a", 20, 5, at=0.0, stride=1)
    bench.submit("b", 30, 2, at=0.005, stride=1)
    # Until 30: a's prompt. Then b gets 20 of the budget of 21 beside a's token: 20 + 10 ms, and then the
    # other 10 with both getting a token: 10 + 10 ms.
    assert bench.events(1.0) == [
        ("a", 1, 30.0, False),
        ("a", 2, 60.0, False),
        ("a", 3, 80.0, False),
        ("b", 1, 80.0, False),
        ("a", 4, 90.0, False),
        ("b", 2, 90.0, True),
        ("a", 5, 100.0, True),
    ]


def test_arrivals_wait_for_the_step_in_hand():
    bench = Bench()
    bench.submit("a", 40, 1, at=0.0)
    bench.submit("b", 40, 1, at=0.001)
    assert bench.events(1.0) == [("a", 1, 50.0, True), ("b", 1, 100.0, True)]


def test_first_come_first_served_when_places_run_out():
    bench = Bench(max_running=1)
    for name in "abc":
        bench.submit(name, 10, 2, at=0.0)
    # Each: 10 ms of prompt, two steps.
    assert bench.events(1.0) == [("a", 2, 30.0, True), ("b", 2, 60.0, True), ("c", 2, 90.0, True)]


def test_a_prompt_waits_until_the_kv_cache_has_room_for_all_of_it():
    bench = Bench(kv_tokens=84)  # 20 usable blocks of 4
    bench.submit("a", 40, 20, at=0.0)  # 15 blocks
    bench.submit("b", 40, 4, at=0.0)  # 11 blocks: only after a
    # a: 40 + 20 x 10 = 240 ms; then b: 40 + 4 x 10.
    assert bench.events(1.0) == [("a", 20, 240.0, True), ("b", 4, 320.0, True)]


def test_a_small_prompt_does_not_overtake_a_big_one_that_waits_for_room():
    bench = Bench(kv_tokens=84)
    bench.submit("a", 40, 20, at=0.0)
    bench.submit("b", 40, 4, at=0.0)
    bench.submit("c", 4, 1, at=0.0)
    assert [name for name, *_ in bench.events(1.0)] == ["a", "c", "b"]
    # c came after b: it is admitted in the same step as b, and that step takes 44 + 10 ms.
    assert bench.books.queue.count == 3


def test_a_prompt_on_its_way_is_warm_for_the_next():
    bench = Bench(step_budget=40)
    bench.submit("a", 40, 1, at=0.0)
    later = bench.submit("b", 42, 1, at=0.0, text="a")
    assert bench.events(1.0) == [("a", 1, 50.0, True), ("b", 1, 62.0, True)]
    assert later.cached == 40


def test_generated_text_is_warm_for_the_next_turn():
    bench = Bench()
    first = bench.submit("a", 40, 8, at=0.0)
    bench.events(1.0)
    data = ("a" * 160 + first.stream.text(0, 8) + "next").encode()
    turn = Sequence(TokenStream(Cutter(4.0, 4), data, 1), 1)
    bench.names[turn] = "turn"
    bench.scheduler.submit(turn, 1.0)
    assert bench.events(2.0) == [("turn", 1, 1011.0, True)], "one token is left of 40 + 8 + 1"
    assert turn.cached == 48


def test_generated_text_is_cold_when_the_setting_says_so():
    bench = Bench(cache_generated=False)
    first = bench.submit("a", 40, 8, at=0.0)
    bench.events(1.0)
    data = ("a" * 160 + first.stream.text(0, 8) + "next").encode()
    turn = Sequence(TokenStream(Cutter(4.0, 4), data, 1), 1)
    bench.names[turn] = "turn"
    bench.scheduler.submit(turn, 1.0)
    bench.events(2.0)
    assert turn.cached == 40


def test_an_embedding_ends_with_its_prompt():
    bench = Bench()
    bench.submit("a", 40, 0, at=0.0, reason="stop")
    assert bench.events(1.0) == [("a", 0, 50.0, True)]
    assert bench.books.generated_tokens == 0
    assert bench.books.first_token.count == 0
    assert bench.books.ends["stop"] == 1


def test_speed_and_slowness_scale_every_step():
    fast = Bench(speed=2.0)
    fast.submit("a", 40, 2, at=0.0)
    assert fast.events(1.0) == [("a", 2, 30.0, True)]
    slow = Bench()
    slow.scheduler.slow = 3.0
    slow.submit("a", 40, 2, at=0.0)
    assert slow.events(1.0) == [("a", 2, 180.0, True)]


def test_attention_makes_late_tokens_dearer():
    bench = Bench(attention_double_at=20)
    bench.submit("a", 40, 1, at=0.0)
    # The middle token is at 20 and costs twice as much as the first: 40 ms x 2, and the step.
    assert bench.events(1.0) == [("a", 1, 90.0, True)]


def test_cancelling_frees_blocks_and_place_at_once():
    bench = Bench(max_running=1)
    first = bench.submit("a", 40, 100, at=0.0)
    bench.submit("b", 40, 1, at=0.0)
    bench.events(0.1)
    assert (bench.scheduler.running, bench.scheduler.waiting) == (1, 1)
    bench.scheduler.cancel(first)
    assert (bench.scheduler.running, bench.pool.held) == (0, 0)
    bench.scheduler.cancel(first)
    assert bench.books.ends["cancelled"] == 1, "once is once"
    # Its step in hand (100 to 110 ms) still has to end.
    assert bench.events(1.0) == [("b", 1, 160.0, True)]


def test_a_prompt_can_be_cancelled_before_and_while_it_is_computed():
    bench = Bench(max_running=1)
    first = bench.submit("a", 40, 1, at=0.0)
    second = bench.submit("b", 40, 1, at=0.0)
    third = bench.submit("c", 40, 1, at=0.02)
    bench.events(0.01)
    for seq in (first, second, third):
        bench.scheduler.cancel(seq)
    assert (bench.scheduler.running, bench.scheduler.waiting, bench.pool.held) == (0, 0, 0)
    assert bench.events(1.0) == []
    assert bench.scheduler.next_at is None
    assert bench.books.ends["cancelled"] == 3


def test_an_idle_engine_has_nothing_to_wake_up_for():
    bench = Bench()
    assert bench.scheduler.next_at is None
    bench.submit("a", 40, 2, at=5.0)
    assert bench.scheduler.next_at == 5.0
    bench.events(5.0)
    assert bench.scheduler.next_at == pytest.approx(5.05)
    bench.events(6.0)
    assert bench.scheduler.next_at is None


def test_a_late_wake_up_does_not_shift_the_steps():
    bench = Bench()
    bench.submit("a", 40, 4, at=0.0, stride=1)
    bench.events(0.0)
    assert [at for _, _, at, _ in bench.events(10.0)] == [50.0, 60.0, 70.0, 80.0]


def test_counters_add_up_for_a_cold_and_a_warm_prompt():
    bench = Bench()
    bench.submit("a", 40, 3, at=0.0)
    bench.events(1.0)
    bench.submit("b", 42, 5, at=1.0, text="a", reason="stop")
    bench.events(2.0)
    books = bench.books
    assert (books.queried_tokens, books.hit_tokens) == (82, 40)
    assert (books.prompt_tokens, books.cached_tokens, books.computed_tokens) == (82, 40, 42)
    assert books.generated_tokens == 8
    assert books.ends == {"length": 1, "stop": 1, "cancelled": 0}
    # First tokens at 50 and 12 ms; 2 + 4 gaps of 10 ms; the answers took 70 and 52 ms.
    assert books.first_token.sum == pytest.approx(0.062)
    assert (books.token_gap.count, books.token_gap.sum) == (6, pytest.approx(0.06))
    assert books.latency.sum == pytest.approx(0.122)
    assert books.prefill.sum == pytest.approx(0.062)
    assert books.decode.sum == pytest.approx(0.06)


def test_queue_time_is_counted_apart_from_prefill():
    bench = Bench(max_running=1)
    bench.submit("a", 40, 1, at=0.0)
    bench.submit("b", 10, 1, at=0.0)
    bench.events(1.0)
    assert bench.books.queue.sum == pytest.approx(0.05)
    assert bench.books.prefill.sum == pytest.approx(0.05 + 0.02)


def test_gauges_move_only_when_a_step_ends():
    bench = Bench(max_running=2)
    for name in "abc":
        bench.submit(name, 40, 3, at=0.0)
    bench.events(0.05)
    assert (bench.books.gauges.running, bench.books.gauges.waiting) == (0, 0), "the step runs until 90 ms"
    bench.events(0.09)
    # 11 blocks each: 40 + 1 tokens.
    gauges = bench.books.gauges
    assert (gauges.running, gauges.waiting, gauges.kv_usage) == (2, 1, 20 / 1000)
    bench.events(1.0)
    assert (bench.books.gauges.running, bench.books.gauges.waiting) == (0, 0)
    assert bench.books.gauges.kv_usage == 0.0, "cached blocks count as free"


def test_outstanding_tokens_fall_with_the_step_in_hand():
    bench = Bench(max_running=1)
    bench.submit("a", 40, 1, at=0.0)
    bench.submit("b", 30, 1, at=0.0)
    bench.submit("c", 42, 1, at=0.0, text="a")  # warm once a is done: 2 tokens
    bench.events(0.0)
    assert bench.scheduler.outstanding(0.0) == 40 + 30 + 2
    assert bench.scheduler.outstanding(0.025) == pytest.approx(20 + 30 + 2)
    bench.events(1.0)
    assert bench.scheduler.outstanding(1.0) == 0


def test_adapters_are_noted_as_they_run_and_wait():
    bench = Bench(adapters=("x", "y"), max_running=1)
    bench.submit("a", 40, 2, at=0.0, adapter="x")
    bench.submit("b", 40, 1, at=0.0, adapter="y")
    bench.events(0.05)
    assert bench.books.mixes == {("x", "y"): pytest.approx(0.05)}
    bench.events(1.0)
    assert list(bench.books.mixes)[-1] == ("", "")


def _shared(kind: int) -> str:
    return "ab"[kind % 2]


@given(
    st.lists(
        st.tuples(
            st.integers(1, 60), st.integers(0, 20), st.integers(0, 3), st.integers(0, 40), st.booleans()
        ),
        max_size=25,
    ),
    st.integers(1, 64),
)
def test_any_load_ends_with_empty_books_and_all_tokens_counted(load, budget):
    bench = Bench(step_budget=budget, max_running=3, kv_tokens=164)
    now, tokens, output = 0.0, 0, 0
    cancelled = []
    for index, (prompt, out, stride, gap, leave) in enumerate(load):
        now += gap / 1000
        bench.scheduler.advance(now)
        seq = bench.submit(str(index), prompt, out, at=now, text=_shared(index), stride=stride)
        if leave:
            cancelled.append(seq)
        else:
            tokens, output = tokens + prompt, output + out
        if len(cancelled) == 2:
            for gone in cancelled:
                bench.scheduler.cancel(gone)
            cancelled.clear()
    for gone in cancelled:
        bench.scheduler.cancel(gone)
    bench.scheduler.advance(now + 1000)
    assert bench.scheduler.next_at is None
    assert (bench.scheduler.running, bench.scheduler.waiting, bench.pool.held) == (0, 0, 0)
    assert bench.books.ends["length"] + bench.books.ends["cancelled"] == len(load)
    assert bench.books.prompt_tokens >= tokens
    assert bench.books.generated_tokens >= output
    assert bench.scheduler.outstanding(now + 1000) == 0
