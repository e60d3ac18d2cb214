"""What an engine's counters prove of the prompts it was sent, and how the books follow."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from extproc.core.books import Books
from extproc.core.cost import prefill_work, tokens_at_start
from extproc.core.fleet import Replica
from extproc.core.ledger import Ledger
from extproc.core.pool import Pool
from extproc.core.progress import Begun, Found, Known, Progress, Prompt, begun, tells
from extproc.core.sample import Sample
from extproc.core.steering import Rules, Steering
from extproc.core.traits import Traits
from extproc.io.metrics import Metrics
from tests.examples import examples

SPEED = 1000.0


def sample(at: float, prompts: float | None = None, tokens: float | None = None, **more: float) -> Sample:
    hits = more.pop("hits", 0.0 if tokens is not None else None)
    return Sample(at=at, ttft_count=prompts, prompt_tokens=tokens, hit_tokens=hits, **more)  # type: ignore[arg-type]


def sent(*works: float) -> list[Prompt]:
    """Prompts sent at time 0."""
    return [Prompt(key, 0.0, work) for key, work in enumerate(works, 1)]


def seen_once(first: Sample) -> Progress:
    """Counters that were seen once, when nothing was on the engine."""
    progress = Progress()
    assert progress.observe(first, [], [], 0.0) is None
    return progress


def test_a_sample_without_counters_of_finished_prompts_tells_nothing() -> None:
    assert not tells(sample(1.0))
    assert not tells(Sample(at=1.0, prompt_tokens=100.0)), "of these, who knows what the cache held"
    assert tells(sample(1.0, tokens=100.0))
    assert tells(sample(1.0, prompts=0.0))


def test_counted_first_tokens_are_those_of_the_oldest_prompts() -> None:
    progress = seen_once(sample(-1.0, prompts=70.0))
    assert progress.observe(sample(1.0, prompts=72.0), sent(500, 10, 900), [], 0.0) == Found(2, 0.0)


def test_prompt_tokens_that_move_in_pieces_show_how_far_the_oldest_is() -> None:
    progress = seen_once(sample(-1.0, tokens=5000.0))
    prompts = sent(1000, 4000)
    assert progress.observe(sample(1.0, tokens=5400.0), prompts, [], 0.0) == Found(0, 400.0)
    assert progress.observe(sample(2.0, tokens=7000.0), prompts, [], 0.0) == Found(1, 1000.0)
    assert progress.observe(sample(3.0, tokens=10_000.0), prompts[1:], [], 0.0) == Found(1, 0.0)


def test_what_the_cache_held_is_no_work() -> None:
    progress = seen_once(sample(-1.0, tokens=0.0))
    found = progress.observe(sample(1.0, tokens=9000.0, hits=8000.0), sent(1000, 1000), [], 0.0)
    assert found == Found(1, 0.0)


def test_a_prompt_that_was_shorter_than_estimated_counts_as_finished() -> None:
    progress = seen_once(sample(-1.0, tokens=0.0))
    assert progress.observe(sample(1.0, tokens=950.0), sent(1000, 1000), [], 0.0) == Found(1, 0.0)


def test_lost_samples_lose_nothing_and_frozen_ones_prove_nothing_new() -> None:
    progress = seen_once(sample(-1.0, prompts=0.0))
    prompts = sent(100, 100, 100, 100)
    assert progress.observe(sample(30.0, prompts=3.0), prompts, [], 0.0) == Found(3, 0.0)
    assert progress.observe(sample(31.0, prompts=3.0), prompts[3:], [], 0.0) == Found(0, 0.0)


def test_a_prompt_sent_after_a_sample_was_taken_is_not_in_it() -> None:
    progress = seen_once(sample(-1.0, prompts=0.0))
    prompts = [Prompt(1, 0.0, 100.0), Prompt(2, 5.0, 100.0)]
    assert progress.observe(sample(4.0, prompts=2.0), prompts, [], 0.0) == Found(1, 0.0)


def test_what_first_tokens_told_already_is_not_counted_twice() -> None:
    progress = seen_once(sample(-1.0, prompts=0.0))
    known = [Known(0.5, 100.0), Known(0.6, 100.0)]
    assert progress.observe(sample(1.0, prompts=3.0), sent(100, 100), known, 0.0) == Found(1, 0.0)


def test_a_first_token_seen_before_the_counter_shows_it_is_no_prompt_that_was_given_up() -> None:
    progress = seen_once(sample(-1.0, prompts=0.0))
    for step in range(1, 9):  # each sample is one late
        found = progress.observe(sample(step, prompts=step - 1.0), sent(100), [Known(step, 100.0)], 0.0)
        assert found == Found(0, 0.0)
    assert progress.share == 0.0


def test_more_finished_than_sent_is_others_traffic_which_is_allowed_for_and_forgotten() -> None:
    progress = seen_once(sample(-1.0, prompts=0.0))
    count = 0.0
    for step in range(1, 60):  # of ten prompts finished five are ours, which nothing but the counters tells
        count += 10
        assert progress.observe(sample(step, prompts=count), sent(*[100.0] * 5), [], 0.0) is not None
    assert progress.share == pytest.approx(0.5, abs=0.1)
    found = progress.observe(sample(60.0, prompts=count + 10), sent(*[100.0] * 20), [], 0.0)
    assert found is not None
    assert 4 <= found.done <= 6, "half of what is finished is of others"
    for step in range(61, 600):
        count += 5
        progress.observe(sample(step, prompts=count), sent(*[100.0] * 5), [], 0.0)
    assert progress.share == pytest.approx(0.0, abs=0.1)


def test_prompts_given_up_do_not_hold_the_count_back_for_ever() -> None:
    progress = seen_once(sample(-1.0, prompts=0.0))
    progress.observe(sample(1.0, prompts=0.0), [], [Known(0.5, 1.0)] * 4, 0.0)  # aborted: never finished
    progress.observe(sample(2.0, prompts=0.0), [], [], 0.0)
    found = progress.observe(sample(3.0, prompts=2.0), sent(100, 100, 100), [], 0.0)
    assert found is not None
    assert found.done == 2


def test_gauges_hold_the_count_within_what_waits_and_what_fits_into_a_step() -> None:
    for counted, done in ((9.0, 3), (0.0, 1)):
        progress = seen_once(sample(-1.0, prompts=0.0))
        prompts = sent(500, 20_000, 20_000, 100)
        # One waits. Of the three that do not, the oldest of a step may be begun before it and the last be finished
        # after it; so two may be unfinished, and all three not: 20,000 tokens between them fit into no step.
        found = progress.observe(sample(1.0, counted, waiting=1.0, running=3.0), prompts, [], 0.0)
        assert found == Found(done, 0.0)
    progress = seen_once(sample(-1.0, prompts=0.0))
    found = progress.observe(sample(1.0, 9.0, waiting=2.0, running=9.0), sent(1, 1, 1, 1), [], 1.0)
    assert found == Found(3, 0.0), "one of the two that wait may be a stranger's"


def test_counters_that_ran_backwards_or_are_garbage_begin_anew() -> None:
    progress = seen_once(sample(-1.0, prompts=50.0))
    for strange in (10.0, 1e15, math.nan):
        assert progress.observe(sample(1.0, prompts=strange), sent(100), [], 0.0) is None


def test_work_is_turned_into_tokens_and_back() -> None:
    assert tokens_at_start(prefill_work(0, 30_000, 53_000), 53_000) == pytest.approx(30_000)
    assert tokens_at_start(1234.0) == 1234.0


# -- gauges -------------------------------------------------------------------------------------------


def test_who_waits_is_not_begun_and_whoever_is_begun_and_unfinished_is_in_one_step() -> None:
    # One of four waits. Of the three begun the newest may be cut by the step's end and the one before it may have
    # been begun before the step; the oldest not too, for 20,000 tokens between them fit into no step.
    found = begun(sample(1.0, waiting=1.0, running=3.0), sent(500, 20_000, 20_000, 100), 4, 0.0)
    assert found == Begun(1, 40_000.0)
    short = begun(sample(1.0, waiting=1.0, running=3.0), sent(500, 500, 500, 100), 4, 0.0)
    assert short == Begun(0, 1500.0), "all of them fit into one"


def test_what_gauges_do_not_show_yet_is_not_taken_for_begun() -> None:
    # Gauges show three of the five in flight: the newest two came in the step that runs, the third newest waits.
    prompts = sent(9000, 9000, 9000, 9000, 9000)
    assert begun(sample(1.0, waiting=1.0, running=2.0), prompts, 5, 0.0) == Begun(0, 36_000.0)
    assert begun(sample(1.0, waiting=1.0, running=4.0), prompts, 5, 0.0) == Begun(1, 27_000.0)


def test_what_was_sent_after_a_sample_is_no_news_of_it() -> None:
    prompts = [*sent(9000, 9000), Prompt(3, 2.0, 9000)]
    assert begun(sample(1.0, waiting=1.0, running=1.0), prompts, 3, 0.0) == Begun(0, 9000.0)


def test_of_those_that_wait_as_large_a_share_is_ours_as_of_all_on_the_engine() -> None:
    # Four of eight are strangers', so one of the two that wait: all but one of ours may be begun, two may not be.
    found = begun(sample(1.0, waiting=2.0, running=6.0), sent(100, 100, 100, 100), 4, 4.0)
    assert found == Begun(0, 300.0)


def test_unknown_gauges_prove_nothing() -> None:
    assert begun(sample(1.0, running=3.0), sent(100), 1, 0.0) is None
    assert begun(sample(1.0, waiting=0.0), sent(100), 1, 0.0) is None
    assert begun(sample(1.0, running=0.0, waiting=0.0, asleep=True), sent(100), 1, 0.0) is None


def test_a_replica_without_counters_follows_its_gauges() -> None:
    replica, ledger = Replica("10.0.0.1:8000", 0, Traits(prefill_speed=SPEED), 0.0), Ledger()
    for key in (1, 2, 3, 4):
        ledger.charge(key, replica, 20_000, 20_000, 0.0)
    assert replica.books.backlog(45.0, SPEED) == pytest.approx(35.0)
    replica.observe(sample(45.0, running=1.0, waiting=3.0))
    assert replica.books.backlog(45.0, SPEED) == pytest.approx(60.0), (
        "three are whole, and the first may be done"
    )
    assert replica.books.backlog(85.0, SPEED) == pytest.approx(20.0)
    replica.observe(
        sample(86.0, running=4.0, waiting=0.0)
    )  # the first two were begun, and fit into no step with more
    assert [prompt.key for prompt in replica.books.unknown()] == [3, 4]


def test_gauges_say_nothing_against_first_tokens_that_will_be_told() -> None:
    replica, ledger = Replica("10.0.0.1:8000", 0, Traits(prefill_speed=SPEED), 0.0), Ledger()
    ledger.charge(1, replica, 1000, 1000, 0.0, told=True)
    replica.observe(sample(0.5, running=1.0, waiting=0.0))
    assert replica.books.backlog(0.5, SPEED) == pytest.approx(0.5)
    assert replica.books.awaits


def test_an_answer_that_came_to_its_end_proves_all_computed_that_was_sent_before() -> None:
    ledger, replica = Ledger(), Replica("10.0.0.1:8000", 0, Traits(prefill_speed=SPEED), 0.0)
    for key in (1, 2, 3):
        ledger.charge(key, replica, 1000, 1000, 0.0)
    ledger.release(1, 0.1)  # its client left: that proves nothing of others
    assert replica.books.backlog(0.1, SPEED) == pytest.approx(2.0)
    ledger.release(2, 0.1, answered=True)
    assert replica.books.backlog(0.1, SPEED) == pytest.approx(1.0)
    ledger.charge(4, replica, 1000, 1000, 0.2)
    ledger.release(4, 0.6, answered=True)
    assert replica.books.backlog(0.6, SPEED) == 0.0, "the third was sent before the fourth"
    assert replica.books.requests == 1


# -- the books ---------------------------------------------------------------------------------------


def books(*works: float, told: bool = False) -> Books:
    found = Books()
    for key, work in enumerate(works, 1):
        found.send(key, work, int(work), 0.0, SPEED, told=told)
    return found


def test_pending_is_never_below_what_counters_prove_unfinished() -> None:
    found = books(1000, 2000)
    assert found.backlog(2.5, SPEED) == pytest.approx(0.5)
    found.correct(found.unknown(), 0, 0.0, 2.5)  # the engine is slow: not even the first is done
    assert found.backlog(2.5, SPEED) == pytest.approx(2.0)
    assert found.falls_to(0.5, 2.5) == pytest.approx(4.0)


def test_pending_is_never_above_what_counters_leave() -> None:
    found = books(1000, 2000, 500)
    found.correct(found.unknown(), 2, 0.0, 0.1)  # the engine is fast
    assert found.backlog(0.1, SPEED) == pytest.approx(0.5)
    found.correct(found.unknown(), 0, 400.0, 0.1)
    assert found.backlog(0.1, SPEED) == pytest.approx(0.1)


def test_what_was_computed_since_a_late_sample_the_clock_tells() -> None:
    found = books(1000, 2000)
    assert found.backlog(1.4, SPEED) == pytest.approx(1.6)
    found.correct(found.unknown(), 1, 0.0, 0.9)  # the first was done at 0.9 s at the latest
    assert found.backlog(1.4, SPEED) == pytest.approx(1.5), "half a second of the second since"


def test_what_was_sent_after_a_sample_is_whole_but_for_the_time_since() -> None:
    found = books(1000)
    found.send(2, 700, 700, 1.0, SPEED)
    found.correct(found.unknown(), 1, 0.0, 0.5)
    assert found.backlog(1.0, SPEED) == pytest.approx(0.7)


def test_a_prompt_that_is_to_be_told_still_holds_up_those_behind_it() -> None:
    found = books(1000, told=True)
    found.send(2, 2000, 2000, 0.2, SPEED, told=True)
    found.correct(found.unknown(), 0, 0.0, 5.0)
    assert found.backlog(5.0, SPEED) == pytest.approx(2.0)
    assert found.falls_to(1.0, 5.0) == math.inf
    found.correct(found.unknown(), 1, 0.0, 5.0)  # but what counters prove is done
    assert found.falls_to(1.0, 5.0) == pytest.approx(6.0)


def test_the_clock_takes_off_what_nobody_tells_and_waits_for_what_is_told() -> None:
    found = Books()
    found.send(1, 1000, 0, 0.0, SPEED)
    found.send(2, 1000, 0, 0.0, SPEED, told=True)
    found.send(3, 1000, 0, 0.0, SPEED)
    assert found.backlog(0.0, SPEED) == pytest.approx(3.0)
    assert found.falls_to(1.0, 0.0) == pytest.approx(2.0)
    assert found.falls_to(0.5, 0.0) == math.inf
    assert found.backlog(9.0, SPEED) == pytest.approx(1.0)
    found.prompt_done(2, 9.0)
    assert found.backlog(9.5, SPEED) == pytest.approx(0.5)


def test_how_far_predictions_were_off_is_summed_up() -> None:
    found = books(1000, told=True)
    found.prompt_done(1, 1.25)  # predicted for 1.0
    assert found.by_first_tokens.news == 1
    assert found.by_first_tokens.off == pytest.approx(0.25)
    assert found.by_first_tokens.seen == pytest.approx(1.25)
    found.send(2, 1000, 0, 2.0, SPEED)
    found.backlog(3.0, SPEED)
    found.send(3, 3000, 0, 3.0, SPEED)
    found.correct(found.unknown(), 0, 500.0, 3.0)  # believed 3.0 s ahead; the most that is proved is the same
    assert found.by_counters.news == 1
    assert found.by_counters.off == pytest.approx(0.0)
    assert found.by_counters.seen == pytest.approx(3.0)


def test_a_replica_follows_its_counters() -> None:
    replica, ledger = Replica("10.0.0.1:8000", 0, Traits(prefill_speed=SPEED), 0.0), Ledger()
    replica.observe(sample(0.0, prompts=0.0, running=0.0, waiting=0.0))
    for key in (1, 2, 3):
        ledger.charge(key, replica, 1000, 1000, 0.1)
    assert replica.books.backlog(3.1, SPEED) == pytest.approx(0.0)
    replica.observe(sample(3.1, prompts=1.0, running=2.0, waiting=1.0))
    assert replica.books.backlog(3.1, SPEED) == pytest.approx(1.0), "the third is not begun"


def test_the_error_of_the_estimate_is_shown_for_each_source() -> None:
    pool, registry = Pool("p", traits=Traits(prefill_speed=SPEED)), CollectorRegistry()
    Metrics(Steering([pool], Rules(), Random(1)), registry)
    found = pool.join("10.0.0.1:8000", 0.0).books
    found.send(1, 1000, 1000, 0.0, SPEED, told=True)
    found.prompt_done(1, 1.25)  # due at 1.0
    labels = {"pool": "p", "replica": "10.0.0.1:8000", "source": "first_token"}
    names = ("news", "off_seconds", "seen_seconds")
    values = [registry.get_sample_value(f"kvsteer_backlog_{name}_total", labels) for name in names]
    assert values == [1.0, 0.25, 1.25]


_STEP = st.tuples(
    st.sampled_from(
        ["send", "told", "done", "end", "answered", "sample", "gauges", "tokens", "time", "frozen"]
    ),
    st.integers(0, 8),
    st.integers(0, 5000),
)


@examples(100)
@given(st.lists(_STEP, max_size=60))
def test_any_order_of_news_leaves_the_books_sound_and_empty_at_the_end(
    steps: list[tuple[str, int, int]],
) -> None:
    replica, ledger = Replica("10.0.0.1:8000", 0, Traits(prefill_speed=SPEED), 0.0), Ledger()
    now = count = tokens = 0.0
    last = sample(0.0)
    for action, key, amount in steps:
        if action in ("send", "told"):
            ledger.charge(key, replica, amount, amount, now, now - key / 10, told=action == "told")
        elif action == "done":
            ledger.prompt_done(key, now)
        elif action == "end":
            ledger.release(key, now)
        elif action == "answered":
            ledger.release(key, now, answered=True)
        elif action == "gauges":
            replica.observe(sample(now - amount / 10_000, running=float(key), waiting=amount % 4.0))
        elif action in ("sample", "tokens"):
            count, tokens = count + key, tokens + amount
            prompts = count if action == "sample" else None
            last = sample(now - amount / 10_000, prompts, tokens, running=float(key), waiting=amount % 4.0)
            replica.observe(last)
        elif action == "frozen":
            replica.observe(last)
        else:
            now += amount / 1000
        _sound(replica.books, now)
    for key in range(9):
        ledger.release(key, now)
    assert (replica.books.requests, replica.books.tokens, replica.books.pending) == (0, 0, 0.0)
    assert replica.books.backlog(now, SPEED) == replica.books.floor == 0.0
    assert replica.books.unknown() == []


def _sound(found: Books, now: float) -> None:
    left = found.backlog(now, SPEED)
    whole = sum(prompt.work for prompt in found.unknown())
    assert 0.0 <= left <= whole / SPEED + 1e-6
    assert 0.0 <= found.floor <= left + 1e-9
    assert math.isfinite(found.idle_at)
    assert left == pytest.approx(sum(max(found.left(key), 0.0) for key in range(9)) / SPEED, abs=1e-6)
