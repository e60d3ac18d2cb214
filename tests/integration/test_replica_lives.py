"""Replicas that fail, push back, die and restart, through the real Envoy under load."""

import asyncio
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

import aiohttp
import orjson
import pytest
import redis

from extproc.demo.drive import Outcome, ask
from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import QUICK, until
from tests.integration.noise import Span
from tests.integration.patience import bar, patient


@pytest.fixture
def stack() -> Iterator[Stack]:
    settings = StackSettings(replicas=4, engine=QUICK, engine_processes=4, redis_url="")
    with Stack(settings) as running:
        yield running


def control(replica: str, **what: Any) -> None:
    request = urllib.request.Request(
        f"http://{replica}/_control", json.dumps(what).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=patient(5)) as answer:
        assert answer.status == 200


def excluded(stack: Stack, replica: str) -> str | None:
    rows = {row["replica"]: row for row in stack.admin("/replicas")["replicas"]}
    return str(rows[replica]["excluded"]) if rows[replica]["excluded"] else None


async def load(stack: Stack, seconds: float, rate: float = 80.0) -> list[Outcome]:
    tasks, began = [], time.monotonic()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        for number in range(int(rate * seconds)):
            await asyncio.sleep(began + number / rate - time.monotonic())
            messages = [{"role": "user", "content": f"{began} {number} " * 20}]
            body = {"model": "demo", "messages": messages, "max_tokens": 4, "stream": True}
            tasks.append(asyncio.create_task(ask(session, stack.url, orjson.dumps(body))))
        return list(await asyncio.gather(*tasks))


def per_replica(outcomes: list[Outcome]) -> Counter[str]:
    return Counter(o.replica for o in outcomes)


async def test_a_replica_that_fails_fast_gets_next_to_nothing_and_recovers(stack: Stack) -> None:
    bad = stack.replicas[0]
    control(bad, error={"status": 500, "share": 1.0})
    await load(stack, 2.0)
    during = per_replica(await load(stack, 4.0))
    assert during[bad] < 0.02 * during.total(), during
    assert excluded(stack, bad) == "breaker"
    control(bad, error=None)
    mended = time.monotonic()
    while (after := per_replica(await load(stack, 2.0, rate=40.0)))[bad] <= 0.1 * after.total():
        assert time.monotonic() - mended < patient(10), after


async def test_a_replica_that_pushes_back_is_left_alone_and_its_breaker_stays_closed(stack: Stack) -> None:
    full = stack.replicas[1]
    control(full, error={"status": 429, "share": 1.0, "retry_after": 5})
    await load(stack, 1.0)
    until(lambda: excluded(stack, full) == "pushback", 2, "the pushback is known")
    control(full, error=None)
    began = time.monotonic()
    during = per_replica(await load(stack, 3.0))
    assert during[full] == 0, during
    until(lambda: excluded(stack, full) is None, 6, "it is back")
    assert time.monotonic() - began > 3.0


async def test_every_gateway_learns_of_failures_and_pushback_whoever_sent_the_request() -> None:
    settings = StackSettings(replicas=4, gateways=2, engine=QUICK, engine_processes=4)
    with Stack(settings) as stack:
        bad, full = stack.replicas[0], stack.replicas[1]
        control(bad, error={"status": 500, "share": 1.0})
        control(full, error={"status": 429, "share": 1.0, "retry_after": 5})
        await load(stack, 2.0)
        during = per_replica(await load(stack, 2.5))
        assert during[bad] < 0.02 * during.total() + 2, during
        assert during[full] < 0.02 * during.total() + 2, during
        for number in (0, 1):
            rows = {row["replica"]: row for row in stack.admin("/replicas", number)["replicas"]}
            assert rows[bad]["excluded"] == "breaker", f"gateway {number} did not learn of the failures"
            assert rows[full]["excluded"] == "pushback", f"gateway {number} did not learn of the pushback"


async def test_a_killed_replica_is_out_within_a_second_and_warms_up_when_it_is_back(stack: Stack) -> None:
    victim = stack.replicas[2]
    running = asyncio.create_task(load(stack, 6.0))
    await asyncio.sleep(1.0)
    stack.children["engine-2"].kill()
    killed = Span(stack.children["gateway-0"].pid)
    await asyncio.to_thread(until, lambda: excluded(stack, victim) == "backoff", 5, "its death is known")
    took = killed.seconds
    outcomes = await running
    assert took <= bar(1.0), f"known after {took:.2f} s"
    cut = [o for o in outcomes if o.failure]
    assert len(cut) <= bar(8), f"{len(cut)} requests failed: {Counter(o.failure for o in cut)}"


async def test_a_restart_in_place_forgets_what_was_believed_of_its_cache(stack: Stack) -> None:
    await load(stack, 1.0)
    target = next(row for row in stack.admin("/replicas")["replicas"] if row["index_entries"])["replica"]
    control(target, restart={"down": 0.3})

    def restarted() -> bool:
        row = next(r for r in stack.admin("/replicas")["replicas"] if r["replica"] == target)
        return bool(row["incarnation"] == 2)

    until(restarted, 8, "the restart is noticed")
    row = next(r for r in stack.admin("/replicas")["replicas"] if r["replica"] == target)
    assert row["index_entries"] == 0
    assert row["excluded"] == "warming"


