"""Quantities of engines: what is out of reach is unknown."""

import math

import pytest

from extproc.engines import get
from extproc.engines.quantities import add, capacity, plus


@pytest.mark.parametrize(
    ("count", "size", "tokens"),
    [(600, 16, 9600), (10**12, 1, 10**12), (10**12 + 1, 1, None), (2**53, 2**53, None), (0, 16, None)],
)
def test_a_capacity_is_between_one_token_and_a_million_millions(count, size, tokens):
    assert capacity(count, size) == tokens


@pytest.mark.parametrize(
    ("count", "size"), [(None, 16), (16, None), (-1, 16), (math.nan, 1), (math.inf, 1), (1e308, 1e308)]
)
def test_a_capacity_that_is_no_quantity_is_unknown(count, size):
    assert capacity(count, size) is None


def test_sums_beyond_a_float_are_unknown():
    assert add([1e308, 1e308]) is None
    assert plus(1e308, 1e308) is None


@pytest.mark.parametrize(
    ("engine", "text"),
    [
        ("sglang", "sglang:max_total_num_tokens 2e12\n"),
        ("sglang", '{"loads": [{"num_running_reqs": 1, "max_total_num_tokens": 2000000000000}]}'),
        ("tgi", "tgi_batch_max_total_tokens 2e12\n"),
        ("trtllm", "trtllm_kv_cache_max_blocks 9e15\ntrtllm_kv_cache_tokens_per_block 9e15\n"),
        ("trtllm", '[{"kvCacheStats": {"maxNumBlocks": 9e15, "tokensPerBlock": 9e15}}]'),
        (
            "triton",
            "\n".join(
                f'nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="{kind}",model="m"}} 9e15'
                for kind in ("max", "tokens_per")
            ),
        ),
    ],
)
def test_no_engine_tells_a_capacity_beyond_any_memory(engine, text):
    assert get(engine).parse(text.encode(), 1.0).kv_capacity is None
