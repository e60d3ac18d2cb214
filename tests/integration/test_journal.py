"""Gateways that share through a real Redis: what one places the others see, whatever happens to Redis."""

import asyncio
import random
import resource
import signal
import time
from collections.abc import Iterator
from unittest.mock import AsyncMock

import pytest
import redis

from extproc.core.fleet import DOUBTED
from extproc.core.journal import Batch, Engine, Placed, encode, pack_chain
from extproc.core.outcome import Ended
from extproc.core.prompt import Chain
from extproc.core.report import Report
from extproc.core.sample import Sample
from extproc.demo.processes import answers
from extproc.demo.stack import Stack
from extproc.io.intake import TAKEN, Intake
from extproc.io.state_snapshot import Snapshots
from tests.integration.conftest import until_async
from tests.integration.gates import ADDRESSES, Gate, agree, fleet, share
from tests.integration.noise import Span
from tests.integration.patience import bar, patient


@pytest.fixture
def client(server: Stack) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.redis_url) as made:
        made.flushall()
        yield made
        made.config_set("maxmemory", 0)


@pytest.mark.parametrize("count", [2, 4])
async def test_what_one_gateway_places_and_ends_the_others_see(
    server: Stack, client: redis.Redis, count: int
) -> None:
    async with fleet(server.redis_url, count) as gates:
        keys = [[gate.place(100 + number, 200 + i) for i in range(20)] for number, gate in enumerate(gates)]
        await agree(gates)
        assert gates[1].books()[0] == 20 * count
        for number in range(count):
            holders = gates[number].holders(100 + number, 200)
            assert holders
            assert all(gate.holders(100 + number, 200) == holders for gate in gates)
        for number, gate in enumerate(gates):
            for key in keys[number]:
                gate.end(key)
        await agree(gates)
        assert gates[0].books() == (0, 0)
        await share(gates)


async def test_a_gateway_that_stops_is_gone_at_once_and_one_that_dies_after_three_seconds(
    server: Stack, client: redis.Redis
) -> None:
    async with fleet(server.redis_url, 3) as gates:
        for gate in gates:
            gate.place(1, 2)
        await agree(gates)
        await gates[2].sharing.stop()
        await agree(gates[:2], 1.0)
        await gates[1].sharing._tasks.close()  # as if killed: nothing is said
        await agree(gates[:1], 4.0)


async def test_a_replica_that_said_good_bye_to_one_gateway_drains_in_all_until_it_takes_that_back(
    server: Stack, client: redis.Redis
) -> None:
    async with fleet(server.redis_url, 3) as gates:
        intake = Intake([gates[0].pool], lambda _pool, _address: "push")
        gates[0].sharing.shared.leavings.obey = intake.says

        async def states() -> set[str]:
            return {gate.pool.replicas[0].life.state for gate in gates}

        async def all_are(state: str) -> bool:
            return await states() == {state}

        for draining, state in ((True, "quiescing"), (False, "healthy")):
            report = Report(replica=ADDRESSES[0], pool="chat", draining=draining)
            assert intake.reported(report, "http", time.monotonic()) == TAKEN
            await until_async(lambda state=state: all_are(state), 2.0, f"every gateway has it {state}")
            await asyncio.sleep(0.1)  # reports come no faster
        assert {gate.pool.replicas[1].life.state for gate in gates} == {"healthy"}


async def test_samples_of_the_collector_reach_the_others(server: Stack, client: redis.Redis) -> None:
    async with fleet(server.redis_url, 2) as gates:

        async def holder() -> Gate | None:
            return next((g for g in gates if g.sharing.leases.of("collector:chat").held), None)

        first = await until_async(holder, 3.0, "one gateway collects")
        second = gates[1 - gates.index(first)]
        duties = [gate.sharing.duty("chat", 0.5) for gate in gates]
        assert duties[0]("chat", ADDRESSES[0])
        assert duties[1]("chat", ADDRESSES[0])  # nothing was heard yet: each scrapes for itself
        sample = Sample(at=time.monotonic(), running=3.0, kv_used=0.5, started=1e9)
        first.sharing.sampled(first.pool, ADDRESSES[0], sample)

        async def came() -> bool:
            replica = second.pool.get(ADDRESSES[0])
            return replica is not None and replica.sample is not None and replica.sample.running == 3.0

        await until_async(came, 2.0, "the sample reaches the other gateway")
        assert not duties[gates.index(second)]("chat", ADDRESSES[0])


