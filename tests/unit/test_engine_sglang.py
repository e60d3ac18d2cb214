"""SGLang's metrics and loads, of a real server and of the shapes that parallel set-ups have."""

import pytest

from extproc.engines import detect, get
from tests.unit.engine_bodies import AT, body, faults, known, some, spoilt, spoilt_json

sglang = get("sglang")


def parse(text: str):
    return sglang.parse(text.encode(), AT)


def test_a_server_under_load_parses_to_its_numbers():
    """Of 24,005 prompt tokens prefilled 14,725 were computed and 9,280 found; 1,088 decoded.

    Streamed and plain requests are series of their own: 0.45146241600014037 s in 2 and 6.852626070573933 s in 23.
    """
    sample = sglang.parse(body("sglang_0_5_load.txt"), AT)
    assert sample.at == AT
    told = known(sample)
    assert told.pop("ttft_sum") == pytest.approx(0.45146241600014037 + 6.852626070573933)
    assert told == {
        "running": 4.0,
        "waiting": 0.0,
        "kv_used": 0.15234375,
        "kv_capacity": 16384,
        "block_size": 16,
        "hit_tokens": 9280.0,
        "query_tokens": 24005.0,
        "prompt_tokens": 24005.0,
        "generated_tokens": 1088.0,
        "ttft_count": 25.0,
        "tpot_sum": 20.370374060001268,
        "tpot_count": 574.0,
        "prefill_sum": 6.902038833999541,
        "prefill_count": 31.0,
        "models": ("s20m",),
    }


def test_an_idle_server_has_not_yet_the_series_of_ended_requests():
    assert known(sglang.parse(body("sglang_0_5_idle.txt"), AT)) == {
        "running": 0.0,
        "waiting": 0.0,
        "kv_used": 0.0,
        "kv_capacity": 16384,
        "block_size": 16,
        "hit_tokens": 0.0,
        "query_tokens": 1.0,
        "prompt_tokens": 1.0,
        "prefill_sum": 0.017336575999706838,
        "prefill_count": 1.0,
        "models": ("s20m",),
    }


def test_prefix_hits_are_counted_in_tokens():
    sample = sglang.parse(body("sglang_0_5_after_hits.txt"), AT)
    assert (sample.hit_tokens, sample.query_tokens, sample.generated_tokens) == (1856.0, 3732.0, 14.0)
    assert (sample.ttft_sum, sample.ttft_count) == (0.7185609456578277, 2.0)


def test_after_the_load_the_counters_are_higher_and_nothing_runs():
    sample = sglang.parse(body("sglang_0_5_after.txt"), AT)
    assert (sample.running, sample.waiting, sample.kv_used) == (0.0, 0.0, 0.0)
    assert (sample.prompt_tokens, sample.generated_tokens) == (24006.0, 1677.0)
    assert (sample.tpot_sum, sample.tpot_count) == (28.137593245999597, 1034.0)


def test_a_simulator_that_has_few_of_the_names_leaves_the_others_unknown():
    assert known(sglang.parse(body("mocker_sglang.txt"), AT)) == {
        "running": 0.0,
        "waiting": 0.0,
        "ttft_sum": 0.017026407,
        "ttft_count": 1.0,
        "tpot_sum": 0.017133844999999998,
        "tpot_count": 3.0,
        "models": ("tiny",),
    }


def test_the_loads_of_a_busy_server_tell_also_how_much_it_runs_at_most():
    assert known(sglang.parse(body("sglang_0_5_loads_load.json"), AT)) == {
        "running": 4.0,
        "waiting": 0.0,
        "kv_used": 0.1523,
        "kv_capacity": 16384,
        "max_running": 8,
    }


def test_the_loads_of_an_idle_server_are_true_zeros():
    sample = sglang.parse(body("sglang_0_5_loads_idle.json"), AT)
    assert (sample.running, sample.waiting, sample.kv_used, sample.max_running) == (0.0, 0.0, 0.0, 8)


def test_loads_of_two_ranks_are_added_and_averaged():
    rank = '{"num_running_reqs": %d, "num_waiting_reqs": 1, "token_usage": %s, "max_total_num_tokens": 100}'
    sample = parse('{"loads": [' + rank % (2, "0.2") + "," + rank % (3, "0.4") + "]}")
    assert (sample.running, sample.waiting, sample.kv_capacity) == (5.0, 2.0, 200)
    assert sample.kv_used == pytest.approx(0.3)
    assert parse('{"loads": [' + rank % (2, "0.2") + ",{}]}").running is None


