"""Calls that load and unload adapters: what engines answer, what it means, and what settings allow them."""

import re
from typing import Any

import orjson
import pytest

from extproc.config import parse
from extproc.engines import NAMES, get
from extproc.engines.adapter_calls import ALREADY, DONE, FAILED, REFUSED, UNSUPPORTED, AdapterCalls
from extproc.engines.factored import Factored
from extproc.errors import ConfigError
from extproc.io.adapter_lists import read_list


def error(message: str, code: int) -> dict[str, Any]:
    return {"error": {"message": message, "type": "x", "param": None, "code": code}}


def calls(engine: str) -> AdapterCalls:
    found = get(engine).adapter_calls
    assert found is not None
    return found


LOADED_AGAIN = error(
    "The lora adapter 'dyn' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to "
    "True.",
    400,
)


@pytest.mark.parametrize(
    ("status", "body", "means"),
    [
        (200, None, DONE),
        (400, LOADED_AGAIN, ALREADY),
        (404, error("Loading lora bad failed: No adapter found for models/none", 404), REFUSED),
        (400, error("LoRA rank 64 is greater than max_lora_rank 16.", 400), REFUSED),
        (404, {"detail": "Not Found"}, UNSUPPORTED),
        (401, {"error": "Unauthorized"}, UNSUPPORTED),
        (500, error("Internal Server Error", 500), FAILED),
        (503, None, FAILED),
        (200, {"error": 7}, DONE),
    ],
)
def test_what_vllm_answers_to_a_load(status: int, body: dict[str, Any] | None, means: str) -> None:
    """The first five as 0.32 answers them."""
    assert calls("vllm").loaded(status, body) == means


@pytest.mark.parametrize(
    ("status", "body", "means"),
    [
        (200, None, DONE),
        (404, error("The lora adapter 'dyn' cannot be found.", 404), ALREADY),
        (404, {"detail": "Not Found"}, UNSUPPORTED),
        (502, None, FAILED),
    ],
)
def test_what_vllm_answers_to_an_unload(status: int, body: dict[str, Any] | None, means: str) -> None:
    assert calls("vllm").unloaded(status, body) == means


@pytest.mark.parametrize(
    ("status", "body", "loaded", "unloaded"),
    [
        (200, {"success": True, "loaded_adapters": {"a": "/a"}}, DONE, DONE),
        (400, {"success": False, "error_message": "LoRA a is already loaded"}, ALREADY, FAILED),
        (400, {"success": False, "error_message": "LoRA a does not exist"}, REFUSED, ALREADY),
        (404, {"detail": "Not Found"}, UNSUPPORTED, UNSUPPORTED),
        (400, {"error_message": 5}, FAILED, FAILED),
    ],
)
def test_what_sglang_answers(status: int, body: dict[str, Any], loaded: str, unloaded: str) -> None:
    assert (calls("sglang").loaded(status, body), calls("sglang").unloaded(status, body)) == (
        loaded,
        unloaded,
    )


def test_bodies_name_the_adapter_and_where_it_lies() -> None:
    assert orjson.loads(calls("vllm").load("a", "/lora/a")) == {"lora_name": "a", "lora_path": "/lora/a"}
    assert orjson.loads(calls("sglang").unload("a")) == {"lora_name": "a"}


def test_engines_without_such_calls_say_so() -> None:
    assert {name for name in NAMES if get(name).adapter_calls is not None} == {"vllm", "sglang"}
    assert Factored(get("vllm"), "price").adapter_calls is get("vllm").adapter_calls


def test_adapters_are_those_models_that_have_a_parent() -> None:
    rows = [{"id": "base", "parent": None}, {"id": "a", "parent": "base"}, {"id": 7, "parent": "base"}, "x"]
    assert read_list(orjson.dumps({"data": rows})) == {"a": "base"}
    odd = [
        {"id": "s", "parent": "s"},
        {"id": "p", "parent": "q"},
        {"id": "q", "parent": "p"},
        {"id": "b", "parent": "a"},
    ]
    assert read_list(orjson.dumps({"data": rows + odd})) == {"a": "base"}, "adapters belong to no adapters"
    assert read_list(orjson.dumps({"data": {}})) is None, "in another form nothing is told"
    assert read_list(b"<html>") is None


POOL = """
pools:
  - name: p
    engine: {engine}
    models: [base]
    replicas: ["10.0.0.1:8000"]
    adapters: {{enabled: {enabled}, ask: {ask}, loading: {{enabled: true, paths: {paths}}}}}
"""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"engine": "tgi"}, "engine tgi has no calls for that"),
        ({"engine": "auto"}, "engine auto may be one without"),
        ({"enabled": "false"}, "write adapters.enabled: true"),
        ({"ask": "0s"}, "write ask: 10s"),
        ({"paths": "{}"}, "write NAME: PATH under paths"),
        ({"paths": '{a: ""}'}, "has a path of 0 characters for 'a'"),
    ],
)
def test_settings_that_can_not_work_are_refused_and_say_how_to_mend_them(
    change: dict[str, str], says: str
) -> None:
    usual = {"engine": "vllm", "enabled": "true", "ask": "10s", "paths": "{a: /lora/a}"}
    with pytest.raises(ConfigError, match=re.escape(says)):
        parse(POOL.format(**usual | change), "test")


def test_envoy_waits_for_as_long_as_requests_may_wait_for_their_adapter() -> None:
    settings = parse(POOL.format(engine="vllm", enabled="true", ask="10s", paths="{a: /lora/a}"), "test")
    assert settings.longest_wait == 10.0
    (pool,) = settings.pools
    assert dict(pool.adapters.rules(pool.models).names) == {"a": "base"}, "known before any engine tells"
