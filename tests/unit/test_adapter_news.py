"""What gateways tell each other of adapters, as it comes out of Redis: read strictly, and only while it is fresh."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from extproc.config import RedisSettings
from extproc.core.adapter_loads import Loading, LoadRules
from extproc.core.adapters import AdapterRules, Adapters
from extproc.core.pool import Pool
from extproc.core.sample import Sample
from extproc.io.adapter_news import News

ADDRESS = "10.0.0.1:8000"
#: Redis TIME of an answer, in ms, and the clock here.
REDIS, HERE = 1_000_000, 50.0


class World:
    def __init__(self) -> None:
        self.pool = Pool("p", models=["base"], now=0.0)
        self.adapters = self.pool.adapters = Adapters(AdapterRules(names={"a": "base", "b": "base"}))
        rules = LoadRules(paths={"a": "/lora/a", "b": "/lora/b"})
        self.loading = self.adapters.loading = Loading(self.adapters, rules)
        self.replica = self.pool.join(ADDRESS, 0.0)
        self.pool.observe(ADDRESS, Sample(at=49.0, running=0.0, waiting=0.0, started=7.0))
        self.adapters.listed(self.replica, {})
        redis = RedisSettings(url="redis://127.0.0.1:1/0")
        self.news = News(redis, self.pool, self.adapters, self.loading, "me", lambda: HERE)

    def hear(self, *, leads: bool = False, age: float = 0.0, **fields: bytes) -> None:
        """Fields with their values, written so many seconds ago; `row` is that of who loads."""
        stamp = str(int(REDIS - 1000 * age)).encode()
        answer = [str(REDIS).encode()]
        for name, value in fields.items():
            answer += [b"*" if name == "row" else name.encode(), stamp + b"|" + value]
        self.news._hear(answer, leads=leads)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    asyncio.run(made.news.close())


def test_what_others_wait_for_and_use_counts_here(world: World) -> None:
    world.hear(other=b'{"wants": ["a"], "uses": {"10.0.0.1:8000": {"b": 2.5}}}', age=1.0)
    assert world.loading.wanted == {"other": ("a",)}
    assert world.loading.use.last(world.replica, "b", HERE) == HERE - 1.0 - 2.5


def test_what_is_old_or_ones_own_does_not(world: World) -> None:
    world.hear(other=b'{"wants": ["a"]}', age=5.1)
    world.hear(me=b'{"wants": ["a"]}')
    assert world.loading.wanted == {}


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b'{"wants": "a"}',
        b'{"wants": [1]}',
        b'{"uses": {"10.0.0.1:8000": {"b": -1}}}',
        b'{"uses": {"10.0.0.1:8000": {"": 1}}}',
        b'{"wants": ["' + b"x" * 300 + b'"]}',
        b"\xff",
    ],
)
def test_what_is_garbled_is_passed_over(world: World, value: bytes) -> None:
    world.hear(other=value)
    world.hear(row=value)
    world.news._hear(
        [str(REDIS).encode(), b"other", b"no stamp", b"*", b"99999999999999999999|{}"], leads=False
    )
    assert world.loading.wanted == {}
    assert world.adapters.listing(world.replica) == frozenset()


def test_who_does_not_load_learns_what_is_served_and_refused(world: World) -> None:
    world.hear(
        row=b'{"listed": {"10.0.0.1:8000": [7.0, ["a"]]}, "refused": {"b": 4.0, "no-path": 4.0}}', age=1.0
    )
    assert world.adapters.listing(world.replica) == {"a"}
    assert world.loading.refused(HERE) == {"b": 3.0}
    world.hear(row=b'{"listed": {"10.0.0.1:8000": [7.0, []]}}')
    assert world.adapters.listing(world.replica) == frozenset()


def test_what_another_incarnation_served_says_nothing(world: World) -> None:
    world.hear(row=b'{"listed": {"10.0.0.1:8000": [6.0, ["a"]], "10.0.0.9:8000": [7.0, ["a"]]}}')
    assert world.adapters.listing(world.replica) == frozenset()


def test_who_loads_knows_better(world: World) -> None:
    world.hear(row=b'{"listed": {"10.0.0.1:8000": [7.0, ["a"]]}}', leads=True)
    assert world.adapters.listing(world.replica) == frozenset()


def test_what_is_told_is_what_is_used_and_waited_for(world: World) -> None:
    world.loading.use.began(1, world.replica.slot, "a", 10.0)
    world.loading.use.touched(world.replica.slot, "b", 45.0)
    told = world.news._told()
    assert told.uses == {ADDRESS: {"a": 0.0, "b": 5.0}}
    assert world.news._row().listed == {ADDRESS: (7.0, [])}


def test_loads_of_the_last_minute_are_handed_over_however_old_the_word(world: World) -> None:
    world.loading.others_began([HERE - 10.0, HERE - 59.0], HERE)
    row = world.news._row()
    assert row.begun == [59.0, 10.0]
    other = World()
    other.hear(row=b'{"begun": [59.0, 10.0, 4.0]}', age=20.0)
    assert list(other.loading.begun(HERE)) == [HERE - 30.0, HERE - 24.0], "the first is 79 s ago"
    other.hear(row=b'{"listed": {"10.0.0.1:8000": [7.0, ["a"]]}}', age=20.0)
    assert other.adapters.listing(other.replica) == frozenset(), "of what is served old news say nothing"


async def test_who_comes_to_load_hears_once_before_it_tells(world: World) -> None:
    rows = []

    async def eval_(_script: object, _keys: int, _key: str, *args: object) -> list[bytes]:
        rows.append(args[4])
        return [str(REDIS).encode(), b"*", str(REDIS).encode() + b'|{"begun": [1.0, 2.0]}']

    world.news._redis = SimpleNamespace(eval=eval_, aclose=world.news._redis.aclose)  # type: ignore[assignment]
    await world.news.trade(5)
    assert rows == [""]
    assert world.news.heard_as == 5
    await world.news.trade(5)
    assert b'"begun":[2.0,1.0]' in str(rows[1]).encode()
    await world.news.trade(0)
    await world.news.trade(7)
    assert rows[2:] == ["", ""], "it came to load anew"


async def test_a_redis_that_does_not_answer_raises_nothing(world: World) -> None:
    await world.news.trade(0)
    assert world.loading.wanted == {}
