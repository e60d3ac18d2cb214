"""Weights of versions at a gateway: orders, what others did, Redis that loses or is gone, the guard."""

from typing import Any
from urllib.parse import urlencode

import orjson
import pytest
from aiohttp.test_utils import make_mocked_request

from extproc.cli.versions import percent
from extproc.core.canary import Guard
from extproc.core.ending import COMPLETE, Ending
from extproc.core.pool import Pool
from extproc.core.routes import Route
from extproc.core.steering import Rules, Steering
from extproc.io import clock
from extproc.io.version_desk import VersionDesk
from extproc.io.weight_orders import completed, weights_of, word
from extproc.io.weights import Chosen, UntakenError, read, written


class Middle:
    def random(self) -> float:
        return 0.5


class OneKey:
    """What Redis has, in memory."""

    def __init__(self) -> None:
        self.key = "kvsteer:versions"
        self.text: bytes | None = None
        self.is_up = True

    async def get(self) -> bytes | None:
        if not self.is_up:
            raise UntakenError("it can't be reached")
        return self.text

    async def swap(self, before: bytes | None, after: bytes) -> bool:
        if await self.get() != before:
            return False
        self.text = after
        return True

    async def close(self) -> None:
        pass


ROUTES = [
    Route(pool="a", models=frozenset({"m"}), version="v1", weight=100),
    Route(pool="b", models=frozenset({"m"}), version="v2", weight=0),
]


def made(store: OneKey | None, guard: Guard | None = None) -> tuple[Steering, VersionDesk]:
    pools = [Pool(route.pool, models=route.models) for route in ROUTES]
    steering = Steering(pools, Rules(), Middle(), ROUTES)
    return steering, VersionDesk(steering, store, guard)


async def order(desk: VersionDesk, what: str, **query: str) -> tuple[int, dict[str, Any]]:

    asked = urlencode({"model": "m", "who": "ops", "why": "to see", **query})
    request = make_mocked_request("POST", f"/versions/{what}?{asked}")
    answer = await (desk._on_set(request) if what == "set" else desk._on_rollback(request))
    assert isinstance(answer.body, bytes)
    return answer.status, orjson.loads(answer.body)


def weights(steering: Steering) -> dict[str, float]:
    return dict(steering.router.weights["m"])


async def test_an_order_counts_at_the_other_gateways_after_their_next_look() -> None:
    store = OneKey()
    (one, desk), (other, follower) = made(store), made(store)
    status, said = await order(desk, "set", weights="v2=5")
    assert status == 200
    assert said["reaches"] == "every gateway on this Redis"
    assert [(row["version"], row["share"]) for row in said["versions"]] == [("v1", 0.95), ("v2", 0.05)]
    assert weights(one) == {"v1": 95, "v2": 5}
    await follower.follow()
    assert weights(other) == {"v1": 95, "v2": 5}
    assert follower.shown()[0]["who"] == "ops"


async def test_rollbacks_go_back_step_by_step_to_the_configuration() -> None:
    steering, desk = made(OneKey())
    for share in ("1", "5", "25"):
        await order(desk, "set", weights=f"v2={share}")
    for left in (5, 1, 0):
        assert (await order(desk, "rollback"))[0] == 200
        assert weights(steering)["v2"] == left
    status, said = await order(desk, "rollback")
    assert status == 400
    assert "nothing to go back to" in said["error"]


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ({"weights": "v9=5"}, 400, "'v9' is no version of it; there are: v1, v2"),
        ({"weights": "v2"}, 400, "'v2' is no weight; write VERSION=WEIGHT"),
        ({"weights": "v2=nan"}, 400, "'v2=nan' is no weight"),
        ({"weights": "v2=101"}, 400, "v2=101 is not between 0 and 100"),
        ({"weights": "v1=0,v2=0"}, 400, "every weight is 0"),
        ({"weights": "v2=5", "why": " "}, 400, "why is empty; say it in one line"),
        ({"weights": "v2=5", "why": "a\tb"}, 400, "why has a line break or a control character"),
        ({"weights": "v2=5", "who": "x" * 301}, 400, "who has 301 characters; write at most 300"),
        ({"weights": "v2=5,v2=6"}, 400, "'v2' is given twice"),
        ({"weights": "v2=1_0"}, 400, "'v2=1_0' is no weight"),
        ({"weights": "v2=１０"}, 400, "'v2=１０' is no weight"),
        ({"weights": "v1=0"}, 400, "the rest, 100, would go to v2, without any weight now; say who gets it"),
        ({"weights": "v2=5", "model": "x"}, 404, "no model 'x' with several versions; there are: 'm'"),
        ({"weights": "v2=5", "model": "*"}, 404, "no model '*' with several versions; there are: 'm'"),
    ],
)
async def test_an_order_that_makes_no_sense_changes_nothing(
    query: dict[str, str], status: int, said: str
) -> None:
    steering, desk = made(OneKey())
    answer = await order(desk, "set", **query)
    assert answer[0] == status
    assert said in answer[1]["error"]
    assert weights(steering) == {"v1": 100, "v2": 0}


