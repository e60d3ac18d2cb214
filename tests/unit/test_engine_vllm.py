"""vLLM's metrics, of real servers and of the shapes that older and rarer set-ups have."""

import pytest

from extproc.engines import detect, get
from tests.unit.engine_bodies import AT, body, faults, known, some, spoilt

vllm = get("vllm")


def parse(text: str):
    return vllm.parse(text.encode(), AT)


def test_a_server_under_load_parses_to_its_numbers():
    sample = vllm.parse(body("vllm_0_32_load.txt"), AT)
    assert sample.at == AT
    assert known(sample) == {
        "running": 8.0,
        "waiting": 6.0,
        "kv_used": 0.5284280936454849,
        "kv_capacity": 9600,
        "block_size": 32,
        "hit_tokens": 5184.0,
        "query_tokens": 26222.0,
        "prompt_tokens": 26425.0,
        "generated_tokens": 3779.0,
        "ttft_sum": 18.590151071548462,
        "ttft_count": 72.0,
        "tpot_sum": 24.474779921001073,
        "tpot_count": 3707.0,
        "prefill_sum": 18.068077318998803,
        "prefill_count": 64.0,
        "adapters": ("lora-a", "lora-b"),
        "max_adapters": 2,
        "asleep": False,
        "models": ("tiny",),
        "started": 1795954974.05,
    }


def test_the_same_server_after_the_load_has_no_requests_and_higher_counters():
    assert known(vllm.parse(body("vllm_0_32_after_load.txt"), AT)) == {
        "running": 0.0,
        "waiting": 0.0,
        "kv_used": 0.0,
        "kv_capacity": 9600,
        "block_size": 32,
        "hit_tokens": 5184.0,
        "query_tokens": 27422.0,
        "prompt_tokens": 27625.0,
        "generated_tokens": 21420.0,
        "ttft_sum": 81.78434205055237,
        "ttft_count": 78.0,
        "tpot_sum": 156.64649063200068,
        "tpot_count": 21342.0,
        "prefill_sum": 18.41770819799899,
        "prefill_count": 78.0,
        "max_adapters": 2,
        "asleep": False,
        "models": ("tiny",),
        "started": 1795954974.05,
    }


def test_prefix_hits_are_counted_in_tokens():
    sample = vllm.parse(body("vllm_0_32_prefix_hits.txt"), AT)
    assert (sample.hit_tokens, sample.query_tokens) == (416.0, 840.0)
    assert (sample.prompt_tokens, sample.generated_tokens) == (840.0, 32.0)
    assert (sample.ttft_sum, sample.ttft_count) == (0.07085156440734863, 2.0)
    assert (sample.prefill_sum, sample.prefill_count) == (0.05622081599994999, 2.0)


@pytest.mark.parametrize(
    ("name", "capacity", "block_size", "started"),
    [
        ("vllm_0_32_idle.txt", 9600, 32, 1795954974.05),
        ("vllm_0_32_idle_default.txt", 2097152, 128, 1795954726.97),
    ],
)
def test_an_idle_server_knows_its_capacity_and_true_zeros(name, capacity, block_size, started):
    sample = vllm.parse(body(name), AT)
    assert (sample.running, sample.waiting, sample.kv_used) == (0.0, 0.0, 0.0)
    assert (sample.kv_capacity, sample.block_size, sample.started) == (capacity, block_size, started)
    assert sample.prompt_tokens == sample.query_tokens == sample.ttft_count == sample.prefill_sum == 0.0
    assert sample.adapters is None
    assert sample.max_running is None


def test_two_data_parallel_ranks_are_two():
    """Rank 0 runs 2 and rank 1 runs 4; kv 0.03678929765886285 and 0.05351170568561869; 9,600 tokens each."""
    sample = vllm.parse(body("vllm_0_32_dp2_load.txt"), AT)
    assert sample.kv_used == pytest.approx(0.04515050167224077)
    assert sample.ttft_sum == pytest.approx(0.3982846736907959 + 0.8473162651062012)
    assert sample.tpot_sum == pytest.approx(5.777107385000136 + 7.493001367999568)
    assert sample.prefill_sum == pytest.approx(0.2922883690000617 + 0.13219604200003232)
    counts = known(sample)
    for told in ("kv_used", "ttft_sum", "tpot_sum", "prefill_sum"):
        del counts[told]
    assert counts == {
        "running": 6.0,
        "waiting": 0.0,
        "ranks": (2.0, 4.0),
        "kv_capacity": 19200,
        "block_size": 32,
        "hit_tokens": 192.0,
        "query_tokens": 750.0,
        "prompt_tokens": 750.0,
        "generated_tokens": 825.0,
        "ttft_count": 11.0,
        "tpot_count": 814.0,
        "prefill_count": 5.0,
        "asleep": False,
        "models": ("tiny",),
    }


