"""Versions of a model: shares, conversations that stay, and the guard."""

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core import dialects
from extproc.core.canary import Guard, Numbers, Watch, surely_above, worse
from extproc.core.dialects import Limits
from extproc.core.ending import CLIENT, COMPLETE, GATEWAY, UPSTREAM, Ending
from extproc.core.pool import Pool
from extproc.core.prompt import Chain, Prompt
from extproc.core.router import Router
from extproc.core.routes import ANY, Route
from extproc.core.versions import pick, root_of, shares, stable
from tests.examples import count_of
from tests.unit.messages import chat

ROOTS = [Random(number).getrandbits(60) for number in range(10_000)]


def route(version: str, weight: float = 100.0) -> Route:
    return Route(pool=f"pool-{version}", models=frozenset({"m"}), version=version, weight=weight)


def chosen(weights: dict[str, float]) -> list[str]:
    takers = [route(version) for version in weights]
    return [pick(root, takers, weights).version for root in ROOTS]


@pytest.mark.parametrize("share", [1, 5, 25, 50])
def test_ten_thousand_conversations_are_shared_by_the_weights(share: int) -> None:
    """Within 0.7 points at 5 %: a spread of 0.22 points is chance's (sqrt(.05 * .95 / 10,000))."""
    canary = chosen({"v1": 100 - share, "v2": share}).count("v2") / 100
    assert canary == pytest.approx(share, abs=0.7 if share <= 5 else 1.5)


def test_a_weight_of_all_or_nothing_is_just_that() -> None:
    assert set(chosen({"v1": 0, "v2": 100})) == {"v2"}
    assert set(chosen({"v1": 100, "v2": 0})) == {"v1"}


def test_a_change_of_weights_moves_only_the_share_that_must() -> None:
    before, after = chosen({"v1": 95, "v2": 5}), chosen({"v1": 75, "v2": 25})
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {("v1", "v2")}  # nobody goes the other way
    assert len(moved) / 100 == pytest.approx(20, abs=1.5)


def test_of_three_versions_one_that_grows_takes_from_the_others_alone() -> None:
    before = chosen({"v1": 50, "v2": 30, "v3": 20})
    after = chosen({"v1": 50, "v2": 30, "v3": 80})
    assert {new for old, new in zip(before, after, strict=True) if old != new} == {"v3"}
    assert after.count("v3") / 100 == pytest.approx(50, abs=1.5)


@given(st.integers(0, 2**60 - 1), st.lists(st.just(0.0) | st.floats(0.01, 100), min_size=1, max_size=4))
def test_a_choice_is_always_the_same_and_never_one_of_weight_zero(root: int, given_: list[float]) -> None:
    weights = {f"v{i}": weight for i, weight in enumerate(given_)}
    takers = [route(version) for version in weights]
    found = pick(root, takers, weights)
    assert found == pick(root, list(reversed(takers)), weights) or not any(given_)
    assert weights[found.version] > 0 or not any(given_)


def test_shares_are_parts_of_the_whole() -> None:
    assert shares({"a": 1.0, "b": 3.0}) == {"a": 0.25, "b": 0.75}
    assert shares({"a": 0.0}) == {"a": 0.0}


# -- conversations -----------------------------------------------------------------------------------------

SYSTEM = {"role": "system", "content": "You are the assistant of everybody. " * 100}


def turn(*texts: str, path: str = "/v1/chat/completions") -> int | None:
    roles = ("user", "assistant")
    said = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]

    body = json.dumps({**chat(model="m"), "messages": [SYSTEM, *said]}).encode()
    return root_of(dialects.read(path, body, Limits(roots=True)))


def test_a_conversation_keeps_its_root_from_turn_to_turn() -> None:
    first = turn("one question " * 300)
    assert first == turn("one question " * 300, "an answer", "another question")
    assert first == turn("one question " * 300, "an answer", "another question", "more", "and more")


def test_conversations_under_one_system_prompt_have_roots_of_their_own() -> None:
    assert len({turn(f"question {number}") for number in range(100)}) == 100