def test_the_others_share_the_rest_in_the_proportion_that_they_have() -> None:
    now = {"a": 60.0, "b": 30.0, "c": 10.0}
    assert completed(now, {"c": 55.0}, now) == {"a": 30.0, "b": 15.0, "c": 55.0}
    assert completed(now, {"a": 1.0, "b": 1.0, "c": 1.0}, now) == {"a": 1.0, "b": 1.0, "c": 1.0}


def test_nobody_gets_weight_that_has_none_and_is_not_named() -> None:
    now = {"a": 0.0, "b": 0.0, "c": 100.0}
    with pytest.raises(ValueError, match="the rest, 60, would go to a and b, without any weight now"):
        completed(now, {"c": 40.0}, now)
    assert completed(now, {"a": 60.0, "c": 40.0}, now) == {"a": 60.0, "b": 0.0, "c": 40.0}
    assert completed(now, {"c": 100.0}, now) == now


@pytest.mark.parametrize(
    ("asked", "advice"),
    [
        ({"c": 40.0}, "say who gets it, for example b=60"),  # a was taken back
        (
            {"b": 0.0, "c": 99.999},
            "would go to a, without any weight now and taken back by the guard; give b or c more",
        ),
    ],
)
def test_nobody_is_advised_to_give_weight_to_what_the_guard_took_back(
    asked: dict[str, float], advice: str
) -> None:
    now = {"a": 0.0, "b": 0.0, "c": 100.0}
    with pytest.raises(ValueError, match=advice):
        completed(now, asked, now, ["a"])


def test_what_of_a_version_is_in_flight_is_shown_as_of_its_pools() -> None:
    steering, desk = made(None)
    canary = steering.pools[1]
    canary.join("10.0.0.1:8000", 0.0)
    for key in range(3):
        steering.decide(None, canary, key, 1.0)
    assert [(row["version"], row["in_flight"]) for row in desk.shown()[0]["versions"]] == [
        ("v1", 0),
        ("v2", 3),
    ]


async def test_small_shares_are_told_as_they_are() -> None:
    _, desk = made(None)
    _, said = await order(desk, "set", weights="v2=0.001")
    assert [row["share"] for row in said["versions"]] == [0.99999, 0.00001]


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0.0%"),
        (1.0, "100.0%"),
        (0.95, "95.0%"),
        (0.05, "5.0%"),
        (1 / 3, "33.3%"),
        (0.01, "1.0%"),
        (0.0025, "0.25%"),
        (0.00001, "0.0010%"),
        (0.99999, "99.9990%"),
        (1e-14, "0.000000000001%"),
    ],
)
def test_a_share_is_shown_with_as_many_places_as_it_needs(share: float, text: str) -> None:
    assert percent(share) == text


def test_versions_of_a_newer_configuration_lose_their_weight_only_by_name() -> None:
    now, known = {"v1": 48.0, "v2": 12.0, "v3": 40.0}, {"v1": 100.0, "v2": 0.0}
    with pytest.raises(ValueError, match="'v3' has weight 40, and is not in this gateway's configuration"):
        completed(now, {"v2": 10.0}, known)
    assert completed(now, {"v2": 10.0, "v3": 40.0}, known) == {"v1": 50.0, "v2": 10.0, "v3": 40.0}
    assert completed({"v1": 100.0, "old": 0.0}, {"v2": 10.0}, known) == {"v1": 90.0, "v2": 10.0}


