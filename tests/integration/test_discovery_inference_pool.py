"""An InferencePool followed without its controller, against an API server over real HTTP."""

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from extproc.core.membership import Changes
from extproc.io.discovery import Discovery, EnvoySays, Failed, InferencePoolSource
from extproc.io.discovery.kube_api import Access, KubeApi
from tests.integration.kube_server import Following, KubeServer, kube_server
from tests.integration.patience import patient

POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/serving/inferencepools"
PODS = "/api/v1/namespaces/serving/pods"
FIXTURES = Path(__file__).parents[1] / "fixtures" / "discovery"
POD = json.loads((FIXTURES / "pod.json").read_text())
POOL = json.loads((FIXTURES / "inference_pool.json").read_text())


def pod(name: str, ip: str, *, ready: bool = True, app: str = "engine", **meta: Any) -> dict[str, Any]:
    made = copy.deepcopy(POD)
    made["metadata"] |= {"name": name, "labels": {"app": app, "tier": "gold"}, **meta}
    made["status"] |= {"podIP": ip, "podIPs": [{"ip": ip}]}
    made["status"]["conditions"] = [{"type": "Ready", "status": str(ready)}]
    return made


def pool(app: str = "engine", ports: tuple[int, ...] = (8000, 8001), **spec: Any) -> dict[str, Any]:
    made = copy.deepcopy(POOL)
    made["spec"] |= {
        "selector": {"matchLabels": {"app": app, "tier": "gold"}},
        "targetPorts": [{"number": port} for port in ports],
        **spec,
    }
    return made


@pytest.fixture
async def server() -> AsyncIterator[KubeServer]:
    async with kube_server() as made:
        yield made


_ALIKE = EnvoySays(failure_mode="close")  # what a pool asks for that says nothing of it


def source(server: KubeServer, envoy: EnvoySays = _ALIKE) -> InferencePoolSource:
    access = Access(url=f"http://127.0.0.1:{server.port}", namespace="serving")
    api = KubeApi(access, deadline=60.0, quiet=120.0)
    return InferencePoolSource(api, "llama-3.1", "serving", envoy=envoy, limit=100)


def on(ports: tuple[int, ...], *ips: str, terminating: bool = False) -> dict[str, bool]:
    return {f"{ip}:{port}": terminating for ip in ips for port in ports}


# -- the pool and its pods ------------------------------------------------------------------------------------


async def test_every_ready_pod_of_the_selector_is_an_endpoint_for_each_target_port(
    server: KubeServer,
) -> None:
    server.put(POOLS, pool())
    server.put(POOLS, copy.deepcopy(POOL) | {"metadata": {"name": "another"}})
    for name, ip in (("a", "10.0.0.1"), ("b", "10.0.0.2")):
        server.put(PODS, pod(name, ip))
    server.put(PODS, pod("of-another-app", "10.0.0.3", app="web"))
    server.put(PODS, pod("not-ready", "10.0.0.4", ready=False))
    async with Following(source(server)) as heard:
        await heard.until(lambda: heard.found == on((8000, 8001), "10.0.0.1", "10.0.0.2"))
        await heard.until(lambda: server.watching == [PODS, POOLS])
    kind, path, query = server.asked[0]
    assert (kind, path, query["fieldSelector"]) == ("list", POOLS, "metadata.name=llama-3.1")
    listed = next(query for kind, path, query in server.asked if path == PODS)
    assert listed["labelSelector"] == "app=engine,tier=gold"
    assert heard.reasons == []


