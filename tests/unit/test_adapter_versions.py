"""Adapters of a model that has versions: weights, names, and caches of their own."""

from random import Random

import orjson
import pytest

from extproc.core import dialects
from extproc.core.adapters import AdapterRules, Adapters
from extproc.core.catalog import Catalog
from extproc.core.decide import Decision
from extproc.core.dialects import Limits
from extproc.core.pool import Pool
from extproc.core.prompt import Prompt
from extproc.core.routes import Route
from extproc.core.steering import Rules, Steering

#: Weights 90 and 10 as configured; the engines of v2 serve the model under another name.
ROUTES = [
    Route(pool="v1", models=frozenset({"base"}), version="v1", weight=90),
    Route(pool="v2", models=frozenset({"base"}), version="v2", weight=10),
]


def ask(model: str, number: int = 0, text: str = "") -> Prompt:
    body = {"model": model, "messages": [{"role": "user", "content": text or f"question {number}"}]}
    return dialects.read("/v1/chat/completions", orjson.dumps(body), Limits(roots=True))


@pytest.fixture
def steering() -> Steering:
    pools = [Pool("v1", models=["base"]), Pool("v2", models=["base"])]
    pools[1].renames = {"base": "base-next"}
    for pool, address, served in zip(pools, ("10.0.0.1:1", "10.0.0.2:1"), ("base", "base-next"), strict=True):
        pool.version = pool.name
        pool.adapters = Adapters(AdapterRules())
        listed = {"law": served} if pool.name == "v1" else {"law": served, "new": served}
        pool.adapters.listed(pool.join(address, 0.0), listed)
    return Steering(pools, Rules(), Random(1), ROUTES)


def shares(steering: Steering, model: str, requests: int = 4000) -> float:
    """Part of conversations that the second version gets."""
    pools = [steering.router.pool_of(ask(model, number)) for number in range(requests)]
    return [pool.name for pool in pools if pool is not None].count("v2") / requests


def test_an_adapters_conversations_are_shared_as_its_models_are(steering: Steering) -> None:
    # 4,000 conversations: chance's spread at 10 % is 0.5 points.
    assert shares(steering, "law") == pytest.approx(0.1, abs=0.025)


def test_weights_that_change_while_it_runs_hold_for_adapters_too(steering: Steering) -> None:
    steering.router.weights["base"] = {"v1": 0.0, "v2": 100.0}
    assert shares(steering, "law", 200) == 1.0
    steering.router.weights["base"] = {"v1": 100.0, "v2": 0.0}
    assert shares(steering, "law", 200) == 0.0


def test_an_adapter_that_one_version_alone_serves_goes_there_whatever_the_weights(steering: Steering) -> None:
    assert shares(steering, "new", 200) == 1.0


def test_an_adapters_parent_is_told_as_clients_call_it(steering: Steering) -> None:
    entries = Catalog(steering.pools, steering.router, {}).models()
    assert (entries["law"]["parent"], entries["new"]["parent"]) == ("base", "base")


def test_how_an_adapters_requests_end_counts_for_its_models_version(steering: Steering) -> None:
    assert steering.router.known("law") == "base"
    assert steering.router.known("nobody") == ""


def test_an_adapter_finds_nothing_of_its_models_prompts_in_the_cache(steering: Steering) -> None:
    pool, text = steering.pools[0], "a long common beginning " * 200

    def sent(model: str, key: int) -> Decision:
        return steering.decide(ask(model, text=text), pool, key, 1.0)

    first, other, again = [sent(model, key).cached for key, model in enumerate(["base", "law", "law"], 1)]
    assert (first, other) == (0.0, 0.0)
    assert again > 1000, "the adapter's own prompt, sent a moment ago: 4,800 bytes"
