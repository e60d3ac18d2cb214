"""Leases in a real Redis: the same as the rule in pure Python, whatever gateways ask; sent twice, drawn once."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import redis as redis_py
from redis.exceptions import RedisError

from extproc.app import Gateway
from extproc.config import RedisSettings, parse
from extproc.core.admission.board import Asked, Board
from extproc.core.admission.shares import Row
from extproc.core.admission.tenants import Tenant
from extproc.core.states import STEERED
from extproc.io.budget_store import BudgetStore
from tests.integration.redis_server import PROGRAMS, redis_server
from tests.unit.test_admission_server import BASE, Client

A = Tenant(name="a", share=0.5, in_flight=600)
#: So slow that what is refilled while a test runs is less than a token.
B = Tenant(name="b", per_minute=6)
TENANTS = (A, B)


@pytest.fixture(params=PROGRAMS)
def url(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    with redis_server(tmp_path, program=request.param) as (port, _child):
        yield f"redis://127.0.0.1:{port}/0"


def asked(rng: Random) -> dict[str, Asked]:
    used = rng.randrange(0, 100)
    row = Row(used, used + rng.randrange(0, 900), rng.randrange(0, 50), rng.random(), rng.randrange(0, 900))
    return {"a": Asked(row), "b": Asked(row._replace(used=0, hold=rng.randrange(0, 400)))}


async def test_it_leases_exactly_what_the_rule_says(url: str) -> None:
    rng, board = Random(3), Board(TENANTS, 1000, 0.0)
    stores = [BudgetStore(RedisSettings(url=url, deadline=2.0), f"gw-{i}") for i in range(3)]
    for _ in range(100):
        store, ask = rng.choice(stores), asked(rng)
        standing, changed = await store.trade("chat", TENANTS, ask, total=(1000, 2000))
        expected = board.trade(store.gateway, ask, 0.0)
        assert standing.holds == pytest.approx(expected.holds)
        assert standing.total == 1000
        assert not changed
        assert {
            gateway: {n: tuple(row) for n, row in rows.items()} for gateway, rows in standing.rows.items()
        } == {
            gateway: {n: pytest.approx(tuple(row)) for n, row in rows.items()}
            for gateway, rows in expected.rows.items()
        }
    await asyncio.gather(*(store.close() for store in stores))


async def test_a_rate_is_drawn_once_and_what_is_given_back_is_there(url: str) -> None:
    fast = (Tenant(name="b", per_minute=1200),)  # 20 a second, 50 at once
    one, two = (BudgetStore(RedisSettings(url=url, deadline=2.0), name) for name in ("one", "two"))

    async def draw(store: BudgetStore, rate: float) -> float:
        standing, _ = await store.trade("chat", fast, {"b": Asked(Row(), rate)}, total=(1000, 2000))
        return standing.rates["b"]

    assert await draw(one, 40) == 40
    one._number -= 1  # the same trade once more, as after a broken connection
    assert await draw(one, 40) == 40
    assert 10 <= await draw(two, 40) <= 40  # 10 left, and what came meanwhile
    assert await draw(one, -30) == 0
    assert 30 <= await draw(two, 40) <= 40
    await asyncio.gather(one.close(), two.close())


async def test_the_total_is_changed_once_in_a_while(url: str) -> None:
    store = BudgetStore(RedisSettings(url=url, deadline=2.0), "one")
    ask = {tenant.name: Asked(Row()) for tenant in TENANTS}
    first = await store.trade("chat", TENANTS, ask, total=(1000, 2000), proposed=(900, 2100), every=60)
    second = await store.trade("chat", TENANTS, ask, total=(1000, 2000), proposed=(800, 2200), every=60)
    assert (first[0].total, first[0].basis, first[1]) == (900, 2100, True)
    assert (second[0].total, second[0].basis, second[1]) == (900, 2100, False)
    await store.close()


async def test_after_a_fall_of_the_total_nobody_goes_without(url: str) -> None:
    one, two = (BudgetStore(RedisSettings(url=url, deadline=2.0), name) for name in ("one", "two"))
    ask = {"a": Asked(Row(used=70, hold=500)), "b": Asked(Row(used=40, hold=9000))}
    await one.trade("chat", TENANTS, ask, total=(10_000, 20_000))
    mine = {"a": Asked(Row(hold=500)), "b": Asked(Row())}
    fallen, _ = await two.trade("chat", TENANTS, mine, total=(1, 1), proposed=(600, 600))
    assert fallen.holds["a"] == 100  # the cap of 600 less the 500 of the other
    fallen, _ = await two.trade("chat", TENANTS, {"a": Asked(Row()), "b": Asked(Row(hold=500))}, total=(1, 1))
    assert fallen.holds["b"] == 300  # half of 600
    await asyncio.gather(one.close(), two.close())


async def test_who_leaves_frees_its_leases_at_once(url: str) -> None:
    one, two = (BudgetStore(RedisSettings(url=url, deadline=2.0), name) for name in ("one", "two"))
    ask = {"a": Asked(Row(hold=600)), "b": Asked(Row())}
    await one.trade("chat", TENANTS, ask, total=(1000, 2000))
    assert (await two.trade("chat", TENANTS, ask, total=(1000, 2000)))[0].holds["a"] == 0
    await one.leave("chat")
    assert (await two.trade("chat", TENANTS, ask, total=(1000, 2000)))[0].holds["a"] == 600
    await asyncio.gather(one.close(), two.close())


@pytest.mark.parametrize("garbage", ["", "7", "[]", "{", '{"rows":7}', '{"rows":{"a":"x"},"seen":1e99}'])
async def test_garbage_of_another_gateway_is_dropped(url: str, garbage: str) -> None:
    store, direct = BudgetStore(RedisSettings(url=url, deadline=2.0), "one"), redis_py.Redis.from_url(url)
    direct.hset(store.key("chat"), "gateway:bad", garbage)
    direct.hset(store.key("chat"), "total", "many")
    ask = {"a": Asked(Row(hold=600)), "b": Asked(Row(), 5)}
    try:
        standing, _ = await store.trade("chat", TENANTS, ask, total=(1000, 2000))
    except RedisError:
        pass  # told, and the gateway goes on alone
    else:
        assert standing.holds["a"] == 600
    direct.close()
    await store.close()


async def test_a_server_that_lost_everything_goes_on_from_what_gateways_last_knew(url: str) -> None:
    fast = (Tenant(name="b", per_minute=1200),)  # 20 a second, 50 at once
    store, direct = BudgetStore(RedisSettings(url=url, deadline=2.0), "one"), redis_py.Redis.from_url(url)

    async def draw(rate: float, level: float) -> tuple[float, float]:
        ask = {"b": Asked(Row(), rate, level)}
        standing, _ = await store.trade("chat", fast, ask, total=(1000, 2000))
        return standing.rates["b"], standing.levels["b"]

    assert await draw(40, -1) == (40, 10)
    direct.flushall()
    assert await draw(40, 13) == (13, 0)
    direct.flushall()
    assert await draw(40, -1) == (0, 0)  # nothing is known, and it is no new gateway: nothing is given twice
    direct.close()
    await store.close()


async def test_a_cap_holds_over_all_pools_and_gateways_together(url: str) -> None:
    text = BASE.format(mode="on", degrade="[]", wait=0).replace(
        "tokens_in_flight: 100", "tokens_in_flight: 400"
    )
    gateways = [
        Gateway(parse(f"gateway_id: g{i}\nredis: {{url: '{url}'}}\n{text}", "here")) for i in range(2)
    ]
    going = []
    for number in range(16):
        for gateway in gateways:
            assert gateway.admission is not None
            gateway.admission.look()
            await gateway.admission.tick()
            if number >= 4:  # until then they learn of each other, and of the budgets
                going += [Client(gateway, "capped-id").send(40, model)[0] for model in ("large", "small")]
    served = [exchange for exchange in going if exchange.outcome == STEERED]
    # Each takes 44 tokens: nine of them are 398. Each gateway may keep what is too little for one more.
    assert 7 <= len(served) <= 9
    assert {exchange.decision.pool.name for exchange in served if exchange.decision} == {"big", "little"}
    assert "tenant_in_flight" in {exchange.why for exchange in going}
    for gateway in gateways:
        assert gateway.admission is not None
        await gateway.admission.close()