def test_a_simulator_that_has_few_of_the_names_leaves_the_others_unknown():
    assert known(vllm.parse(body("mocker_vllm.txt"), AT)) == {
        "running": 0.0,
        "waiting": 0.0,
        "kv_used": 0.0,
        "ttft_sum": 0.11882229700000001,
        "ttft_count": 5.0,
        "tpot_sum": 0.9597754090000004,
        "tpot_count": 63.0,
        "models": ("tiny",),
    }


@pytest.mark.parametrize(
    ("name", "may_become"),
    [
        ("vllm_0_32_load.txt", {"adapters": ("lora-b",), "max_adapters": 2}),
        ("vllm_0_32_after_load.txt", {"adapters": ("lora-b",)}),
        ("vllm_0_32_idle.txt", {}),
        ("vllm_0_32_dp2_load.txt", {}),
        ("mocker_vllm.txt", {}),
    ],
)
def test_a_line_removed_or_garbled_makes_its_quantity_unknown_and_never_wrong(name, may_become):
    """The newest adapter series removed as a whole leaves the one before it: a set the server did have."""
    text = body(name)
    truth = vllm.parse(text, AT)
    for what, changed in some(spoilt(text, vllm.wanted)):
        assert faults(truth, vllm.parse(changed, AT), may_become) == [], what


def test_an_empty_body_and_another_text_tell_nothing():
    for text in (b"", b"\n", b"<html>Not Found</html>", b'{"detail":"Not Found"}', b"vllm:", b"\x00" * 100):
        assert vllm.parse(text, AT).is_blank
        assert known(vllm.parse(text, AT)) == {}


def test_names_before_0_12_are_read_and_block_counters_become_tokens():
    """As 0.8.5 writes them: 0.25 in use, 100 blocks of 16 looked up and 40 found: 1,600 and 640 tokens."""
    sample = parse("""\
# HELP vllm:gpu_prefix_cache_queries_total GPU prefix cache queries, in terms of number of queried blocks.
# TYPE vllm:gpu_prefix_cache_queries_total counter
vllm:gpu_prefix_cache_queries_total{model_name="m"} 100.0
vllm:gpu_prefix_cache_hits_total{model_name="m"} 40.0
vllm:gpu_prefix_cache_queries_created{model_name="m"} 1.7e+09
vllm:num_requests_running{model_name="m"} 3.0
vllm:num_requests_waiting{model_name="m"} 1.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.25
vllm:time_per_output_token_seconds_sum{model_name="m"} 2.5
vllm:time_per_output_token_seconds_count{model_name="m"} 50.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",num_cpu_blocks="None"} 1.0
""")
    assert known(sample) == {
        "running": 3.0,
        "waiting": 1.0,
        "kv_used": 0.25,
        "kv_capacity": 16000,
        "block_size": 16,
        "hit_tokens": 640.0,
        "query_tokens": 1600.0,
        "tpot_sum": 2.5,
        "tpot_count": 50.0,
        "models": ("m",),
    }


def test_block_counters_without_a_known_block_size_stay_unknown():
    sample = parse("""\
# HELP vllm:gpu_prefix_cache_queries_total GPU prefix cache queries, in terms of number of queried blocks.
vllm:gpu_prefix_cache_queries_total 100.0
vllm:gpu_prefix_cache_hits_total 40.0
""")
    assert (sample.hit_tokens, sample.query_tokens) == (None, None)


def test_where_both_names_exist_as_in_0_9_the_newer_one_is_read_and_not_added():
    sample = parse("""\
vllm:gpu_cache_usage_perc{engine="0"} 0.5
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:prefix_cache_hits_total{engine="0"} 64.0
vllm:gpu_prefix_cache_hits_total{engine="0"} 64.0
vllm:inter_token_latency_seconds_count{engine="0"} 9
vllm:time_per_output_token_seconds_count{engine="0"} 9
""")
    assert (sample.kv_used, sample.hit_tokens, sample.tpot_count) == (0.5, 64.0, 9.0)


def test_requests_the_v0_engine_swapped_out_wait_too():
    text = "vllm:num_requests_waiting 2\nvllm:num_requests_swapped 3\n"
    assert parse(text).waiting == 5.0
    assert parse(text.replace(" 3", " NaN")).waiting is None


def test_series_that_other_processes_add_with_0_do_not_hide_the_real_one():
    """vllm#28792: with several API servers each process exports the gauge, and one of them schedules."""
    lines = [f'vllm:kv_cache_usage_perc{{engine="0",model_name="m",pid="{pid}"}} 0.0' for pid in (277, 275)]
    lines.insert(1, 'vllm:kv_cache_usage_perc{engine="0",model_name="m",pid="273"} 0.65')
    assert parse("\n".join(lines)).kv_used == 0.65
    lines[1] = lines[1].replace("0.65", "NaN")
    assert parse("\n".join(lines)).kv_used is None


