"""TensorRT-LLM's metrics. The bodies are written after its documentation, not taken from a server."""

import pytest

from extproc.engines import detect, get
from tests.unit.engine_bodies import AT, body, faults, known, some, spoilt, spoilt_json

trtllm = get("trtllm")


def test_the_prometheus_names_parse_to_their_numbers():
    """1,250 of 5,000 blocks of 32 tokens in use; 1,280 of 3,300 prompt tokens found."""
    assert known(trtllm.parse(body("trtllm_prometheus.txt"), AT)) == {
        "running": 12.0,
        "waiting": 3.0,
        "kv_used": 0.25,
        "kv_capacity": 160000,
        "block_size": 32,
        "max_running": 64,
        "hit_tokens": 1280.0,
        "query_tokens": 3300.0,
        "prompt_tokens": 3300.0,
        "generated_tokens": 900.0,
        "ttft_sum": 6.5,
        "ttft_count": 41.0,
        "tpot_sum": 0.82,
        "tpot_count": 41.0,
        "prefill_sum": 5.25,
        "prefill_count": 41.0,
        "models": ("llama",),
    }


def test_of_the_array_of_iterations_the_newest_is_read():
    """40 blocks found of 100 looked up: 1,280 and 3,200 tokens."""
    assert known(trtllm.parse(body("trtllm_iterations.json"), AT)) == {
        "running": 12.0,
        "waiting": 3.0,
        "kv_used": 0.25,
        "kv_capacity": 160000,
        "block_size": 32,
        "max_running": 64,
        "hit_tokens": 1280.0,
        "query_tokens": 3200.0,
    }


def test_an_array_that_somebody_else_has_drained_tells_nothing_and_is_still_this_engines():
    assert trtllm.recognises(b"[]")
    assert trtllm.recognises(b" [ ]\n")
    assert not trtllm.recognises(b'[{"other": 1}]')
    assert known(trtllm.parse(b"[]", AT)) == {}


def test_blocks_are_counted_where_tokens_are_not():
    lines = body("trtllm_prometheus.txt").decode().splitlines()
    text = "\n".join(line for line in lines if "prompt_cached_tokens" not in line).encode()
    assert (trtllm.parse(text, AT).hit_tokens, trtllm.parse(text, AT).query_tokens) == (1280.0, 3200.0)


def test_a_line_removed_or_garbled_makes_its_quantity_unknown_and_never_wrong():
    """A missing run-time batch size leaves the built one; missing cached tokens leave the count of blocks."""
    text = body("trtllm_prometheus.txt")
    truth = trtllm.parse(text, AT)
    for what, changed in some(spoilt(text)):
        may_become = {"max_running": 256, "query_tokens": 3200.0}
        assert faults(truth, trtllm.parse(changed, AT), may_become) == [], what


def test_an_iteration_with_a_value_removed_or_of_a_wrong_kind_is_unknown_and_never_wrong():
    """Without its newest entry the array ends with the iteration before: 1 active, 10 blocks used, all missed."""
    text = body("trtllm_iterations.json")
    truth = trtllm.parse(text, AT)
    older = {"running": 1.0, "waiting": 0.0, "kv_used": 10 / 5000, "hit_tokens": 0.0, "query_tokens": 320.0}
    for what, changed in spoilt_json(text):
        may_become = older if what == "removed: (1,)" else {"max_running": 256}
        assert faults(truth, trtllm.parse(changed, AT), may_become) == [], what


@pytest.mark.parametrize("text", [b"", b"[", b"[3]", b'[{"kvCacheStats": []}]', b"[[]]"])
def test_bodies_of_another_shape_tell_nothing(text):
    assert known(trtllm.parse(text, AT)) == {}


def test_trtllm_is_recognised_in_both_forms_and_a_simulators_names_are_not_taken_for_it():
    assert detect(body("trtllm_prometheus.txt")) is trtllm
    assert detect(body("trtllm_iterations.json")) is trtllm
    assert not trtllm.recognises(body("mocker_trtllm.txt"))
    assert known(trtllm.parse(body("mocker_trtllm.txt"), AT)) == {}