async def test_a_breaker_that_opens_is_doubted_by_the_others_within_a_tenth_of_a_second(
    server: Stack, client: redis.Redis
) -> None:
    async with fleet(server.redis_url, 2) as gates:
        for gate in gates:
            for number in (3, 4):
                gate.pool.join(f"10.0.0.{number}:8000", time.monotonic())
        replica = gates[1].pool.get(ADDRESSES[0])
        assert replica is not None
        took = []
        for turn in range(5):
            for number in range(3):
                ended = Ended(ADDRESSES[0], f"{turn} {number}", None, None, False)
                gates[0].steering.answered(ended, time.monotonic())
            span = Span()

            async def doubted() -> bool:
                return replica.share == DOUBTED

            await until_async(doubted, 2.0, "the other gateway doubts it")
            took.append(span.seconds)
            mine = gates[0].pool.restarted(ADDRESSES[0], time.monotonic())
            assert mine is not None
            replica.doubt(0.0, time.monotonic())
        assert sorted(took)[2] < bar(0.1), took


async def test_redis_killed_and_restarted_empty(server: Stack, client: redis.Redis) -> None:
    async with fleet(server.redis_url, 2) as gates:
        for gate in gates:
            gate.place(1, 2)
        await agree(gates)
        child = server.children["redis"]
        child.kill()
        keys = [gate.place(3, 4) for gate in gates]
        await until_async(lambda: _is_alone(gates[0]), 3.0, "that Redis is gone is known")
        gates[0].end(keys[0])
        child.restart()
        child.wait_until(lambda: answers(int(server.redis_url.rsplit(":")[2].split("/")[0])), patient(5.0))
        await agree(gates)
        assert gates[0].holders(3, 4) == gates[1].holders(3, 4) != set()
        await share(gates)


async def test_redis_paused(server: Stack, client: redis.Redis) -> None:
    async with fleet(server.redis_url, 2) as gates:
        gates[0].place(1, 2)
        await agree(gates)
        child = server.children["redis"]
        child.signal(signal.SIGSTOP)
        try:
            took = []
            for _ in range(50):
                span = Span()
                gates[1].place(5, 6)
                took.append(span.seconds)
                await asyncio.sleep(0.1)
            assert sorted(took)[-5] < 0.1, took  # a few are the machine's
            await until_async(lambda: _is_alone(gates[1]), 3.0, "that Redis is paused is known")
        finally:
            child.signal(signal.SIGCONT)
        await agree(gates)


async def test_redis_full(server: Stack, client: redis.Redis) -> None:
    async with fleet(server.redis_url, 2) as gates:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 1)

        async def degraded() -> bool:
            gates[0].place(7, 8)
            return gates[0].sharing.state == "degraded"

        await until_async(degraded, 5.0, "a full Redis is noticed")
        client.config_set("maxmemory", 0)
        await agree(gates)


async def test_hostile_entries_are_counted_and_harmless(server: Stack, client: redis.Redis) -> None:
    async with fleet(server.redis_url, 2) as gates:
        rng = random.Random(1)
        good = encode(
            Batch("evil", 1, 1, engines=[Engine("chat", ADDRESSES[0])],
                  placed=[Placed(1, 0, 1.0, 10, 0.0, [pack_chain(Chain([1], [1024]))])])
        )  # fmt: skip
        for data in (b"", b"\x91" * 100_000, b"\xff" * 600_000, good[:-3], b"\x92\x63\xc4\x00"):
            client.xadd("kvsteer:journal", {"b": data})
        for _ in range(50):
            client.xadd("kvsteer:journal", {"b": rng.randbytes(200)})
        client.xadd("kvsteer:journal", {"other": "field"})
        gates[0].place(1, 2)
        await agree(gates)
        refusals = gates[1].sharing.counts.refusals
        assert refusals["too_large"] == 1
        assert refusals["schema"] >= 1
        assert sum(refusals.values()) == 56


@pytest.mark.parametrize(
    "name", [f"{2**64 - 1}-{2**64 - 1}", f"{int(time.time() * 1000) + 10**9}-0"], ids=["last", "ahead"]
)
async def test_an_entry_that_nothing_can_follow_is_got_over(
    server: Stack, client: redis.Redis, name: str
) -> None:
    async with fleet(server.redis_url, 2) as gates:
        client.xadd("kvsteer:journal", {"b": b""}, id=name)

        async def anew() -> bool:
            newest = client.xrevrange("kvsteer:journal", count=1)
            return bool(newest) and int(newest[0][0].partition(b"-")[0]) < time.time() * 1000 + 10**6

        await until_async(anew, 5.0, "the journal is begun anew")
        gates[0].place(1, 2)
        await agree(gates, 5.0)
        assert gates[1].books()[0] == 1

        async def whole() -> bool:
            return all(gate.sharing.reach.whole for gate in gates)

        await until_async(
            whole, 13.0, "a snapshot of the new journal is there"
        )  # 10 s where the holder knows none