async def test_pods_become_ready_run_out_and_leave_on_all_their_ports(server: KubeServer) -> None:
    server.put(POOLS, pool())
    server.put(PODS, pod("a", "10.0.0.1"))
    server.put(PODS, pod("b", "10.0.0.2", ready=False))
    both = (8000, 8001)
    async with Following(source(server)) as heard:
        await heard.until(lambda: heard.found == on(both, "10.0.0.1"))
        server.put(PODS, pod("b", "10.0.0.2"))
        await heard.until(lambda: heard.found == on(both, "10.0.0.1", "10.0.0.2"))
        server.put(PODS, pod("a", "10.0.0.1", deletionTimestamp="2026-01-01T00:00:00Z"))
        runs_out = on(both, "10.0.0.1", terminating=True)
        await heard.until(lambda: heard.found == runs_out | on(both, "10.0.0.2"))
        server.delete(PODS, "a")
        await heard.until(lambda: heard.found == on(both, "10.0.0.2"))
        server.put(PODS, pod("b", "10.0.0.2", ready=False))
        await heard.until(lambda: heard.found == {})


async def test_a_pod_may_say_which_of_the_target_ports_it_serves(server: KubeServer) -> None:
    server.put(POOLS, pool(ports=(8000, 8001, 8002)))
    notes = {"inference.networking.k8s.io/active-ports": "8000, 8002, 9000"}
    server.put(PODS, pod("a", "10.0.0.1", annotations=notes))
    server.put(PODS, pod("b", "10.0.0.2", annotations=notes | {"llm-d.ai/active-ports": "8001"}))
    server.put(PODS, pod("c", "10.0.0.3"))
    wanted = on((8000, 8002), "10.0.0.1") | on((8001,), "10.0.0.2") | on((8000, 8001, 8002), "10.0.0.3")
    async with Following(source(server)) as heard:
        await heard.until(lambda: heard.found == wanted)


async def test_another_selector_and_other_ports_are_followed_and_the_set_stays_until_they_are_known(
    server: KubeServer,
) -> None:
    server.put(POOLS, pool())
    server.put(PODS, pod("a", "10.0.0.1"))
    server.put(PODS, pod("b", "10.0.0.2", app="newer"))
    async with Following(source(server)) as heard:
        await heard.until(lambda: heard.found == on((8000, 8001), "10.0.0.1"))
        server.put(POOLS, pool(app="newer"))
        await heard.until(lambda: heard.found == on((8000, 8001), "10.0.0.2"))
        server.put(POOLS, pool(app="newer", ports=(9000,)))
        await heard.until(lambda: heard.found == on((9000,), "10.0.0.2"))
        await heard.until(lambda: server.watching == [PODS, POOLS])  # the watches of before are closed
    assert [len(said.endpoints) for said in heard.said if not isinstance(said, Failed)].count(0) == 0


async def test_a_pool_that_says_the_same_again_is_not_listed_anew(server: KubeServer) -> None:
    server.put(POOLS, pool())
    server.put(PODS, pod("a", "10.0.0.1"))
    async with Following(source(server)) as heard:
        await heard.until(lambda: server.watching == [PODS, POOLS])
        server.put(POOLS, pool() | {"status": {"parents": []}})  # a controller writes its status
        server.put(PODS, pod("b", "10.0.0.2"))
        await heard.until(lambda: heard.found == on((8000, 8001), "10.0.0.1", "10.0.0.2"))
    assert server.count("list", PODS) == 1


# -- pools that are not there ---------------------------------------------------------------------------------


async def test_a_pool_that_is_not_there_is_told_and_found_when_it_is_created(server: KubeServer) -> None:
    server.put(PODS, pod("a", "10.0.0.1"))
    async with Following(source(server)) as heard:
        await heard.until(lambda: "not_found" in heard.reasons)
        failed = heard.said[0]
        assert isinstance(failed, Failed)
        assert "no InferencePool llama-3.1 in namespace serving" in failed.detail
        server.put(POOLS, pool())
        await heard.until(lambda: heard.found == on((8000, 8001), "10.0.0.1"))


