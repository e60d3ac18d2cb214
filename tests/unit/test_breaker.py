"""The breaker: what counts as failure, one probe at a time, and no leaked place."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.breaker import (
    CLOSED,
    FAILURE,
    HALF_OPEN,
    NEUTRAL,
    OPEN,
    PUSHBACK,
    SUCCESS,
    Breaker,
    BreakerSettings,
    verdict,
)


@pytest.mark.parametrize(
    ("status", "retry_after", "said"),
    [
        (200, None, SUCCESS),
        (302, None, SUCCESS),
        (400, None, NEUTRAL),
        (404, None, NEUTRAL),
        (422, None, NEUTRAL),
        (429, None, PUSHBACK),
        (429, 5.0, PUSHBACK),
        (500, None, FAILURE),
        (501, None, NEUTRAL),
        (502, None, FAILURE),
        (503, None, FAILURE),
        (503, 5.0, PUSHBACK),
        (504, None, FAILURE),
        (None, None, FAILURE),
    ],
)
def test_what_a_status_says_of_the_replica(status: int | None, retry_after: float | None, said: str) -> None:
    assert verdict(status, retry_after) == said


def tripped(now: float = 0.0) -> Breaker:
    breaker = Breaker(BreakerSettings())
    for key in range(3):
        breaker.ended(str(key), FAILURE, now)
    assert breaker.state == OPEN
    return breaker


def test_three_failures_in_a_row_open_it() -> None:
    breaker = Breaker(BreakerSettings())
    assert not breaker.ended("1", FAILURE, 0.0)
    assert not breaker.ended("2", FAILURE, 0.0)
    assert breaker.ended("3", FAILURE, 0.0)
    assert not breaker.allows(0.5)


def test_a_success_between_breaks_the_row() -> None:
    breaker = Breaker(BreakerSettings())
    for said in (FAILURE, FAILURE, SUCCESS, FAILURE, FAILURE):
        breaker.ended("1", said, 0.0)
    assert breaker.state == CLOSED


def test_half_of_ten_failing_opens_it_without_a_row() -> None:
    breaker = Breaker(BreakerSettings())
    for number in range(9):
        breaker.ended(str(number), FAILURE if number % 2 else SUCCESS, 0.0)
    assert breaker.state == CLOSED
    breaker.ended("9", FAILURE, 0.0)
    assert breaker.state == OPEN


def test_in_thin_traffic_a_replica_that_fails_every_other_request_is_found_too() -> None:
    breaker, now = Breaker(BreakerSettings()), 0.0
    for number in range(10):  # one in three seconds: within 30 s there are ten, and five of them failed
        now += 3.0
        breaker.ended(str(number), FAILURE if number % 2 else SUCCESS, now)
    assert breaker.state == OPEN


def test_three_of_ten_is_below_the_share() -> None:
    breaker = Breaker(BreakerSettings())
    for number in range(100):
        breaker.ended(str(number), FAILURE if number % 10 in (3, 6, 9) else SUCCESS, float(number))
    assert breaker.state == CLOSED


def test_one_that_passes_its_probe_and_fails_again_is_out_for_longer_each_time() -> None:
    breaker, now, opened = Breaker(BreakerSettings()), 0.0, []
    for number in range(4):
        for key in range(3):
            breaker.ended(f"{number} {key}", FAILURE, now)
        opened.append(next(wait for wait in (1.0, 2.0, 4.0, 8.0) if breaker.allows(now + wait)))
        now += opened[-1]
        breaker.sent(f"probe {number}", now)
        breaker.ended(f"probe {number}", SUCCESS, now)
        assert breaker.state == CLOSED
    assert opened == [1.0, 2.0, 4.0, 8.0]
    now += 30.0
    for key in range(3):
        breaker.ended(f"later {key}", FAILURE, now)
    assert breaker.allows(now + 1.0), "it was well for a whole window, and is still held to its past"


def test_a_replica_that_fails_half_at_random_is_out_most_of_the_time() -> None:
    breaker, rng, served, sent = Breaker(BreakerSettings()), random.Random(3), 0, 0
    for step in range(6000):  # ten requests a second for ten minutes
        now = step / 10
        breaker.tick(now)
        sent += 1
        if breaker.allows(now):
            breaker.sent(str(step), now)
            breaker.ended(str(step), FAILURE if rng.random() < 0.5 else SUCCESS, now)
            served += 1
    assert served < 0.35 * sent, f"{served} of {sent}"


def test_the_late_end_of_a_long_probe_counts_though_others_were_sent_since() -> None:
    breaker = tripped()
    assert breaker.allows(1.0)
    breaker.sent("long", 1.0)
    breaker.tick(3.5)
    assert breaker.allows(3.5)
    breaker.sent("second", 3.5)
    assert breaker.ended("long", SUCCESS, 4.0)
    assert breaker.state == CLOSED
    assert not breaker.ended("second", SUCCESS, 4.1)


def test_probes_without_a_verdict_are_bounded() -> None:
    breaker, now = tripped(), 1.0
    for number in range(1000):
        assert breaker.allows(now)
        breaker.sent(str(number), now)
        now += 2.1
        breaker.tick(now)
    assert not breaker.ended("0", FAILURE, now), "a probe of half an hour ago is remembered"
    assert breaker.ended("999", SUCCESS, now)


def test_failures_older_than_the_window_do_not_count() -> None:
    breaker = Breaker(BreakerSettings())
    for number in range(8):
        breaker.ended(str(number), FAILURE if number % 2 else SUCCESS, 0.0)
    for number in range(5):
        breaker.ended(str(number), SUCCESS, 31.0)
    for number in range(2):
        breaker.ended(str(number), FAILURE, 31.0)
    assert breaker.state == CLOSED


def test_half_open_lets_exactly_one_probe_through() -> None:
    breaker = tripped()
    assert not breaker.allows(0.99)
    assert breaker.allows(1.0)
    breaker.sent("77", 1.0)
    assert not breaker.allows(1.0)
    assert breaker.ended("77", SUCCESS, 1.1)
    assert breaker.state == CLOSED


def test_a_failed_probe_doubles_the_time_up_to_the_longest() -> None:
    breaker, now = tripped(), 0.0
    for expected in (2.0, 4.0, 8.0, 8.0):
        now += 1000.0
        assert breaker.allows(now)
        breaker.sent("1", 1.0)
        breaker.ended("1", FAILURE, now)
        assert not breaker.allows(now + expected - 0.01)
        assert breaker.allows(now + expected)


def test_a_cancelled_probe_frees_its_place() -> None:
    breaker = tripped()
    assert breaker.allows(1.0)
    breaker.sent("5", 1.0)
    breaker.cancelled("5")
    assert breaker.state == HALF_OPEN
    assert breaker.allows(1.0)


def test_a_probe_without_a_verdict_does_not_keep_the_replica_out() -> None:
    breaker = tripped()
    breaker.allows(1.0)
    breaker.sent("long stream", 1.0)
    breaker.tick(3.0)
    assert not breaker.allows(3.0), "the verdict may still be on its way"
    breaker.tick(3.1)
    assert breaker.allows(3.1)


def test_late_ends_of_older_requests_do_not_decide_for_the_probe() -> None:
    breaker = tripped()
    breaker.allows(1.0)
    breaker.sent("5", 1.0)
    assert not breaker.ended("4", FAILURE, 1.1)
    assert not breaker.ended("4", SUCCESS, 1.1)
    assert breaker.state == HALF_OPEN


def test_pushback_opens_nothing_and_is_kept_for_the_stated_time() -> None:
    breaker = Breaker(BreakerSettings())
    for key in range(50):
        breaker.ended(str(key), PUSHBACK, 10.0, retry_after=5.0)
    assert breaker.state == CLOSED
    assert breaker.pushed_until == 15.0
    breaker.ended("1", PUSHBACK, 10.0)
    assert breaker.pushed_until == 15.0, "a shorter pushback cut a longer one"
    breaker.ended("1", PUSHBACK, 10.0, retry_after=1e9)
    assert breaker.pushed_until == 25.0, "an endless Retry-After was believed"


_STEP = st.tuples(
    st.sampled_from(["send", "cancel", SUCCESS, FAILURE, PUSHBACK, NEUTRAL]),
    st.integers(0, 5),
    st.floats(0, 3),
)


@given(st.lists(_STEP, max_size=80))
def test_it_never_locks_up(steps: list[tuple[str, str, float]]) -> None:
    breaker, now, open_keys = Breaker(BreakerSettings()), 0.0, set()
    for action, key, passed in steps:
        now += passed
        if action == "send":
            if breaker.allows(now):
                breaker.sent(key, now)
                open_keys.add(key)
        elif action == "cancel":
            breaker.cancelled(key)
            open_keys.discard(key)
        else:
            breaker.ended(key, action, now)
            open_keys.discard(key)
    for key in open_keys:
        breaker.cancelled(key)
    assert breaker.allows(now + 100.0), f"{breaker.state} for ever"


def late(breaker: Breaker, *news: tuple[float, float]) -> list[str]:
    """Tries that failed, each as (picked, told); the state after each."""
    states = []
    for number, (picked, told) in enumerate(news):
        breaker.tried(f"late {number}", picked, told)
        states.append(breaker.state)
    return states


def test_failed_tries_that_are_told_at_once_open_it_for_what_is_left_of_its_time() -> None:
    """Picked at 10.0, 10.2 and 10.4, it opens for a second as of 10.4."""
    breaker = Breaker(BreakerSettings())
    assert late(breaker, (10.0, 10.5), (10.2, 10.7), (10.4, 10.9)) == [CLOSED, CLOSED, OPEN]
    assert breaker.rest(10.9) == pytest.approx(0.5)
    assert breaker.allows(11.4)


def test_what_failed_so_long_ago_that_it_might_be_tried_again_by_now_opens_nothing() -> None:
    breaker = Breaker(BreakerSettings())
    assert late(breaker, (10.0, 20.0), (10.3, 20.3), (10.6, 20.6)) == [CLOSED] * 3
    assert breaker.allows(20.6)


def test_what_was_picked_before_an_answer_that_is_known_to_be_good_is_no_row() -> None:
    breaker = Breaker(BreakerSettings())
    breaker.went_well(200, 10.1, 10.2)
    assert late(breaker, (10.0, 10.3), (10.0, 10.3), (10.0, 10.3), (10.0, 10.3)) == [CLOSED] * 4
    assert late(breaker, (10.2, 10.4), (10.2, 10.4), (10.2, 10.4)) == [CLOSED, CLOSED, OPEN]


def test_half_failing_at_once_is_found_though_answers_between_are_good() -> None:
    """Of ten, four or more failed."""
    breaker = Breaker(BreakerSettings())
    for number in range(5):
        breaker.went_well(200, 10.05 + number / 10, 10.1 + number / 10)
        breaker.tried(str(number), 10.0 + number / 10, 10.15 + number / 10)
    assert breaker.state == OPEN


def test_one_that_goes_on_failing_is_opened_when_its_time_is_longer_than_the_news_are_late() -> None:
    """Two requests a second, told 5 s late. Three in a row from 10.0: open as of 11.0 until 12.0, then from 12.0:
    as of 13.0 until 15.0; from 15.0: as of 16.0 until 20.0; from 20.0: as of 21.0, told at 26.0, until 29.0."""
    breaker, opened = Breaker(BreakerSettings()), None
    for number in range(40):
        picked = 10.0 + number / 2
        if breaker.tried(str(number), picked, picked + 5.0):
            opened = picked + 5.0
            break
    assert (opened, breaker.state) == (26.0, OPEN)
    assert breaker.rest(26.0) == 3.0


def test_with_news_later_than_its_longest_time_it_is_half_open_until_a_later_pick_was_answered_well() -> None:
    """As above, told 10 s late: the fourth time, 21.0 to 29.0, is over when it is told at 31.0."""
    breaker, now = Breaker(BreakerSettings()), 0.0
    for number in range(23):
        now = 20.0 + number / 2
        assert breaker.state == CLOSED
        breaker.tried(str(number), now - 10.0, now)
    assert (now, breaker.state) == (31.0, HALF_OPEN)
    assert not breaker.ended("old", SUCCESS, 31.5, picked=28.9)
    assert breaker.state == HALF_OPEN
    assert breaker.ended("later", SUCCESS, 39.0, picked=29.0)
    assert breaker.state == CLOSED


def test_late_news_of_what_was_picked_before_it_closed_again_open_nothing() -> None:
    """Opened at 0.0 until 1.0, and closed by a probe: streams whose first try failed meanwhile end at 8.0."""
    breaker = tripped()
    breaker.allows(1.0)
    breaker.sent("probe", 1.0)
    breaker.ended("probe", SUCCESS, 1.1, picked=1.0)
    assert late(breaker, *[(0.5, 8.0)] * 12) == [CLOSED] * 12


def test_a_probe_whose_failure_is_told_late_opens_it_as_of_when_it_was_sent() -> None:
    breaker = tripped()
    breaker.allows(1.0)
    breaker.sent("probe", 1.0)
    assert breaker.tried("probe", 1.0, 2.5)
    assert breaker.rest(2.5) == 0.5
    breaker.allows(3.0)
    breaker.sent("slow", 3.0)
    breaker.tried("slow", 3.0, 13.0)  # four seconds as of 3.0
    assert breaker.state == HALF_OPEN
    assert breaker.allows(13.0), "nobody's verdict is waited for"


def test_the_first_token_of_a_probe_closes_it() -> None:
    breaker = tripped()
    breaker.allows(1.0)
    breaker.sent("probe", 1.0)
    assert not breaker.began("another", 0.9, 1.2)
    assert breaker.began("probe", 1.0, 1.3)
    assert breaker.state == CLOSED


def test_another_gateways_word_from_before_an_answer_that_is_known_to_be_good_counts_for_nothing() -> None:
    breaker = Breaker(BreakerSettings())
    breaker.went_well(200, 5.0, 6.0)
    breaker.warn(9.0, 6.0, 4.0)
    assert breaker.wary_until == 0.0
    breaker.warn(9.0, 6.0, 5.5)
    assert breaker.wary_until == 9.0
    breaker.warn(4.0, 6.0, 4.0)
    assert breaker.wary_until == 4.0, "that it is well again"
