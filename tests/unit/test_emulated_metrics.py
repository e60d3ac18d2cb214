"""/metrics against a real vLLM 0.32's: names, types, labels and bounds, and the numbers of known books."""

import re
from pathlib import Path

from extproc.sim.emulated.books import Books, Gauges, Histogram
from extproc.sim.emulated.metrics import exposition
from extproc.sim.emulated.settings import EngineSettings

REAL = (Path(__file__).parents[1] / "fixtures" / "emulated_vllm032_metrics.txt").read_text()
SETTINGS = EngineSettings(model="tiny", adapters=("lora-a",), kv_tokens=9600, block_size=32, max_loras=2)


def emulated(books: Books | None = None, gauges: Gauges | None = None, **changes: object) -> str:
    books = books or Books()
    books.mixes.setdefault(("lora-a", ""), 5.0)
    return exposition(SETTINGS, books, gauges or Gauges(), started=1000.5, wall=100.0)


def families(text: str) -> dict[str, str]:
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))


def series(text: str) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for name, labels in re.findall(r"^([a-z][\w:]*)(?:\{(.*)\})? \S+$", text, re.M):
        found.setdefault(name, []).append(dict(re.findall(r'(\w+)="([^"]*)"', labels)))
    return found


def test_every_family_is_one_of_vllms_with_its_type():
    real = families(REAL)
    for name, kind in families(emulated()).items():
        assert real.get(name) == kind, name


def test_every_series_has_vllms_labels():
    real = series(REAL)
    for name, found in series(emulated()).items():
        known = {frozenset(labels) for labels in real[name]}
        if name == "vllm:cache_config_info":
            assert set(found[0]) <= set(real[name][0])
            continue
        assert {frozenset(labels) for labels in found} <= known, name


def test_histograms_of_time_have_vllms_bounds():
    real, ours = series(REAL), series(emulated())
    for name in ours:
        if name.endswith("_seconds_bucket"):
            assert [labels["le"] for labels in ours[name]] == [labels["le"] for labels in real[name]], name


def test_every_reason_of_vllm_is_there():
    name = "vllm:request_success_total"
    reasons = [labels["finished_reason"] for labels in series(emulated())[name]]
    assert reasons == [labels["finished_reason"] for labels in series(REAL)[name]]


def test_the_books_numbers_are_shown():
    books = Books(queried_tokens=100, hit_tokens=64, prompt_tokens=90, cached_tokens=60, generated_tokens=7)
    books.ends["length"] = 3
    books.first_token.observe(0.05)
    books.first_token.observe(3000.0)
    text = emulated(books, Gauges(running=4, waiting=2, kv_usage=0.25))
    labels = '{engine="0",model_name="tiny"}'
    for line in (
        "process_start_time_seconds 1000.5",
        f"vllm:num_requests_running{labels} 4.0",
        f"vllm:num_requests_waiting{labels} 2.0",
        f"vllm:kv_cache_usage_perc{labels} 0.25",
        f"vllm:prefix_cache_queries_total{labels} 100.0",
        f"vllm:prefix_cache_hits_total{labels} 64.0",
        f"vllm:prompt_tokens_total{labels} 90.0",
        f"vllm:prompt_tokens_cached_total{labels} 60.0",
        f"vllm:generation_tokens_total{labels} 7.0",
        'vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 3.0',
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.04",model_name="tiny"} 0.0',
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.06",model_name="tiny"} 1.0',
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="2560.0",model_name="tiny"} 1.0',
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="tiny"} 2.0',
        f"vllm:time_to_first_token_seconds_count{labels} 2.0",
        f"vllm:time_to_first_token_seconds_sum{labels} 3000.05",
        'vllm:lora_requests_info{max_lora="2",running_lora_adapters="lora-a",waiting_lora_adapters=""} 105.0',
    ):
        assert f"\n{line}\n" in text, line


def test_the_cache_is_described_as_it_is_or_as_it_is_told_to_claim():
    info = series(emulated())["vllm:cache_config_info"][0]
    assert (info["block_size"], info["num_gpu_blocks"], info["kv_cache_size_tokens"]) == ("32", "300", "9600")
    boast = EngineSettings(kv_tokens=9600, block_size=32, reported_kv_tokens=38_400)
    info = series(exposition(boast, Books(), Gauges(), 1.0, 0.0))["vllm:cache_config_info"][0]
    assert (info["num_gpu_blocks"], info["kv_cache_size_tokens"]) == ("1200", "38400")


def test_adapters_are_not_mentioned_when_there_are_none():
    assert "lora" not in exposition(EngineSettings(), Books(), Gauges(), 1.0, 0.0)


def test_a_model_name_can_hold_any_character():
    text = exposition(EngineSettings(model='a"b\\c'), Books(), Gauges(), 1.0, 0.0)
    assert r'model_name="a\"b\\c"' in text


def test_a_value_on_a_bound_belongs_below_it():
    histogram = Histogram((1.0, 2.0))
    for value in (1.0, 1.5, 2.0, 2.1):
        histogram.observe(value)
    histogram.observe(0.5, times=3)
    assert (histogram.counts, histogram.count) == ([4, 2, 1], 7)
    assert histogram.sum == 8.1


def test_adapter_mixes_are_bounded():
    books = Books()
    for number in range(1500):
        books.saw_mix({f"a{number}"}, set(), float(number))
    assert len(books.mixes) == 1000
    assert ("a1499", "") in books.mixes
