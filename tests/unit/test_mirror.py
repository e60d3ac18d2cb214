"""Requests that Envoy sends to another pool too."""

from random import Random

import pytest

from extproc.config import parse
from extproc.core.exchange import Exchange
from extproc.core.mirror import Mirror
from extproc.core.pool import Pool
from extproc.core.steering import Rules, Steering
from extproc.envoyconfig import bootstrap
from extproc.errors import ConfigError
from tests.unit.messages import Mode, answer, chat, request_body, request_headers, set_headers

TWO = """
pools:
  - {name: live, models: [m], mirror: {pool: %s, share: 0.3}, replicas: ["10.0.0.1:1"]}
  - {name: dark, models: [n], replicas: ["10.0.0.2:1"]}
"""


class Drawn:
    def __init__(self, number: float) -> None:
        self.number = number

    def random(self) -> float:
        return self.number


def made(drawn: float) -> Steering:
    pool = Pool("live", models=["m"])
    pool.join("10.0.0.1:8000", 0.0)
    pool.mirror = Mirror("kvsteer_pool_dark", 0.3)
    return Steering([pool], Rules(), Drawn(drawn))


@pytest.mark.parametrize(("drawn", "cluster"), [(0.29, "kvsteer_pool_dark"), (0.3, None), (0.9, None)])
def test_the_share_is_drawn_for_each_request_and_told_in_a_header(drawn: float, cluster: str | None) -> None:
    steering = made(drawn)
    exchange = Exchange(steering)
    exchange.receive(request_headers(), 0.0)
    reply = answer(exchange.receive(request_body(chat()), 0.0)[0])
    assert set_headers(reply).get("x-mirror-cluster") == cluster
    assert set_headers(reply)["x-gateway-destination-endpoint"] == "10.0.0.1:8000"
    mirror = steering.pools[0].mirror
    assert mirror is not None
    assert mirror.count == (cluster is not None)


def test_thirty_percent_of_ten_thousand_requests_are_mirrored() -> None:
    """Within 1.4 points: three times the spread of chance (sqrt(.3 * .7 / 10,000) is 0.46 points)."""
    mirror, rng = Mirror("kvsteer_pool_dark", 0.3), Random(5)
    for _ in range(10_000):
        mirror.told(rng.random(), at_headers=False)
    assert mirror.count == pytest.approx(3000, abs=140)


def test_a_request_decided_at_its_headers_is_told_there() -> None:
    exchange = Exchange(made(0.1))
    reply = answer(exchange.receive(request_headers(end=True, mode=Mode.NONE), 0.0)[0])
    assert set_headers(reply)["x-mirror-cluster"] == "kvsteer_pool_dark"


def test_envoy_mirrors_by_that_header_alone_and_only_that_pools_requests() -> None:
    tree = bootstrap(parse(TWO % "dark", "here"))
    manager = tree["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    routes = manager["route_config"]["virtual_hosts"][0]["routes"]
    found = {it["route"]["cluster"]: it["route"].get("request_mirror_policies") for it in routes}
    assert found == {
        "kvsteer_pool_live": [{"cluster_header": "x-mirror-cluster"}],
        "kvsteer_pool_dark": None,
    }
    removed = str(manager["early_header_mutation_extensions"])
    assert "x-mirror-cluster" in removed, "a client's own header must not mirror"


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        ("live", "pools[0].mirror.pool: 'live' is the pool itself; name another, or remove it"),
        ("none-such", "pools[0].mirror.pool: 'none-such' is no pool; name one that is"),
    ],
)
def test_a_mirror_leads_to_another_pool(pool: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(TWO % pool, "here")
    assert said in str(caught.value)
