"""Books and ledger: what was sent counts at once and is released exactly once."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extproc.core.books import Books
from extproc.core.fleet import Replica
from extproc.core.ledger import Ledger
from extproc.core.policies.charged_cost import backlogs_of
from extproc.core.traits import Traits
from tests.examples import examples


def replica(speed: float = 1000.0) -> Replica:
    return Replica("10.0.0.1:8000", 0, Traits(prefill_speed=speed), 0.0)


def test_what_was_sent_counts_at_once_and_is_gone_after_its_end() -> None:
    ledger, target = Ledger(), replica()
    ledger.charge(1, target, uncached=300, tokens=500, now=0.0)
    assert (target.books.requests, target.books.tokens, ledger.tokens) == (1, 500, 500)
    assert target.books.backlog(0.0, 1000.0) == pytest.approx(0.3)
    assert ledger.release(1, 0.0) == pytest.approx(300.0), "none of its prompt work was done"
    assert (target.books.requests, target.books.tokens, target.books.pending) == (0, 0, 0.0)


def test_a_release_counts_once() -> None:
    ledger, target = Ledger(), replica()
    ledger.charge(1, target, 10, 10, 0.0)
    ledger.charge(2, target, 10, 10, 0.0)
    assert [ledger.release(1, 0.0), ledger.release(1, 0.0), ledger.release(99, 0.0)] == [10, None, None]
    assert target.books.tokens == 10


def test_a_second_charge_moves_the_first() -> None:
    ledger, first, second = Ledger(), replica(), replica()
    ledger.charge(1, first, 10, 20, 0.0)
    ledger.charge(1, second, 10, 20, 0.0)
    assert (first.books.tokens, second.books.tokens, len(ledger)) == (0, 20, 1)


def test_the_clock_takes_tokens_off_the_oldest_prompt_first() -> None:
    books = Books()
    books.send(1, 1000, 1000, 0.0, 1000.0)
    books.send(2, 500, 500, 0.0, 1000.0)
    assert books.backlog(0.4, 1000.0) == pytest.approx(1.1)
    assert books.backlog(1.2, 1000.0) == pytest.approx(0.3)  # the first is done, 0.2 s into the second
    books.end(1, 1000, 1.2)
    assert books.backlog(1.2, 1000.0) == pytest.approx(0.3), "ending a computed prompt changed the backlog"
    assert books.backlog(9.0, 1000.0) == 0.0


def test_an_idle_span_is_no_credit() -> None:
    books = Books()
    assert books.backlog(0.0, 1000.0) == 0.0
    books.send(1, 1000, 1000, 100.0, 1000.0)
    assert books.backlog(100.0, 1000.0) == pytest.approx(1.0)


def test_a_first_token_settles_the_prompt_and_all_before_it() -> None:
    books = Books()
    for key in (1, 2, 3):
        books.send(key, 1000, 1000, 0.0, 1000.0)
    books.prompt_done(2, 0.0)
    assert books.backlog(0.0, 1000.0) == pytest.approx(1.0)
    books.prompt_done(2, 0.0)
    books.prompt_done(77, 0.0)
    assert books.backlog(0.0, 1000.0) == pytest.approx(1.0)


def test_where_first_tokens_are_reported_the_clock_does_not_pass_a_prompt_that_has_none() -> None:
    books = Books()
    books.send(1, 1000, 1000, 0.0, 1000.0, told=True)
    books.send(2, 1000, 1000, 0.0, 1000.0, told=True)
    assert books.backlog(5.0, 1000.0) == pytest.approx(1.0), "the second prompt cannot have begun"
    books.prompt_done(1, 5.0)
    assert books.backlog(5.5, 1000.0) == pytest.approx(0.5)


def test_a_first_token_does_not_settle_what_was_sent_later_though_it_was_heard_of_before() -> None:
    books = Books()
    books.send(1, 1000, 1000, 0.02, 1000.0)
    books.send(2, 500, 500, 0.02, 1000.0, sent=0.0)  # news of another gateway, 20 ms late
    assert books.prompt_done(2, 0.5) == (500, pytest.approx(0.5))
    assert books.backlog(0.5, 1000.0) == pytest.approx(1.0 - 0.48)


def in_both_orders(first: float, second: float) -> list[Books]:
    """The books of two gateways that sent a prompt of 300 and one of 1,000 tokens at nearly the same time: each heard
    of the other's 20 ms later."""
    mine, yours = Books(), Books()
    mine.send(1, 300, 300, first, 1000.0, told=True)
    mine.send(2, 1000, 1000, second + 0.02, 1000.0, sent=second, told=True)
    yours.send(2, 1000, 1000, second, 1000.0, told=True)
    yours.send(1, 300, 300, first + 0.02, 1000.0, sent=first, told=True)
    return [mine, yours]


