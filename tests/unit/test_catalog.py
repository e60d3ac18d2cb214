"""`GET /v1/models` answered for all pools."""

from typing import Any

import orjson
import pytest

from extproc.core.adapters import AdapterRules, Adapters
from extproc.core.dialects import Limits
from extproc.core.exchange import Exchange
from extproc.core.pool import Pool
from extproc.core.sample import Sample
from extproc.core.states import ANSWERED
from extproc.core.steering import Rules, Steering
from extproc.pb import ext_proc_pb2 as pb


class Middle:
    def random(self) -> float:
        return 0.5


def steering(*pools: Pool, aliases: dict[str, str] | None = None, lists: bool = True) -> Steering:
    rules = Rules(lists_models=lists, limits=Limits(aliases=aliases or {}))
    made = Steering(list(pools), rules, Middle())
    made.catalog.since = 1_700_000_000
    return made


def get(path: str, method: str = "GET", *, end: bool = True) -> bytes:
    message = pb.ProcessingRequest()
    for key, value in ((":path", path), (":method", method)):
        message.request_headers.headers.headers.add(key=key, raw_value=value.encode())
    message.request_headers.end_of_stream = end
    return message.SerializeToString()


def answer(made: Steering, path: str, method: str = "GET") -> tuple[str, Any]:
    exchange = Exchange(made)
    data = exchange.receive(get(path, method), 0.0)[0]
    assert isinstance(data, bytes)
    said = pb.ProcessingResponse.FromString(data)
    if not said.HasField("immediate_response"):
        return exchange.outcome, None
    return exchange.outcome, orjson.loads(said.immediate_response.body)


def entry(name: str, root: str | None = None, **more: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "kvsteer",
        "root": root or name,
        **more,
    }


def test_all_pools_models_and_aliases_are_listed_once() -> None:
    made = steering(Pool("a", models=["llama", "phi"]), Pool("b", models=["bge"]), aliases={"gpt-4": "llama"})
    outcome, body = answer(made, "/v1/models?limit=3")
    assert outcome == ANSWERED
    assert body == {
        "object": "list",
        "data": [entry("llama"), entry("phi"), entry("bge"), entry("gpt-4", "llama")],
    }


def test_one_model_is_told_by_its_name_with_slashes() -> None:
    made = steering(Pool("a", models=["meta-llama/Llama-3"]))
    assert answer(made, "/v1/models/meta-llama/Llama-3") == (ANSWERED, entry("meta-llama/Llama-3"))


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("org/m", "org%2Fm"),
        ("org/m", "org%2fm"),
        ("org/m 2", "org/m%202"),
        ("\u6a21\u578b\u00e9", "%E6%A8%A1%E5%9E%8B%C3%A9"),
        ('a"b?c', "a%22b%3Fc"),
        ("a%2Fb", "a%252Fb"),
        ("gpt-4", "gpt%2D4"),
        ("a+b", "a+b"),
    ],
)
def test_a_name_stands_in_the_path_percent_encoded(name: str, asked: str) -> None:
    made = steering(Pool("a", models=[name, "other"]))
    assert answer(made, f"/v1/models/{asked}?x=1") == (ANSWERED, entry(name))


def test_bytes_that_are_no_text_name_no_model() -> None:
    pool = Pool("a", models=["llama"])
    pool.join("10.0.0.1:8000", 0.0)
    for asked in ("%FF%FE", "%", "%zz"):
        assert answer(steering(pool), f"/v1/models/{asked}") == ("no_body", None)


def test_head_is_answered_as_get_and_so_is_a_get_whose_body_is_still_to_come() -> None:
    made = steering(Pool("a", models=["llama"]), Pool("b", models=["bge"]))
    whole = {"object": "list", "data": [entry("llama"), entry("bge")]}
    assert answer(made, "/v1/models", "HEAD") == (ANSWERED, whole)
    exchange = Exchange(made)
    data = exchange.receive(get("/v1/models", end=False), 0.0)[0]
    assert isinstance(data, bytes)
    assert orjson.loads(pb.ProcessingResponse.FromString(data).immediate_response.body) == whole
    assert exchange.outcome == ANSWERED
    assert len(made.ledger) == 0


def test_what_engines_name_is_listed_where_requests_may_ask_for_it() -> None:
    lists, takes_all = Pool("a", models=["llama"]), Pool("b")
    for pool in (lists, takes_all):
        pool.join("10.0.0.1:8000", 0.0)
    lists.observe("10.0.0.1:8000", Sample(at=1.0, running=0.0, models=("inner-name",)))
    takes_all.observe("10.0.0.1:8000", Sample(at=1.0, running=0.0, models=("qwen",), adapters=("sql",)))
    body = answer(steering(lists, takes_all), "/v1/models")[1]
    assert body["data"] == [entry("llama"), entry("qwen"), entry("sql", parent="qwen")]
    # Without the pool that takes every model nobody could ask for what only the engine names.
    assert answer(steering(lists), "/v1/models")[1]["data"] == [entry("llama")]


def test_an_adapters_parent_is_a_model_of_its_pool() -> None:
    one, other = Pool("a", models=["llama"]), Pool("b", models=["bge"])
    one.adapters = Adapters(AdapterRules())
    one.adapters.listed(
        one.join("10.0.0.1:8000", 0.0), {"sql": "llama", "law": "bge", "odd": "/models/llama"}
    )
    data = answer(steering(one, other), "/v1/models")[1]["data"]
    assert {it["id"]: it.get("parent") for it in data} == {
        "llama": None,
        "bge": None,
        "sql": "llama",
        "law": "llama",
        "odd": "llama",
    }


def test_anything_else_goes_to_a_replica() -> None:
    pool = Pool("a", models=["llama"])
    pool.join("10.0.0.1:8000", 0.0)
    made = steering(pool)
    for path, method in (
        ("/v1/models", "DELETE"),
        ("/v1/modelsque", "GET"),
        ("/health", "GET"),
        ("/v1/models/none", "GET"),
    ):
        assert answer(made, path, method) == ("no_body", None)
    assert answer(steering(pool, lists=False), "/v1/models") == ("no_body", None)