async def test_an_entry_of_many_megabytes_is_never_fetched(server: Stack, client: redis.Redis) -> None:
    async with fleet(server.redis_url, 2) as gates:
        client.xadd("kvsteer:journal", {"b": b"x" * 2**26})
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        gates[0].place(1, 2)
        await agree(gates)
        assert gates[1].books()[0] == 1
        assert gates[1].sharing.counts.refusals == {"too_large": 1}
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 2**14, f"{grown} KiB for an entry of 65,536"


async def test_a_pool_without_traffic_gets_an_empty_snapshot_and_is_whole(
    server: Stack, client: redis.Redis
) -> None:
    async with fleet(server.redis_url, 2) as gates:

        async def whole() -> bool:
            return all(gate.sharing.reach.whole for gate in gates)

        await until_async(whole, 13.0, "an empty snapshot is written")
        assert client.hget("kvsteer:snapshot:chat", "pairs") == b"0"
        assert client.exists("kvsteer:lease:snapshot:chat")


async def test_a_new_gateway_is_warm_by_snapshot_and_tail(server: Stack, client: redis.Redis) -> None:
    async with fleet(server.redis_url, 1) as (first,):
        for number in range(200):
            first.end(first.place(*(1000 * number + i for i in range(30))))

        async def held() -> bool:
            return first.lease.held

        await until_async(held, 3.0, "the lease is held")
        await first.sharing.snapshots.write(first.pool)
        client.xtrim("kvsteer:journal", maxlen=0)
        first.place(77, 78)
        late = Gate(server.redis_url, "late")
        await late.start()
        try:

            async def warm() -> bool:
                return len(late.pool.index) == len(first.pool.index)

            await until_async(warm, 3.0, f"the index is whole, {len(first.pool.index)} pairs")
            assert late.holders(3000, 3001) == first.holders(3000, 3001)
            assert late.holders(77, 78) == first.holders(77, 78)
            await agree([first, late])
        finally:
            await late.stop()


async def test_a_gateway_that_found_no_snapshot_looks_again(
    server: Stack, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Snapshots, "write", held_back := AsyncMock(return_value=None))
    async with fleet(server.redis_url, 1) as (first,):
        first.end(first.place(1, 2, 3))
        await until_async(lambda: _all_told(first), 2.0, "it is told")
        client.delete("kvsteer:journal")
        late = Gate(server.redis_url, "late")
        await late.start()
        try:

            async def tried() -> bool:
                return held_back.called

            await until_async(tried, 5.0, "a snapshot is due")
            assert not late.holders(1, 2, 3)
            monkeypatch.undo()
            await until_async(lambda: _is_as_warm(late, first), 3.0, "the snapshot that came later is loaded")
            await until_async(lambda: _is_whole(late), 3.0, "and it knows that nothing is missing")
        finally:
            await late.stop()


async def test_a_hole_between_snapshot_and_journal_is_seen_and_mended_by_the_next_snapshot(
    server: Stack, client: redis.Redis
) -> None:
    """As after a full Redis: the journal is cut down to less than lies between it and the last snapshot."""
    async with fleet(server.redis_url, 2) as gates:
        first = gates[0]
        first.end(first.place(1, 2, 3))
        await until_async(lambda: _written(client), 5.0, "a snapshot is written")
        old = client.hgetall("kvsteer:snapshot:chat")
        pieces = {key: client.get(key) for key in client.keys("kvsteer:snapshot:chat:*")}
        first.end(first.place(4, 5, 6))
        await until_async(lambda: _is_as_warm(gates[1], first, 4, 5, 6), 2.0, "it is told")
        client.xtrim("kvsteer:journal", maxlen=0)
        client.hset("kvsteer:snapshot:chat", mapping=old)
        for key, value in pieces.items():
            client.set(key, value)
        late = Gate(server.redis_url, "late")
        await late.start()
        try:
            await until_async(lambda: _is_as_warm(late, first, 4, 5, 6), 4.0, "what was cut off came")
            await until_async(lambda: _is_whole(late), 3.0, "the view is whole")
        finally:
            await late.stop()


async def test_a_snapshot_of_which_a_piece_is_lost_is_not_the_end(server: Stack, client: redis.Redis) -> None:
    async with fleet(server.redis_url, 1) as (first,):
        first.end(first.place(1, 2, 3))
        await until_async(lambda: _written(client), 5.0, "a snapshot is written")
        await until_async(lambda: _all_told(first), 2.0, "it is told")
        for key in client.keys("kvsteer:snapshot:chat:*"):
            client.delete(key)
        client.xtrim("kvsteer:journal", maxlen=0)
        late = Gate(server.redis_url, "late")
        await late.start()
        try:
            await until_async(lambda: _is_as_warm(late, first), 5.0, "another one is written, and loaded")
        finally:
            await late.stop()