def test_two_gateways_that_sent_at_nearly_the_same_time_believe_the_same_of_the_engine() -> None:
    for books in in_both_orders(0.0, 0.002):
        assert books.backlog(0.5, 1000.0) == pytest.approx(0.8, abs=0.03), "it has begun with one of them"
        assert books.backlog(9.0, 1000.0) == pytest.approx(0.3, abs=0.03), "and can't have computed both"


def test_a_first_token_gives_back_what_the_clock_took_off_a_prompt_behind_it() -> None:
    for books in in_both_orders(0.0, 0.002):
        books.backlog(0.3, 1000.0)
        books.prompt_done(1, 0.35, seen=0.3)
        assert books.backlog(0.35, 1000.0) == pytest.approx(0.95)


def test_a_first_token_does_not_prove_a_prompt_that_was_sent_a_moment_before_and_may_be_behind() -> None:
    for books in in_both_orders(0.0, 0.002):
        books.prompt_done(2, 1.0)
        assert books.backlog(1.0, 1000.0) == pytest.approx(0.3)
        books.prompt_done(1, 1.3)
        assert books.backlog(1.3, 1000.0) == 0.0


def test_a_first_token_proves_what_was_sent_well_before_it_though_that_was_never_told() -> None:
    books = Books()
    books.send(1, 300, 300, 0.0, 1000.0, told=True)
    books.send(2, 1000, 1000, 0.1, 1000.0, told=True)
    books.prompt_done(2, 1.3)
    assert books.backlog(1.3, 1000.0) == 0.0


def test_what_is_behind_a_prompt_is_computed_since_its_first_token_was_seen_not_since_that_is_known() -> None:
    books = Books()
    books.send(1, 1000, 1000, 0.0, 1000.0, told=True)
    books.send(2, 1000, 1000, 0.0, 1000.0, told=True)
    assert books.prompt_done(1, 1.3, seen=1.0) == (1000, pytest.approx(1.0)), (
        "1.3 s would be learned as slower"
    )
    assert books.backlog(1.3, 1000.0) == pytest.approx(0.7)
    assert books.prompt_done(2, 2.6, seen=2.1) == (1000, pytest.approx(1.1))


def test_news_of_a_first_token_takes_nothing_off_what_was_sent_after_it_but_what_it_had_since_then() -> None:
    books = Books()
    books.send(1, 1000, 1000, 0.0, 1000.0, told=True)
    books.send(2, 1000, 1000, 1.2, 1000.0, told=True)
    books.prompt_done(1, 1.3, seen=1.0)
    assert books.backlog(1.3, 1000.0) == pytest.approx(0.9)


def test_the_clock_is_not_told_twice_of_what_it_has_taken_off_by_itself() -> None:
    books = Books()
    books.send(1, 1000, 1000, 0.0, 1000.0)  # nobody will tell of its first token, yet somebody does
    books.send(2, 1000, 1000, 0.0, 1000.0)
    books.prompt_done(1, 1.3, seen=1.0)  # 0.3 s into the second, as the clock had it
    assert books.backlog(1.3, 1000.0) == pytest.approx(0.7)


def test_a_first_token_seen_before_its_prompt_was_sent_or_later_than_now_is_held_within_both() -> None:
    books = Books()
    books.send(1, 1000, 1000, 1.0, 1000.0)
    assert books.prompt_done(1, 1.5, seen=0.5) == (0.0, 0.0), "no time at all: nothing to learn a speed from"
    books.send(2, 1000, 1000, 2.0, 1000.0)
    assert books.prompt_done(2, 3.0, seen=9.0) == (1000, pytest.approx(1.0))


def test_a_look_says_the_same_as_the_books_and_changes_nothing() -> None:
    target = replica()
    books = target.books

    def ahead(now: float) -> float:
        return backlogs_of([target], now)[0]

    assert ahead(5.0) == 0.0
    books.send(1, 1000, 1000, 10.0, 1000.0)
    books.send(2, 500, 500, 10.5, 1000.0, told=True)
    assert [ahead(now) for now in (10.5, 11.0, 11.5, 12.0)] == pytest.approx([1.0, 0.5, 0.0, 0.0])
    books.end(1, 1000, 11.2)  # 0.2 s into the second
    assert ahead(11.2) == pytest.approx(0.3)
    books.send(3, 400, 400, 11.2, 1000.0)
    assert ahead(99.0) == pytest.approx(0.4), "the third can't have begun before the second's first token"
    books.prompt_done(2, 12.0)
    assert ahead(12.1) == pytest.approx(0.3)


