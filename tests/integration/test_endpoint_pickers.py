"""Conformance cases that need two pools, each with a picker of its own: 5, 7 and 8 of the suite, before one Envoy."""

import asyncio
import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
import yaml

from extproc.demo.processes import free_port
from extproc.demo.stack import Stack, StackSettings
from extproc.envoyconfig import render
from extproc.envoyconfig.yamltext import to_yaml
from tests.integration.conftest import until
from tests.integration.witness import Witnesses, WitnessStack, witnesses

BODY = {"model": "demo", "messages": [{"role": "user", "content": "hello " * 50}]}
_PER_ROUTE = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
_POOL = "kvsteer_pool_demo"
_GATEWAYS = "kvsteer_gateways"


class TwoPickers(WitnessStack):
    """The first gateway has the first half of the replicas, the second the other."""

    second_port = 0

    def configuration(self, number: int) -> dict[str, Any]:
        made = super().configuration(number)
        half = len(self.replicas) // 2
        made["pools"][0]["replicas"] = self.replicas[number * half : (number + 1) * half]
        made["envoy"]["gateways"] = made["envoy"]["gateways"][number : number + 1]
        return made


def asks(number: int) -> dict[str, Any]:
    """Which picker a route asks."""
    service = {"envoy_grpc": {"cluster_name": f"{_GATEWAYS}-{number}"}}
    config = {"@type": _PER_ROUTE, "overrides": {"grpc_service": service}}
    return {"typed_per_filter_config": {"envoy.filters.http.ext_proc": config}}


def two_pools(first: dict[str, Any], second: dict[str, Any], port: int) -> str:
    """One Envoy for both: routes for each, one that splits 70 to 30, and a listener of the second alone."""
    tree = copy.deepcopy(first)
    resources = tree["static_resources"]
    clusters = []
    for number, each in enumerate((first, second)):
        for cluster in copy.deepcopy(each["static_resources"]["clusters"]):
            cluster["name"] += f"-{number}"
            cluster["load_assignment"]["cluster_name"] += f"-{number}"
            clusters.append(cluster)
    resources["clusters"] = [*clusters, *copy.deepcopy(first["static_resources"]["clusters"])]
    split = {"clusters": [{"name": f"{_POOL}-{n}", "weight": w, **asks(n)} for n, w in ((0, 70), (1, 30))]}
    routes = [
        {"match": {"prefix": f"/{n}/"}, "route": {"cluster": f"{_POOL}-{n}"}, **asks(n)} for n in (0, 1)
    ]
    routes.append({"match": {"prefix": "/"}, "route": {"weighted_clusters": split}})
    listener = resources["listeners"][0]
    other = copy.deepcopy(listener)
    other["name"] = "other"
    other["address"]["socket_address"]["port_value"] = port
    for each, these in ((listener, routes), (other, [{**routes[1], "match": {"prefix": "/"}}])):
        manager = each["filter_chains"][0]["filters"][0]["typed_config"]
        manager["route_config"]["virtual_hosts"][0]["routes"] = these
    resources["listeners"].append(other)
    return to_yaml(tree)


@pytest.fixture(scope="module")
def replicas() -> Iterator[Witnesses]:
    with witnesses(6) as running:
        yield running


@pytest.fixture(scope="module", params=["buffered", "full_duplex"])
def stack(request: pytest.FixtureRequest, replicas: Witnesses) -> Iterator[TwoPickers]:
    envoy = {"request_body_mode": request.param, "retries": 0, "access_log": False}
    made = TwoPickers(
        replicas, StackSettings(gateways=2, envoy=envoy, gateway={"feedback": {"source": "off"}})
    )
    made.second_port = free_port()

    def both(settings: Any) -> str:
        second = type(settings).model_validate(made.configuration(1))
        return two_pools(yaml.safe_load(render(settings)), yaml.safe_load(render(second)), made.second_port)

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("extproc.demo.stack.render", both)
            made.start()
        until(lambda: steered(made) == [True, True], 10, "both pickers are asked")
        yield made
    finally:
        made.close()


def steered(stack: Stack) -> list[bool]:
    for pool in (0, 1):
        asked(stack.port, f"/{pool}/v1/models", 1)
    return [bool(stack.admin("/decisions?last=1", number)["decisions"]) for number in (0, 1)]


def asked(port: int, path: str, requests: int) -> Counter[str]:
    """Who answered so many requests, ten at a time."""

    async def one(session: aiohttp.ClientSession, turns: asyncio.Semaphore) -> str:
        async with turns, session.post(f"http://127.0.0.1:{port}{path}", json=BODY) as got:
            assert got.status == 200, await got.text()
            return str((await got.json())["at"])

    async def everything() -> list[str]:
        async with aiohttp.ClientSession() as session:
            turns = asyncio.Semaphore(10)
            return await asyncio.gather(*(one(session, turns) for _ in range(requests)))

    return Counter(asyncio.run(everything()))


def test_5_two_pools_get_their_parts_and_each_picker_picks_of_its_own(
    stack: TwoPickers, replicas: Witnesses
) -> None:
    """GatewayWeightedAcrossTwoInferencePools: 0.1459 is 4.5 standard deviations, 4.5 * sqrt(0.7 * 0.3 / 200)."""
    served = asked(stack.port, "/v1/chat/completions", 200)
    first = sum(served[address] for address in replicas.addresses[:3])
    assert served.total() == 200
    assert abs(first / 200 - 0.7) <= 0.1459


def test_7_listeners_lead_to_their_own_pools(stack: TwoPickers, replicas: Witnesses) -> None:
    """HTTPRouteMultipleGatewaysDifferentPools."""
    assert set(asked(stack.second_port, "/v1/chat/completions", 30)) <= set(replicas.addresses[3:])
    assert set(asked(stack.port, "/0/v1/chat/completions", 30)) <= set(replicas.addresses[:3])


def test_8_rules_of_one_route_lead_to_their_own_pools(stack: TwoPickers, replicas: Witnesses) -> None:
    """HTTPRouteMultipleRulesDifferentPools; each picker decided on its own requests."""
    before = [len(stack.admin("/decisions?last=1000", number)["decisions"]) for number in (0, 1)]
    for pool in (0, 1):
        assert set(asked(stack.port, f"/{pool}/v1/chat/completions", 30)) <= set(
            replicas.addresses[pool * 3 : pool * 3 + 3]
        )
    after = [len(stack.admin("/decisions?last=1000", number)["decisions"]) for number in (0, 1)]
    assert [b - a for a, b in zip(before, after, strict=True)] == [30, 30]