def test_responses_and_messages_have_roots_by_the_first_user_message_too() -> None:

    def root(path: str, **body: object) -> int | None:
        data = json.dumps({"model": "m", **body}).encode()
        return root_of(dialects.read(path, data, Limits(roots=True)))

    user, other = {"role": "user", "content": "q1"}, {"role": "user", "content": "q2"}
    reply = {"role": "assistant", "content": "a"}
    for path, field, more in (
        ("/v1/responses", "input", {"instructions": "Be brief. " * 300}),
        ("/v1/messages", "messages", {"system": "Be brief. " * 300}),
    ):
        one = root(path, **{field: [user]}, **more)
        assert one == root(path, **{field: [user, reply, other]}, **more)
        assert one != root(path, **{field: [other]}, **more)


class Middle:
    def random(self) -> float:
        return 0.5


def test_the_router_goes_by_the_weights_as_they_are_now() -> None:
    table = [route("v1", 100), route("v2", 0)]
    router = Router([Pool(it.pool, models=it.models) for it in table], table, False, Middle())
    asked = Prompt(dialect="d", kind="generate", model="m", size=4, chains=[Chain([12345], [4])])
    pool = router.pool_of(asked)
    assert pool is not None
    assert pool.name == "pool-v1"
    assert router.weights == {"m": {"v1": 100, "v2": 0}}
    router.weights["m"] = {"v1": 0, "v2": 100}
    pool = router.pool_of(asked)
    assert pool is not None
    assert pool.name == "pool-v2"


def test_versions_of_pools_that_take_every_model_are_kept_under_one_name() -> None:
    table = [Route(pool="a", version="v1", weight=0), Route(pool="b", version="v2")]
    router = Router([Pool("a"), Pool("b")], table, False, Middle())
    assert router.weights == {ANY: {"v1": 0, "v2": 100}}
    pool = router.pool_of(None)
    assert pool is not None
    assert pool.name == "b"


# -- the guard ---------------------------------------------------------------------------------------------


def test_a_share_is_surely_above_a_bound_by_wilsons_interval() -> None:
    """5 of 50 with z = 2.58: (0.1 + 0.0666 - 2.58 * sqrt(0.0018 + 0.000666)) / 1.1331 = 0.0337."""
    assert surely_above(5, 50, 0.033)
    assert not surely_above(5, 50, 0.035)
    assert not surely_above(0, 0, 0.0)
    assert not surely_above(1, 20, 0.02)


def numbers(errors: int = 0, of: int = 0, ttfts: list[float] | None = None) -> Numbers:
    return Numbers(of, errors, ttfts or [])


def test_errors_count_beyond_the_margin_and_with_enough_requests() -> None:
    guard, good = Guard(), numbers(2, 1000)
    assert worse(numbers(6, 50), good, guard) == "errors 6 of 50 against 2 of 1000, more than 2.0% above"
    assert worse(numbers(1, 50), good, guard) == ""
    assert worse(numbers(10, 19), good, guard) == "", "too few of the canary"
    assert worse(numbers(10, 50), numbers(0, 19), guard) == "", "too few of the other"
    assert worse(numbers(10, 50), numbers(200, 1000), guard) == "", "the other is as bad"


def test_times_to_first_token_are_compared_at_the_99th_percentile() -> None:
    guard, good = Guard(), numbers(ttfts=[0.1] * 990 + [0.2] * 10)  # P99 0.1 s: the 990th of 1,000
    assert worse(numbers(ttfts=[0.1] * 90 + [0.16] * 10), good, guard) == (
        "P99 of the time to first token 0.160 s against 0.100 s, more than 50% above"
    )
    assert worse(numbers(ttfts=[0.1] * 90 + [0.14] * 10), good, guard) == "", "within the margin"
    assert worse(numbers(ttfts=[0.1] * 99 + [0.9]), good, guard) == "", "one of a hundred is no wonder"


def ending(status: int | None = 200, by: str = COMPLETE, first: float | None = None) -> Ending:
    made = Ending()
    made.status, made.by, made.first_token = status, by, first
    return made


STABLE = {"m": "v1"}