@pytest.mark.parametrize("name", ["sglang_0_5_load.txt", "sglang_0_5_idle.txt", "mocker_sglang.txt"])
def test_a_line_removed_or_garbled_makes_its_quantity_unknown_and_never_wrong(name):
    """Without the exact usage 0.15234375 the rounded one, 0.15, is read; without one kind of request the other.

    Plain and streamed requests are separate series that come into being with the first request of their kind, so
    that a missing one can't be told from one that never was: a sum falls to that of the other kind.
    """
    text = body(name)
    truth = sglang.parse(text, AT)
    for what, changed in some(spoilt(text, sglang.wanted)):
        may_become = {"kv_used": 0.15}
        if "is_streaming" in what:
            other_kind = 'is_streaming="true"' not in what
            may_become |= {"ttft_sum": 0.45146241600014037 if other_kind else 6.852626070573933}
            may_become |= {"ttft_count": 2.0 if other_kind else 23.0}
        assert faults(truth, sglang.parse(changed, AT), may_become) == [], what


@pytest.mark.parametrize("name", ["sglang_0_5_loads_load.json", "sglang_0_5_loads_idle.json"])
def test_loads_with_a_value_removed_or_of_a_wrong_kind_are_unknown_and_never_wrong(name):
    text = body(name)
    truth = sglang.parse(text, AT)
    for what, changed in spoilt_json(text):
        assert faults(truth, sglang.parse(changed, AT), {}) == [], what


def test_of_the_ranks_inside_a_group_one_is_taken_and_data_parallel_ranks_are_added():
    """Two data-parallel ranks over two tensor ranks each; with attention DP the second has tp_rank 2 and 3."""
    lines = []
    for dp, ranks in (("0", "01"), ("1", "23")):
        for tp in ranks:
            labels = f'dp_rank="{dp}",model_name="m",moe_ep_rank="{tp}",pp_rank="0",tp_rank="{tp}"'
            lines.append(f"sglang:num_running_reqs{{{labels}}} {int(dp) + 2}")
            lines.append(f"sglang:max_total_num_tokens{{{labels}}} 1000")
            lines.append(f"sglang:token_usage{{{labels}}} 0.{int(dp) + 1}")
            lines.append(f'sglang:prefill_effective_tokens_total{{mode="input",{labels}}} 30')
            lines.append(f'sglang:prefill_effective_tokens_total{{mode="device_hit",{labels}}} 10')
    sample = parse("\n".join(lines))
    assert (sample.running, sample.kv_capacity) == (5.0, 2000)
    assert sample.kv_used == pytest.approx(0.15)
    assert (sample.hit_tokens, sample.query_tokens) == (20.0, 80.0)
    without_rank_1 = [line for line in lines if not ("num_running" in line and 'dp_rank="1"' in line)]
    assert parse("\n".join(without_rank_1)).running is None


def test_series_of_single_priorities_are_parts_of_the_total_beside_them():
    text = """\
sglang:num_queue_reqs{priority="",tp_rank="0"} 5
sglang:num_queue_reqs{priority="1",tp_rank="0"} 2
sglang:num_queue_reqs{priority="2",tp_rank="0"} 3
"""
    assert parse(text).waiting == 5.0
    assert parse(text.partition("\n")[2]).waiting is None


def test_requests_whose_grammar_is_still_compiled_wait_too():
    assert parse("sglang:num_queue_reqs 2\nsglang:num_grammar_queue_reqs 3\n").waiting == 5.0
    assert parse("sglang:num_queue_reqs 2\nsglang:num_grammar_queue_reqs NaN\n").waiting is None


def test_older_versions_are_read_by_the_counters_of_ended_requests():
    sample = parse("""\
sglang:prompt_tokens_total{model_name="m"} 100
sglang:generation_tokens_total{model_name="m"} 40
sglang:cached_tokens_total{model_name="m"} 30
sglang:time_per_output_token_seconds_sum{model_name="m"} 1.5
sglang:num_used_tokens{model_name="m"} 25
sglang:max_total_num_tokens{model_name="m"} 100
""")
    assert (sample.prompt_tokens, sample.query_tokens, sample.hit_tokens) == (100.0, 100.0, 30.0)
    assert (sample.generated_tokens, sample.tpot_sum, sample.kv_used) == (40.0, 1.5, 0.25)


def test_the_rounded_usage_of_the_fullest_pool_wins_where_it_is_larger():
    assert parse("sglang:token_usage 0.9\nsglang:full_token_usage 0.4\n").kv_used == 0.9


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b'{"loads": 3}', b'{"loads": []}', b'{"loads": [3, null]}', b"{"]
)
def test_an_empty_body_and_json_of_another_shape_tell_nothing(text):
    assert known(sglang.parse(text, AT)) == {}


def test_sglang_is_recognised_by_its_names_and_its_loads():
    for name in ("sglang_0_5_load.txt", "sglang_0_5_loads_load.json", "mocker_sglang.txt"):
        assert detect(body(name)) is sglang
    assert detect(b'{"detail": "Not Found"}') is None
