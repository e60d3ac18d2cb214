"""llama.cpp's metrics, of a real server."""

import pytest

from extproc.engines import detect, get
from tests.unit.engine_bodies import AT, body, faults, known, some, spoilt

llamacpp = get("llamacpp")


def test_a_server_under_load_parses_to_its_numbers():
    """5,076 prompt tokens computed and 7,459 found in the cache are 12,535 prompt tokens."""
    sample = llamacpp.parse(body("llamacpp_load.txt"), AT)
    assert sample.at == AT
    assert known(sample) == {
        "running": 4.0,
        "waiting": 3.0,
        "hit_tokens": 7459.0,
        "query_tokens": 12535.0,
        "prompt_tokens": 12535.0,
        "generated_tokens": 56.0,
        "tpot_sum": 0.184795,
        "tpot_count": 56.0,
        "prefill_sum": 3.26757,
    }


def test_after_the_load_the_counters_are_higher_and_nothing_runs():
    sample = llamacpp.parse(body("llamacpp_after.txt"), AT)
    assert (sample.running, sample.waiting) == (0.0, 0.0)
    assert (sample.hit_tokens, sample.prompt_tokens) == (7459.0, 14936.0)
    assert (sample.generated_tokens, sample.tpot_sum, sample.prefill_sum) == (1210.0, 12.402, 4.61897)


def test_an_idle_server_has_true_zeros_and_no_kv_use():
    sample = llamacpp.parse(body("llamacpp_idle.txt"), AT)
    assert (sample.running, sample.waiting, sample.prompt_tokens, sample.prefill_sum) == (0.0, 0.0, 0.0, 0.0)
    assert (sample.kv_used, sample.kv_capacity, sample.max_running) == (None, None, None)


@pytest.mark.parametrize("name", ["llamacpp_load.txt", "llamacpp_idle.txt"])
def test_a_line_removed_or_garbled_makes_its_quantity_unknown_and_never_wrong(name):
    text = body(name)
    truth = llamacpp.parse(text, AT)
    for what, changed in some(spoilt(text)):
        assert faults(truth, llamacpp.parse(changed, AT), {}) == [], what


def test_a_build_that_does_not_count_cached_tokens_does_not_know_its_prompt_tokens():
    sample = llamacpp.parse(b"llamacpp:prompt_tokens_total 50\nllamacpp:kv_cache_usage_ratio 0.25\n", AT)
    assert (sample.prompt_tokens, sample.hit_tokens, sample.kv_used) == (None, None, 0.25)


def test_llamacpp_is_recognised_and_an_empty_body_tells_nothing():
    assert detect(body("llamacpp_load.txt")) is llamacpp
    assert known(llamacpp.parse(b"", AT)) == {}