def test_a_version_steps_back_that_is_worse_than_the_stable_one() -> None:
    watch = Watch()
    for number in range(200):
        watch.ended("m", "v1", ending(), 0.0, 1.0)
        watch.ended("m", "v2", ending(500 if number % 10 == 0 else 200), 0.0, 1.0)
    weights = {"m": {"v1": 95.0, "v2": 5.0}}
    (found,) = watch.step_backs(weights, STABLE, Guard(), 2.0)
    assert (found.model, found.version, found.stable) == ("m", "v2", "v1")
    assert found.why.startswith("errors 20 of 200 against 0 of 200")
    even = watch.step_backs({"m": {"v1": 50.0, "v2": 50.0}}, {"m": "v2"}, Guard(), 2.0)
    assert [step.version for step in even] == ["v2"], "the stable one too, where another has as much"
    alone = {"m": {"v1": 5.0, "v2": 95.0}}
    assert watch.step_backs(alone, {"m": "v2"}, Guard(), 2.0) == [], (
        "nothing is better than what has most and had all"
    )
    assert watch.step_backs({"m": {"v1": 40.0, "v2": 60.0}}, STABLE, Guard(), 2.0) != [], "though it has most"
    assert watch.step_backs({"m": {"v1": 95.0, "v2": 0.0}}, STABLE, Guard(), 2.0) == [], (
        "it gets nothing already"
    )
    assert watch.step_backs(weights, STABLE, Guard(), 62.0) == [], "that is too long ago"
    watch.anew("m", 2.0, 60.0)
    assert watch.step_backs(weights, STABLE, Guard(), 2.0) == []


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([{"v1": 100.0, "v2": 0.0}], "v1"),
        ([{"v1": 50.0, "v2": 50.0}], "v1"),  # the first of several
        ([{"v1": 100.0, "v2": 0.0}, {"v1": 40.0, "v2": 60.0}], "v1"),  # a canary with most of it
        ([{"v1": 100.0, "v2": 0.0}, {"v1": 0.0, "v2": 100.0}, {"v1": 60.0, "v2": 40.0}], "v2"),
        ([{"v1": 100.0, "v2": 0.0, "v3": 0.0}, {"v1": 0.0, "v2": 40.0, "v3": 60.0}], "v3"),  # it has none
    ],
)
def test_the_stable_version_is_the_last_that_had_all(states: list[dict[str, float]], expected: str) -> None:
    assert stable(states) == expected


def test_a_version_that_hangs_steps_back_since_its_clients_leave() -> None:
    watch = Watch()
    for number in range(100):
        watch.ended("m", "v1", ending(None, CLIENT) if number < 4 else ending(), 0.0, 1.0)
    for _ in range(20):
        watch.ended("m", "v2", ending(None, CLIENT), 0.0, 1.0)
    (found,) = watch.step_backs({"m": {"v1": 95.0, "v2": 5.0}}, STABLE, Guard(), 2.0)
    assert found.why == (
        "left by their clients without an answer 20 of 20 against 4 of 100, more than 2.0% above"
    )


@pytest.mark.parametrize("status", [401, 403, 404, 408, 429])
def test_a_version_that_refuses_what_the_other_answers_steps_back(status: int) -> None:
    watch = Watch()
    for _ in range(50):
        watch.ended("m", "v1", ending(), 0.0, 1.0)
        watch.ended("m", "v2", ending(status), 0.0, 1.0)
    (found,) = watch.step_backs({"m": {"v1": 95.0, "v2": 5.0}}, STABLE, Guard(), 2.0)
    assert found.why.startswith("errors 50 of 50 against 0 of 50")


def test_who_left_says_nothing_and_who_broke_it_off_is_an_error() -> None:
    watch = Watch()
    watch.ended("m", "v1", ending(by=CLIENT), 0.0, 1.0)  # in the midst of an answer
    watch.ended("m", "v1", ending(None, CLIENT), 0.0, 1.0)
    watch.ended("m", "v1", ending(None, UPSTREAM), 0.0, 1.0)
    watch.ended("m", "v1", ending(400, first=3.5), 3.0, 4.0)  # the client's own error
    watch.ended("m", "v1", ending(None, GATEWAY), 0.0, 1.0)  # no replica could be chosen
    watch.ended("m", "v1", None, 0.0, 1.0)
    assert watch.tallies["m"]["v1"].numbers(5.0, 60.0) == Numbers(3, 2, [0.5], left=1)


def test_a_version_as_good_as_the_other_does_not_step_back_however_often_it_is_looked_at() -> None:
    rng, watch = Random(3), Watch()
    for second in range(count_of(1000, quick=300)):
        for _ in range(19):
            watch.ended("m", "v1", ending(500 if rng.random() < 0.01 else 200), 0.0, float(second))
        watch.ended("m", "v2", ending(500 if rng.random() < 0.01 else 200), 0.0, float(second))
        assert watch.step_backs({"m": {"v1": 95.0, "v2": 5.0}}, STABLE, Guard(), float(second)) == []