async def test_a_gateway_warms_for_a_replica_that_it_discovers_after_the_others(
    server: Stack, client: redis.Redis
) -> None:
    async with fleet(server.redis_url, 1) as (first,):
        for number in range(20):
            first.end(first.place(100 + number, 200 + number))
        await until_async(lambda: _written(client), 5.0, "a snapshot is written")
        late = Gate(server.redis_url, "late")
        late.pool.leave(ADDRESSES[1])
        await late.start()
        try:
            await until_async(lambda: _is_whole(late), 5.0, "the snapshot is loaded")
            assert len(late.pool.index) < len(first.pool.index)
            late.pool.join(ADDRESSES[1], time.monotonic())

            async def equal() -> bool:
                return len(late.pool.index) == len(first.pool.index)

            await until_async(equal, 3.0, "what the others know of it is loaded")
        finally:
            await late.stop()


async def test_a_gateway_that_missed_what_was_cut_off_while_it_was_away_loads_a_snapshot(
    server: Stack, client: redis.Redis
) -> None:
    async with fleet(server.redis_url, 2) as (first, second):
        await until_async(lambda: _is_read(second), 3.0, "it reads")
        reader = second.sharing._reader
        round_, reader._round = reader._round, AsyncMock(side_effect=redis.exceptions.ConnectionError)
        await asyncio.sleep(0.3)
        first.end(first.place(1, 2, 3))
        await until_async(lambda: _all_told(first), 2.0, "it is told")
        client.xtrim("kvsteer:journal", maxlen=0)
        await asyncio.sleep(2.0)
        reader._round = round_
        await until_async(lambda: _is_as_warm(second, first), 5.0, "the snapshot brings what was cut off")


async def _is_alone(gate: Gate) -> bool:
    return gate.sharing.state == "degraded"


async def _is_read(gate: Gate) -> bool:
    return gate.sharing._reader.last > (0, 0)


async def _written(client: redis.Redis) -> bool:
    return bool(client.exists("kvsteer:snapshot:chat"))


async def _is_as_warm(gate: Gate, other: Gate, *hashes: int) -> bool:
    return gate.holders(*(hashes or (1, 2, 3))) == other.holders(*(hashes or (1, 2, 3))) != set()


async def _is_whole(gate: Gate) -> bool:
    return gate.sharing.reach.whole


async def _all_told(gate: Gate) -> bool:
    return not len(gate.sharing.outbox) and not gate.sharing.counts._awaited  # and it came back


async def test_a_garbled_snapshot_is_left_alone(server: Stack, client: redis.Redis) -> None:
    client.hset("kvsteer:snapshot:chat", mapping={"schema": "1", "gen": "ab", "pieces": "3", "position": "x"})
    client.set("kvsteer:snapshot:chat:ab:0", b"\x28\xb5\x2f\xfd" + b"\0" * 50)
    async with fleet(server.redis_url, 1) as (gate,):
        assert await gate.sharing.snapshots.load() == 0
        client.hset("kvsteer:snapshot:chat", "position", "5-1")
        assert await gate.sharing.snapshots.load() == 0


async def test_a_snapshot_of_the_next_schema_is_passed_over_and_counted_once(
    server: Stack, client: redis.Redis
) -> None:
    told = {"schema": "2", "gen": "abcd", "pieces": "1", "position": "5-1", "learned": b"\x92\x90\x90"}
    client.hset("kvsteer:snapshot:chat", mapping=told)
    async with fleet(server.redis_url, 2) as gates:
        for gate in gates:
            await until_async(lambda gate=gate: _refused(gate), 3.0, "it is counted")
        gates[0].place(1, 2)
        await agree(gates)
        assert [gate.sharing.counts.refusals for gate in gates] == [{"snapshot": 1}] * 2
        await share(gates)
        assert client.hget("kvsteer:snapshot:chat", "schema") == b"2", "nobody wrote over it at once"


async def _refused(gate: Gate) -> bool:
    return "snapshot" in gate.sharing.counts.refusals


async def test_a_new_gateway_begins_with_what_was_learned(server: Stack, client: redis.Redis) -> None:
    async with fleet(server.redis_url, 1) as (first,):
        first.end(first.place(1, 2, 3))
        for _ in range(40):
            first.pool.replicas[0].learn(8000.0, 4.0)
            first.pool.output.observe("m", "chat", 100, 900)
        client.delete("kvsteer:snapshot:chat")
        await until_async(lambda: _written(client), 5.0, "a snapshot is written")
        late = Gate(server.redis_url, "late")
        await late.start()
        try:
            await until_async(lambda: _is_whole(late), 4.0, "the snapshot is loaded")
            assert late.pool.replicas[0].prefill_speed == first.pool.replicas[0].prefill_speed < 3000
            said = [gate.pool.output.predict("m", "chat", 100) for gate in (late, first)]
            assert said[0] == pytest.approx(said[1])
        finally:
            await late.stop()