async def test_a_gateway_that_does_not_know_a_version_shows_its_part() -> None:
    steering, desk = made(store := OneKey())
    newer = Chosen(number=3, weights={"v1": 48.0, "v2": 12.0, "v3": 40.0}, who="a", why="b", when=1.0)
    store.text = written({"m": newer})
    await desk.follow()
    rows = {row["version"]: (row["share"], row["pools"]) for row in desk.shown()[0]["versions"]}
    assert rows == {"v1": (0.48, ["a"]), "v2": (0.12, ["b"]), "v3": (0.4, [])}
    assert weights(steering) == {"v1": 48.0, "v2": 12.0}


async def test_without_redis_an_order_counts_here() -> None:
    steering, desk = made(None)
    assert (await order(desk, "set", weights="v2=5"))[1]["reaches"] == "this gateway only"
    assert weights(steering) == {"v1": 95, "v2": 5}


async def test_while_redis_is_gone_an_operators_order_is_refused() -> None:
    store = OneKey()
    steering, desk = made(store)
    store.is_up = False
    status, said = await order(desk, "set", weights="v2=5")
    assert (status, said["error"]) == (
        503,
        "nothing was changed, since Redis did not take it: it can't be reached; try again",
    )
    assert weights(steering) == {"v1": 100, "v2": 0}


@pytest.mark.parametrize("lost", [None, "older"])
async def test_what_redis_loses_is_written_again(lost: str | None) -> None:
    store = OneKey()
    steering, desk = made(store)
    await order(desk, "set", weights="v2=1")
    older = store.text if lost else None
    await order(desk, "set", weights="v2=5")
    newest = store.text
    store.text = older
    await desk.follow()
    assert store.text == newest
    assert weights(steering) == {"v1": 95, "v2": 5}


async def test_what_is_none_of_ours_stays_and_changes_nothing() -> None:
    store = OneKey()
    steering, desk = made(store)
    store.text = b"somebody else's"
    await desk.follow()
    status, said = await order(desk, "set", weights="v2=5")
    assert (status, said["error"]) == (
        400,
        (
            "nothing was changed: in Redis kvsteer:versions: the key holds no weights of versions; delete it "
            "(redis-cli del kvsteer:versions), and the gateways write what they go by"
        ),
    )
    assert store.text == b"somebody else's"
    assert weights(steering) == {"v1": 100, "v2": 0}


def test_garbled_entries_are_left_out() -> None:
    good = Chosen(number=3, weights={"v1": 1.0}, who="a", why="b\u0000", when=1.0, past=({"v1": 2.0},))
    text = orjson.loads(written({"good": good}))
    for name, change in (
        ("number", {"number": 0}),
        ("weight", {"weights": {"v1": 101}}),
        ("weights", {"weights": 3}),
        ("past", {"past": [{"v1": "x"}]}),
        ("when", {"when": "today"}),
    ):
        text["models"][name] = {**text["models"]["good"], **change}
    found = read(orjson.dumps(text))
    assert set(found) == {"good"}
    assert found["good"].why == "b?"
    for strange in (b"[]", b"{}", b'{"models":[]}', b"\xff"):
        with pytest.raises(ValueError, match="no weights"):
            read(strange)


def ended(steering: Steering, version: str, failed: bool) -> None:
    ending = Ending()
    ending.by, ending.status = COMPLETE, 500 if failed else 200
    steering.watch.ended("m", version, ending, 0.0, clock.monotonic())


@pytest.mark.parametrize("is_up", [True, False])
async def test_the_guard_takes_a_version_back_that_errs_once_whether_redis_is_there_or_not(
    is_up: bool,
) -> None:
    store = OneKey()
    (steering, desk), (other, follower) = made(store, Guard()), made(store, Guard())
    await order(desk, "set", weights="v2=5")
    await follower.follow()
    for number in range(100):
        for each in (steering, other):
            ended(each, "v1", failed=False)
            ended(each, "v2", failed=number % 10 == 0)
    store.is_up = is_up
    await desk.judge()
    assert weights(steering) == {"v1": 100, "v2": 0}
    assert desk.shown()[0]["who"] == "guard"
    assert desk.shown()[0]["why"].startswith("v2: errors 10 of 100 against 0 of 100")
    await desk.judge()
    assert desk.step_backs == {"m": 1}
    store.is_up = True
    await desk.follow()
    await follower.judge()  # it finds the same, and that it was done
    await follower.follow()
    assert weights(other) == {"v1": 100, "v2": 0}
    assert read(store.text)["m"].number == 2, "it stepped back once"