def kvsteer(stack: Stack, *arguments: str) -> "subprocess.CompletedProcess[str]":
    admin = f"http://127.0.0.1:{stack.gateway_ports[0][1]}"
    argv = [sys.executable, "-m", "extproc", *arguments, "--admin", admin]
    return subprocess.run(argv, capture_output=True, text=True, timeout=patient(60))


async def test_a_drained_replica_gets_nothing_new_at_once_and_its_streams_finish(stack: Stack) -> None:
    target = stack.replicas[3]
    running = asyncio.create_task(load(stack, 6.0))
    await asyncio.sleep(2.0)
    done = await asyncio.to_thread(kvsteer, stack, "drain", target, "--deadline", "10m", "--json")
    ordered = time.time()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["requests"] == 0
    outcomes = await running
    assert not [o.failure for o in outcomes if o.failure]
    later = [
        r
        for r in stack.admin("/decisions?last=1000")["decisions"]
        if r["choice"] == target and r["at"] > ordered + 0.1
    ]
    assert not later, f"{len(later)} requests were sent there after the drain"
    assert excluded(stack, target) == "quiescing"
    assert "quiescing" in kvsteer(stack, "replicas").stdout
    assert kvsteer(stack, "undrain", target).returncode == 0
    assert excluded(stack, target) is None


def test_orders_for_unknown_replicas_and_bad_deadlines_are_refused(stack: Stack) -> None:
    done = kvsteer(stack, "drain", "10.9.9.9:1", "--no-wait")
    assert done.returncode == 2
    assert "no replica '10.9.9.9:1'; there are: 127.0.0.1:" in done.stderr
    done = kvsteer(stack, "drain", stack.replicas[0], "--deadline", "soon")
    assert done.returncode == 2
    assert "write for example 90s" in done.stderr


def test_a_drain_reaches_the_other_gateway_and_a_restarted_one() -> None:
    with Stack(StackSettings(replicas=2, gateways=2, engine=QUICK)) as stack:
        target = stack.replicas[0]
        assert kvsteer(stack, "drain", target, "--no-wait").returncode == 0

        def state(number: int) -> str:
            rows = stack.admin("/replicas", number)["replicas"]
            return str(next(row["state"] for row in rows if row["replica"] == target))

        assert state(0) == "quiescing"
        until(lambda: state(1) == "quiescing", 8, "the other gateway follows")
        gateway = stack.children["gateway-1"]
        gateway.kill()
        gateway.restart()
        stack.wait_gateway(1, gateway)
        until(lambda: state(1) == "quiescing", 8, "a restarted gateway follows")
        assert kvsteer(stack, "undrain", target).returncode == 0
        until(lambda: state(1) == "healthy", 8, "the end of the drain is followed")


@pytest.mark.alone
async def test_a_slow_replica_is_found_weighted_down_and_back_when_it_is_well(pace: int) -> None:
    engine = [*QUICK, "--step-ms", "20"]
    with Stack(StackSettings(replicas=4, engine=engine, engine_processes=4, redis_url="")) as stack:
        slow = stack.replicas[0]
        control(slow, slow=2.5)  # 40 % of its speed

        def share() -> float:
            rows = stack.admin("/replicas")["replicas"]
            return float(next(row["share"] for row in rows if row["replica"] == slow))

        await load(stack, 10.0 if pace > 1 else 25.0, rate=40.0)
        assert 0.25 <= share() <= 0.55, f"share {share()} when it should be known"
        during = per_replica(await load(stack, 6.0, rate=40.0))
        fair = during.total() / 4
        assert 0.25 * fair <= during[slow] <= 0.55 * fair, during
        control(slow, slow=1.0)
        began = time.monotonic()
        while share() < 1.0:
            assert time.monotonic() - began < 120, f"share {share()} two minutes after it was well"
            await load(stack, 2.0, rate=40.0)


async def test_every_replica_failing_is_answered_and_recovered_from(stack: Stack) -> None:
    for replica in stack.replicas:
        control(replica, error={"status": 500, "share": 1.0})
    during = await load(stack, 3.0)
    assert Counter(o.failure for o in during) == {"status 500": len(during)}, (
        "the engines' own answers, no 503"
    )
    for replica in stack.replicas:
        control(replica, error=None)
    await load(stack, 10.0, rate=20.0)
    after = await load(stack, 1.0)
    assert not [o.failure for o in after if o.failure]
    assert all(row["breaker"] == "closed" for row in stack.admin("/replicas")["replicas"])


def test_a_drain_outlives_an_emptied_redis_and_no_web_page_may_order_one() -> None:
    with Stack(StackSettings(replicas=2, engine=QUICK)) as stack:
        target = stack.replicas[0]
        assert kvsteer(stack, "drain", target, "--no-wait").returncode == 0
        with redis.Redis.from_url(stack.redis_url) as client:
            until(lambda: client.hexists("kvsteer:operator:demo", target), 8, "the order stands in Redis")
            client.flushall()
            until(lambda: client.hexists("kvsteer:operator:demo", target), 8, "the order is said again")
        assert excluded(stack, target) == "quiescing"
        url = f"http://127.0.0.1:{stack.gateway_ports[0][1]}/replicas/{target}/undrain"
        request = urllib.request.Request(url, b"", {"origin": "https://evil.example"}, method="POST")
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(request, timeout=patient(5))
        assert excluded(stack, target) == "quiescing"