async def test_a_pool_that_is_deleted_is_an_empty_answer_and_followed_again_when_it_comes_back(
    server: KubeServer,
) -> None:
    server.put(POOLS, pool())
    server.put(PODS, pod("a", "10.0.0.1"))
    async with Following(source(server)) as heard:
        await heard.until(lambda: heard.found == on((8000, 8001), "10.0.0.1"))
        server.delete(POOLS, "llama-3.1")
        await heard.until(lambda: heard.found == {})
        await heard.until(lambda: server.watching == [POOLS])
        server.put(POOLS, pool(ports=(9000,)))
        await heard.until(lambda: heard.found == on((9000,), "10.0.0.1"))
    assert heard.reasons == []


async def test_nobody_leaves_while_a_deleted_pool_is_created_anew_within_the_grace_period(
    server: KubeServer,
) -> None:
    server.put(POOLS, pool())
    server.put(PODS, pod("a", "10.0.0.1"))
    changes: list[Changes] = []
    discovery = Discovery("pool", [source(server)], changes.append, lambda: 0.0, grace=30.0)
    running = asyncio.create_task(discovery.run())

    async def until(happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(patient(30)):
            while not happened():
                await asyncio.sleep(0.005)

    try:
        await until(lambda: len(discovery.membership.endpoints) == 2)
        server.delete(POOLS, "llama-3.1")
        await until(lambda: discovery.status()[0].doubted is not None)
        assert len(discovery.membership.endpoints) == 2
        server.put(POOLS, pool())
        await until(lambda: discovery.status()[0].doubted is None)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert [change.left for change in changes] == [()]


# -- faults ---------------------------------------------------------------------------------------------------


async def test_versions_that_are_gone_are_listed_anew_both_of_the_pool_and_of_its_pods(
    server: KubeServer,
) -> None:
    server.put(POOLS, pool())
    server.put(PODS, pod("a", "10.0.0.1"))
    async with Following(source(server)) as heard:
        await heard.until(lambda: server.watching == [PODS, POOLS])
        server.put(PODS, pod("z", "10.0.0.9"))
        server.forget()
        server.cut()
        server.delete(PODS, "a")
        server.forget()
        await heard.until(lambda: heard.found == on((8000, 8001), "10.0.0.9"))
        await heard.until(lambda: server.count("list", POOLS) == 2)
    assert server.count("list", PODS) == 2


async def test_while_the_api_server_is_away_the_last_set_stays_and_it_is_told(server: KubeServer) -> None:
    server.put(POOLS, pool())
    server.put(PODS, pod("a", "10.0.0.1"))
    async with Following(source(server)) as heard:
        await heard.until(lambda: server.watching == [PODS, POOLS])
        server.down = True
        server.cut()
        await heard.until(lambda: len(heard.reasons) > 0)
        assert set(heard.reasons) <= {"broken", "connect"}
        assert heard.found == on((8000, 8001), "10.0.0.1")
        server.put(POOLS, pool(ports=(9000,)))
        server.put(PODS, pod("b", "10.0.0.2"))
        server.down = False
        await heard.until(lambda: heard.found == on((9000,), "10.0.0.1", "10.0.0.2"))


async def test_a_cluster_without_the_api_or_without_the_right_to_it_says_how_to_mend_it(
    server: KubeServer,
) -> None:
    for status, reason, hint in ((404, "not_found", "no such resource"), (403, "denied", "rbac.yaml")):
        server.refused = {POOLS: status}
        async with Following(source(server)) as heard:
            await heard.until(lambda: len(heard.reasons) > 0)
            failed = heard.said[0]
            assert isinstance(failed, Failed)
            assert (failed.reason, hint in failed.detail) == (reason, True)


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ({"selector": {"matchLabels": {}}}, "matches every pod"),
        ({"selector": {"matchLabels": {"app": "a b"}}}, "matchLabels"),
        ({"targetPorts": []}, "targetPorts"),
        ({"targetPorts": [{"number": 70000}]}, "targetPorts"),
        ({"targetPorts": [{"number": n} for n in range(1, 10)]}, "targetPorts"),
        ({"targetPorts": 5}, "unknown form"),
        ({"appProtocol": "gopher"}, "unknown form"),
    ],
)
async def test_a_pool_that_cannot_be_followed_is_told_and_the_set_of_before_stays(
    server: KubeServer, spec: dict[str, Any], hint: str
) -> None:
    server.put(POOLS, pool())
    server.put(PODS, pod("a", "10.0.0.1"))
    async with Following(source(server)) as heard:
        await heard.until(lambda: len(heard.found) == 2)
        server.put(POOLS, pool(**spec))
        await heard.until(lambda: "unreadable" in heard.reasons)
        assert hint in next(said.detail for said in heard.said if isinstance(said, Failed))
        server.put(PODS, pod("b", "10.0.0.2"))
        await heard.until(lambda: heard.found == on((8000, 8001), "10.0.0.1", "10.0.0.2"))