async def stepped_back() -> tuple[Steering, VersionDesk]:
    """Weights that an operator gave, 70 and 30, of which the guard took the 30 back."""
    steering, desk = made(OneKey(), Guard())
    await order(desk, "set", weights="v2=30")
    for _ in range(100):
        ended(steering, "v1", failed=False)
        ended(steering, "v2", failed=True)
    await desk.judge()
    assert weights(steering) == {"v1": 100, "v2": 0}
    return steering, desk


async def test_going_back_does_not_bring_back_what_the_guard_took_back() -> None:
    steering, desk = await stepped_back()
    status, said = await order(desk, "rollback")
    assert (status, said["stepped_back"]) == (200, ["v2"])
    assert weights(steering) == {"v1": 100, "v2": 0}
    status, said = await order(desk, "rollback")
    assert (status, said["error"]) == (
        400,
        "nothing was changed: there is nothing to go back to: its weights are as configured",
    )


async def test_an_operator_gives_weight_again_to_what_the_guard_took_back() -> None:
    steering, desk = await stepped_back()
    assert (await order(desk, "set", weights="v2=1"))[1]["stepped_back"] == []
    assert weights(steering) == {"v1": 99, "v2": 1}
    assert (await order(desk, "rollback"))[0] == 200
    assert weights(steering) == {"v1": 100, "v2": 0}


async def test_where_all_weights_before_are_what_the_guard_took_back_one_cannot_go_back() -> None:
    steering, desk = made(store := OneKey(), Guard())
    past = ({"v1": 50.0, "v2": 50.0},)
    taken = Chosen(
        number=9,
        weights={"v1": 100.0, "v2": 0.0},
        who="guard",
        why="v2: errors",
        when=1.0,
        past=past,
        stepped=("v2",),
    )
    store.text = written({"m": taken})
    await desk.follow()
    status, said = await order(desk, "rollback")
    assert status == 400
    assert "all weights before give some to what the guard took back (v2)" in said["error"]
    assert weights(steering) == {"v1": 100, "v2": 0}


async def test_a_canary_is_guarded_until_it_has_all() -> None:
    steering, desk = made(OneKey(), Guard())
    for share in ("25", "60"):
        await order(desk, "set", weights=f"v2={share}")
    for _ in range(100):
        ended(steering, "v1", failed=False)
        ended(steering, "v2", failed=True)
    await desk.judge()
    assert weights(steering) == {"v1": 100, "v2": 0}
    await order(desk, "set", weights="v2=100")
    await order(desk, "set", weights="v1=5")  # now the other is the canary
    for _ in range(100):
        ended(steering, "v1", failed=True)
        ended(steering, "v2", failed=False)
    await desk.judge()
    assert weights(steering) == {"v1": 0, "v2": 100}


async def test_what_was_seen_before_a_change_is_shown_beside_what_came_after() -> None:
    steering, desk = made(OneKey(), Guard())
    assert desk.shown()[0]["versions"][0]["before_change"] is None
    for number in range(51):
        ended(steering, "v1", failed=number == 0)
    await order(desk, "set", weights="v2=5")
    row = desk.shown()[0]["versions"][0]
    assert (row["requests"], row["before_change"]) == (
        0,
        {"requests": 51, "errors": 1, "left": 0, "ttft_p99": None},
    )


async def test_a_step_back_that_another_gateway_was_first_with_is_not_counted() -> None:
    store = OneKey()
    (steering, desk), (other, second) = made(store, Guard()), made(store, Guard())
    await order(desk, "set", weights="v2=5")
    await second.follow()
    for each in (steering, other):
        for _ in range(100):
            ended(each, "v1", failed=False)
            ended(each, "v2", failed=True)
    await desk.judge()
    await second.judge()
    assert (desk.step_backs, second.step_backs) == ({"m": 1}, {})


def test_what_is_asked_is_read_strictly() -> None:
    assert weights_of("v1=99.5, v2=0.5") == {"v1": 99.5, "v2": 0.5}
    for bad in ("v1", "=5", "v1=-1", "v1=1e2", "v1=5,", "v1=nan", "v1=+5"):
        with pytest.raises(ValueError, match="is no weight"):
            weights_of(bad)
    assert word({"why": "  as agreed "}, "why") == "as agreed"