def test_several_models_in_one_process_add_up():
    sample = parse("""\
vllm:num_requests_running{engine="0",model_name="a"} 2
vllm:num_requests_running{engine="0",model_name="b"} 3
vllm:kv_cache_usage_perc{engine="0",model_name="a"} 0.2
vllm:kv_cache_usage_perc{engine="0",model_name="b"} 0.4
""")
    assert sample.running == 5.0
    assert sample.kv_used == pytest.approx(0.3)
    assert sample.models == ("a", "b")


def test_a_rank_that_is_missing_from_one_quantity_makes_only_that_quantity_unknown():
    sample = parse("""\
vllm:num_requests_running{engine="0"} 2
vllm:num_requests_waiting{engine="0"} 1
vllm:num_requests_waiting{engine="1"} 4
""")
    assert (sample.running, sample.waiting) == (None, 5.0)


def test_capacity_of_ranks_without_a_token_size_is_the_blocks_which_are_already_the_sum():
    info = 'vllm:cache_config_info{{block_size="16",engine="{}",num_gpu_blocks="600"}} 1.0\n'
    assert parse(info.format(0) + info.format(1)).kv_capacity == 9600


@pytest.mark.parametrize("blocks", ["None", "0", "-5", "NaN", "inf", "", "1e400"])
def test_a_capacity_that_is_no_number_is_unknown(blocks):
    told = f'num_gpu_blocks="{blocks}",kv_cache_size_tokens="None"'
    sample = parse(f'vllm:cache_config_info{{block_size="16",{told}}} 1.0\n')
    assert (sample.kv_capacity, sample.block_size) == (None, 16)


def test_of_the_adapter_series_the_newest_counts_and_who_waits_is_listed_too():
    series = (
        'vllm:lora_requests_info{{max_lora="4",running_lora_adapters="{}",waiting_lora_adapters="{}"}} {}\n'
    )
    text = series.format("old", "", 100.5) + series.format("b,a", "c, a", 200.5) + series.format("", "", 50.0)
    assert parse(text).adapters == ("a", "b", "c")
    assert parse(text).max_adapters == 4
    assert parse(text + series.format("", "", 300)).adapters == ()


@pytest.mark.parametrize(("awake", "asleep"), [("1.0", False), ("0.0", True), ("NaN", None)])
def test_a_server_put_to_sleep_says_so(awake, asleep):
    text = f"""\
vllm:num_requests_running 0.0
vllm:engine_sleep_state{{engine="0",sleep_state="awake"}} {awake}
vllm:engine_sleep_state{{engine="0",sleep_state="weights_offloaded"}} 0.0
"""
    assert parse(text).asleep is asleep


@pytest.mark.parametrize(("told", "share"), [("1.0005", 1.0), ("1.0", 1.0), ("1.2", None), ("57.5", None)])
def test_a_share_above_one_is_a_rounding_error_or_unknown(told, share):
    assert parse(f"vllm:kv_cache_usage_perc {told}").kv_used == share


def test_created_series_are_never_taken_for_counters():
    assert (
        known(
            parse("vllm:prompt_tokens_created 1.79e+09\nvllm:time_to_first_token_seconds_created 1.79e+09\n")
        )
        == {}
    )


def test_counters_without_the_total_suffix_are_read():
    assert parse("vllm:prompt_tokens 5\nvllm:prefix_cache_hits 3\n").prompt_tokens == 5.0


def test_several_start_times_are_no_start_time():
    assert parse("process_start_time_seconds 5\nprocess_start_time_seconds 6\n").started is None


@pytest.mark.parametrize("name", ["mocker_trtllm.txt", "mocker_frontend.txt"])
def test_names_that_only_look_like_an_engines_are_nobodys(name):
    assert detect(body(name)) is None


def test_vllm_is_recognised_by_its_names_also_in_the_first_line():
    assert detect(body("vllm_0_32_load.txt")) is vllm
    assert detect(b"vllm:num_requests_running 1") is vllm
    assert detect(b"# HELP vllm:num_requests_running text") is None
    assert detect(b"") is None


def test_an_engine_that_is_not_known_is_refused_with_the_names_there_are():
    with pytest.raises(ValueError, match=r"engine 'vlm' is not known; known are vllm.*auto"):
        get("vlm")


@pytest.mark.parametrize("blocks", ["62500000001", "9007199254740991"])
def test_a_capacity_beyond_any_memory_is_unknown(blocks):
    """16 * 62,500,000,000 is 10^12 tokens; 16 * 2^53 and more would not fit the integers of JSON writers."""
    info = 'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{}"}} 1.0\n'
    assert parse(info.format("62500000000")).kv_capacity == 10**12
    assert parse(info.format(blocks)).kv_capacity is None
    assert parse(info.format(blocks).replace("16", "9007199254740991")).kv_capacity is None


def test_a_sum_beyond_what_a_float_holds_is_unknown():
    running = 'vllm:num_requests_running{{model_name="{}"}} 1e308\n'
    assert parse(running.format("a") + running.format("b")).running is None