# -- what is told of it ---------------------------------------------------------------------------------------


async def test_what_the_pool_asks_for_is_logged_and_where_envoy_was_told_something_else(
    server: KubeServer,
) -> None:
    server.put(PODS, pod("a", "10.0.0.1"))
    server.put(POOLS, pool(appProtocol="kubernetes.io/h2c"))
    with capture_logs() as logs:
        async with Following(source(server, EnvoySays())) as heard:
            await heard.until(lambda: len(heard.found) == 2)
    (read,) = [line for line in logs if line["event"] == "InferencePool read"]
    told = {key: read[key] for key in ("app_protocol", "failure_mode", "picker", "ports", "selector")}
    assert told == {
        "app_protocol": "h2c",
        "failure_mode": "close",
        "picker": "kvsteer",
        "ports": [8000, 8001],
        "selector": "app=engine,tier=gold",
    }
    hints = [line["hint"] for line in logs if line["log_level"] == "warning"]
    assert ["app_protocol: h2c" in hints[0], "failure_mode: close" in hints[1]] == [True, True]
    with capture_logs() as logs:
        async with Following(source(server, EnvoySays(protocol="h2c", failure_mode="close"))) as heard:
            await heard.until(lambda: len(heard.found) == 2)
    assert [line for line in logs if line["log_level"] == "warning"] == []


async def test_closing_it_closes_both_watches(server: KubeServer) -> None:
    server.put(POOLS, pool())
    async with Following(source(server)) as heard:
        await heard.until(lambda: server.watching == [PODS, POOLS])
    async with asyncio.timeout(patient(30)):
        while server.watching:
            await asyncio.sleep(0.005)


async def test_what_the_pods_say_does_not_end_a_failure_of_the_pool(server: KubeServer) -> None:
    server.put(POOLS, pool(ports=(8000,)))
    server.put(PODS, pod("a", "10.0.0.1"))
    joined: list[Changes] = []
    discovery = Discovery("chat", [source(server)], joined.append, asyncio.get_running_loop().time)

    async def until(happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(patient(30)):
            while not happened():
                await asyncio.sleep(0.005)

    def error() -> str:
        return discovery.status()[0].error

    def events() -> list[str]:
        return [line["event"] for line in logs if line["event"].startswith("discovery source")]

    with capture_logs() as logs:
        task = asyncio.create_task(discovery.run())
        try:
            await until(lambda: server.watching == [PODS, POOLS])
            server.put(POOLS, pool(ports=(0,)))
            await until(lambda: error() == "unreadable")
            server.put(PODS, pod("b", "10.0.0.2"))
            await until(lambda: len(discovery.membership.endpoints) == 2)
            assert error() == "unreadable"
            assert events() == ["discovery source fails; the last known replicas stay"]
            server.put(POOLS, pool(ports=(8000,)))  # as it was: its pods have nothing new to say
            await until(lambda: error() == "")
            await until(lambda: events()[1:] == ["discovery source answers again"])
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
