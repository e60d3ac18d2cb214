"""Who loads: in which order, asked right before, and what becomes of failures. Engines are played."""

import asyncio
from collections.abc import Callable

import pytest
import structlog

from extproc.core.adapter_loads import Loading, LoadRules
from extproc.core.adapters import AdapterRules, Adapters
from extproc.core.pool import Pool
from extproc.core.prompt import Prompt
from extproc.core.sample import Sample
from extproc.engines import get
from extproc.engines.adapter_calls import ALREADY, DONE, FAILED, REFUSED, UNSUPPORTED
from extproc.io.adapter_api import AdapterApi, Result
from extproc.io.adapter_loader import Loader

ADDRESS = "10.0.0.1:8000"


class Engine:
    """Notes what it is asked, and answers as it is told."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.load_result = self.unload_result = DONE
        self.meanwhile: Callable[[], None] = lambda: None

    async def load(self, _address: str, name: str, path: str) -> Result:
        assert path == f"/lora/{name}"
        self.asked.append(("load", name))
        self.meanwhile()
        return Result(self.load_result, "said so")

    async def unload(self, _address: str, name: str) -> Result:
        self.asked.append(("unload", name))
        return Result(self.unload_result, "said so")

    async def close(self) -> None:
        pass


class Client:
    def due(self, now: float) -> None:
        pass


class World:
    """One replica with one place, and a clock."""

    def __init__(self, *, leads: bool = True, notice: float = 0.0) -> None:
        self.now, self.leads = 100.0, leads
        self.pool = Pool("p", models=["base"], now=0.0)
        self.adapters = Adapters(AdapterRules(names={"a": "base", "b": "base"}))
        self.pool.adapters = self.adapters
        rules = LoadRules(paths={"a": "/lora/a", "b": "/lora/b"}, most=1, idle=10.0)
        self.loading = self.adapters.loading = Loading(self.adapters, rules)
        self.replica = self.pool.join(ADDRESS, 0.0)
        self.pool.observe(ADDRESS, Sample(at=100.0, running=0.0, waiting=0.0, adapters=()))
        self.engine = Engine()
        self.loader = Loader(
            self.pool,
            self.loading,
            self.engine,  # type: ignore[arg-type]
            lambda: self.leads,
            notice,
            lambda: self.now,
        )

    def wants(self, name: str) -> None:
        prompt = Prompt(dialect="openai_chat", kind="generate", model=name)
        assert self.adapters.keeps(Client(), 1, prompt, self.pool.replicas, self.now)

    async def look(self) -> None:
        """Look once, and wait for what was begun."""
        self.loader.look()
        while self.loader.busy:
            await asyncio.sleep(0)

    @property
    def listed(self) -> frozenset[str] | None:
        return self.adapters.listing(self.replica)

    def calls(self) -> dict[tuple[str, str], int]:
        return dict(self.loading.calls)


async def test_what_makes_room_goes_before_the_new_one_comes() -> None:
    world = World()
    world.adapters.listed(world.replica, {"b": "base"})
    world.wants("a")
    await world.look()
    assert world.engine.asked == [("unload", "b"), ("load", "a")]
    assert world.listed == {"a"}
    assert world.calls() == {("unload", DONE): 1, ("load", DONE): 1}


async def test_what_is_too_many_goes_though_nobody_asks_and_before_a_load() -> None:
    world = World(notice=0.01)
    world.adapters.listed(world.replica, {"a": "base", "b": "base"}, asked=100.0)
    await world.look()
    assert world.engine.asked == [("unload", "a")]
    assert world.listed == {"b"}
    await world.look()
    assert world.calls() == {("unload", DONE): 1}


async def test_a_replica_that_no_load_fits_is_told_of_once() -> None:
    world = World()
    world.adapters.listed(world.replica, {"static": "base"})
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            await world.look()
            world.now += 10.0
    assert [it["replica"] for it in logs if it["log_level"] == "warning"] == [ADDRESS]


async def test_who_does_not_lead_loads_nothing() -> None:
    world = World(leads=False)
    world.adapters.listed(world.replica, {})
    world.wants("a")
    await world.look()
    assert world.engine.asked == []


async def test_who_comes_to_load_asks_what_is_listed_before() -> None:
    world = World(notice=0.01)
    world.adapters.listed(world.replica, {}, asked=99.0)
    world.wants("a")
    await world.look()
    assert world.engine.asked == [], "the one before may have loaded something since"
    assert world.adapters.doubted == {world.replica.slot}
    world.adapters.listed(world.replica, {}, asked=100.0)
    await world.look()
    assert world.engine.asked == [("load", "a")]


async def test_what_was_loaded_already_is_as_good_as_loaded() -> None:
    world = World()
    world.adapters.listed(world.replica, {})
    world.engine.load_result = ALREADY
    world.wants("a")
    await world.look()
    assert world.listed == {"a"}


@pytest.mark.parametrize("result", [FAILED, UNSUPPORTED])
async def test_a_replica_that_fails_is_asked_what_it_serves_and_rests(result: str) -> None:
    world = World()
    world.adapters.listed(world.replica, {})
    world.engine.load_result = result
    world.wants("a")
    await world.look()
    assert (world.listed, world.loading.refused(100.0)) == (None, {})
    world.adapters.listed(world.replica, {})
    assert world.loading.plan(world.pool.replicas, 101.9) is None
    assert world.loading.plan(world.pool.replicas, 102.0) is not None


async def test_an_adapter_that_is_refused_rests() -> None:
    world = World()
    world.adapters.listed(world.replica, {})
    world.engine.load_result = REFUSED
    world.wants("a")
    await world.look()
    assert (world.listed, world.loading.refused(100.0)) == (frozenset(), {"a": 2.0})


async def test_what_does_not_go_keeps_its_place() -> None:
    world = World()
    world.adapters.listed(world.replica, {"b": "base"})
    world.engine.unload_result = FAILED
    world.wants("a")
    await world.look()
    assert world.engine.asked == [("unload", "b")]
    assert world.listed is None, "it is to say itself whether it went"


async def test_what_is_used_after_it_was_announced_stays() -> None:
    world = World(notice=0.01)
    world.adapters.listed(world.replica, {"b": "base"})
    world.wants("a")
    world.loader.look()
    assert world.listed == frozenset(), "nobody is sent there any more"
    world.loading.use.told("other", {ADDRESS: {"b": 0.0}}, 100.5)
    world.now = 101.0
    while world.loader.busy:
        await asyncio.sleep(0)
    assert (world.engine.asked, world.listed) == ([], {"b"})


async def test_a_lease_that_was_lost_meanwhile_is_noticed_before_anything_goes() -> None:
    world = World(notice=0.01)
    world.adapters.listed(world.replica, {"b": "base"})
    world.wants("a")
    world.loader.look()
    world.leads = False
    while world.loader.busy:
        await asyncio.sleep(0)
    assert (world.engine.asked, world.listed) == ([], {"b"})


async def test_an_engine_that_restarts_meanwhile_is_not_believed_to_have_it() -> None:
    world = World()
    world.adapters.listed(world.replica, {})
    world.engine.meanwhile = lambda: world.pool.restarted(ADDRESS, 100.0) and None
    world.wants("a")
    await world.look()
    (new,) = world.pool.replicas
    assert world.adapters.listing(new) is None
    assert world.adapters.listing(world.replica) is None


async def test_what_is_under_way_ends_with_the_gateway() -> None:
    world = World(notice=3600.0)
    world.adapters.listed(world.replica, {"b": "base"})
    world.wants("a")
    task = asyncio.create_task(world.loader.run())
    while not world.loader.busy:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (world.loader.busy, world.engine.asked) == (0, [])


async def test_nobody_there_is_a_failure_and_no_exception() -> None:
    calls = get("vllm").adapter_calls
    assert calls is not None
    server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    api = AdapterApi(calls, 5.0, None)
    result, _ = await api.load(f"127.0.0.1:{port}", "a", "/lora/a")
    server.close()
    await server.wait_closed()
    refused, _ = await api.unload(f"127.0.0.1:{port}", "a")
    await api.close()
    assert (result, refused) == (FAILED, FAILED)


async def test_a_call_that_gets_no_answer_ends() -> None:
    calls = get("vllm").adapter_calls
    assert calls is not None
    over = asyncio.Event()

    async def hang(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    api = AdapterApi(calls, 0.05, None)
    result = await api.load(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", "a", "/lora/a")
    over.set()
    await api.close()
    server.close()
    await server.wait_closed()
    assert result == Result(FAILED, "no answer within 0.05 s")