def test_the_clock_says_when_the_backlog_falls_to_an_amount_unless_a_first_token_must_come_before() -> None:
    books = Books()
    books.send(1, 1000, 1000, 0.0, 1000.0)
    books.send(2, 500, 500, 0.0, 1000.0)
    assert books.falls_to(0.25, 0.0) == pytest.approx(1.25)
    assert books.falls_to(2.0, 0.0) == 0.0
    books = Books()
    books.send(1, 1000, 1000, 0.0, 1000.0, told=True)
    books.send(2, 500, 500, 0.0, 1000.0)
    assert books.backlog(0.0, 1000.0) == pytest.approx(1.5)
    assert books.falls_to(0.6, 0.0) == pytest.approx(0.9)
    assert books.falls_to(0.25, 0.0) == float("inf")


def test_a_replica_at_half_the_configured_speed_is_learned_from_first_tokens() -> None:
    ledger, target, now = Ledger(), replica(speed=1000.0), 0.0
    for key in range(200):
        ledger.charge(key, target, 1000, 1000, now, told=True)
        now += 2.0  # 1000 tokens took 2 s
        ledger.prompt_done(key, now)
        ledger.release(key, now)
    assert 450 < target.prefill_speed < 580


def test_an_equal_replica_keeps_the_configured_speed_through_small_chance_differences() -> None:
    ledger, target, now = Ledger(), replica(speed=1000.0), 0.0
    for key in range(200):
        ledger.charge(key, target, 1000, 1000, now, told=True)
        now += 1.05
        ledger.prompt_done(key, now)
        ledger.release(key, now)
    assert target.prefill_speed == 1000.0


def test_the_end_of_an_old_incarnations_exchange_does_not_touch_the_new_one() -> None:
    ledger, old, new = Ledger(), replica(), replica()
    ledger.charge(1, old, 10, 100, 0.0)
    ledger.charge(2, new, 10, 100, 0.0)
    ledger.release(1, 0.0)
    assert new.books.tokens == 100


_STEP = st.tuples(
    st.sampled_from(["charge", "done", "release", "time"]), st.integers(0, 8), st.integers(0, 5000)
)


@examples(50)
@given(st.lists(_STEP, max_size=60), st.booleans())
@example(  # rounding once left -1e-16 s of backlog here
    [
        ("charge", 2, 3638),
        ("time", 0, 2340),
        ("charge", 0, 292),
        ("time", 0, 566),
        ("time", 0, 732),
        ("charge", 0, 0),
    ],
    True,
)
def test_any_sequence_leaves_the_books_sound_and_empty_at_the_end(
    steps: list[tuple[str, int, int]], signalled: bool
) -> None:
    ledger, replicas, now = Ledger(), [replica(), replica()], 0.0
    for action, key, amount in steps:
        if action == "charge":
            ledger.charge(key, replicas[key % 2], amount, amount + 10, now, told=signalled)
        elif action == "done":
            ledger.prompt_done(key, now)
        elif action == "release":
            ledger.release(key, now)
        else:
            now += amount / 1000
        for target in replicas:
            assert target.books.backlog(now, 1000.0) >= 0
            assert target.books.tokens >= 0
    for key in range(9):
        ledger.release(key, now)
    for target in replicas:
        assert (target.books.requests, target.books.tokens, target.books.pending) == (0, 0, 0.0)
        assert target.occupancy == target.kv_load == 0.0
    assert len(ledger) == 0


@pytest.mark.parametrize(("ends", "left"), [(0.0, 1000.0), (0.25, 750.0), (1.0, 0.0), (9.0, 0.0)])
@pytest.mark.parametrize("told", [False, True])
def test_an_end_tells_what_was_left_of_the_only_prompt(ends: float, left: float, told: bool) -> None:
    ledger, target = Ledger(), replica()
    ledger.charge(1, target, 1000.0, 1200, 5.0, told=told)
    assert ledger.release(1, 5.0 + ends) == pytest.approx(left)
    books = target.books
    assert (books.pending, books.awaits, books.floor, books.idle_at) == (0.0, 0, 0.0, 5.0 + ends)


def test_an_end_tells_what_was_left_of_its_own_prompt_where_others_are_before_it() -> None:
    ledger, target = Ledger(), replica()
    ledger.charge(1, target, 1000.0, 1000, 0.0)
    ledger.charge(2, target, 500.0, 500, 0.0)
    assert ledger.release(2, 0.6) == pytest.approx(500.0), "0.4 s of the first are left"
    assert ledger.release(1, 0.8) == pytest.approx(200.0)
