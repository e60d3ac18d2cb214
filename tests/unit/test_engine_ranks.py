"""All engines alike: a spoilt line is never a zero, and two series of one quantity are never one."""

import re

import pytest

from extproc.core.sample import Sample
from extproc.engines import Engine, Generic, detect, get
from tests.unit.engine_bodies import AT, FIXTURES, body, known, some, spoilt, spoilt_json

TEXTS = sorted(path.name for path in FIXTURES.glob("*.txt") if detect(path.read_bytes()))
JSONS = sorted(path.name for path in FIXTURES.glob("*.json"))

#: Quantities that ranks have each for themselves, and that the replica has as their sum.
SUMS = (
    *("running", "waiting", "hit_tokens", "query_tokens", "prompt_tokens", "generated_tokens", "kv_capacity"),
    *("ttft_sum", "ttft_count", "tpot_sum", "tpot_count", "prefill_sum", "prefill_count", "max_running"),
)


def zeros(truth: Sample, told: Sample) -> list[str]:
    """Fields that are 0 now and were something else, or unknown."""
    before, after = known(truth), known(told)
    return [
        name for name, value in after.items() if value == 0 and value is not False and before.get(name) != 0
    ]


def wanted_part(engine: Engine, text: bytes) -> bytes:
    """The lines that are read, and the comments."""
    names = {name.encode() for name in engine.wanted}
    lines = text.splitlines(keepends=True)
    return b"".join(line for line in lines if line[:1] == b"#" or re.split(rb"[{ ]", line)[0] in names)


@pytest.mark.parametrize("name", TEXTS)
def test_no_line_of_a_capture_removed_or_garbled_makes_a_zero(name: str) -> None:
    engine = detect(body(name))
    assert engine is not None
    text = wanted_part(engine, body(name))
    truth = engine.parse(body(name), AT)
    assert engine.parse(text, AT) == truth
    for what, changed in some(spoilt(text)):
        assert zeros(truth, engine.parse(changed, AT)) == [], what


@pytest.mark.parametrize("name", JSONS)
def test_no_value_of_a_json_body_removed_or_of_another_kind_makes_a_zero(name: str) -> None:
    engine = detect(body(name))
    assert engine is not None
    truth = engine.parse(body(name), AT)
    for what, changed in spoilt_json(body(name)):
        if name == "trtllm_iterations.json" and what == "removed: (1,)":
            continue  # without the newest iteration the one before it is the newest
        assert zeros(truth, engine.parse(changed, AT)) == [], what


def with_another(text: bytes, old: bytes, new: bytes) -> bytes:
    """The body, and each of its lines once more with `old` replaced: what a second rank or model tells."""
    lines = [line for line in text.splitlines(keepends=True) if line[:1] != b"#"]
    return text + b"".join(re.sub(old, new, line) for line in lines if re.search(old, line))


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("vllm_0_32_load.txt", rb'engine="0"', rb'engine="1"'),
        ("vllm_0_32_after_load.txt", rb'engine="0"', rb'engine="1"'),
        ("sglang_0_5_load.txt", rb"\{", rb'{dp_rank="1",'),
        ("sglang_0_5_after.txt", rb"\{", rb'{dp_rank="1",'),
        ("trtllm_prometheus.txt", rb"\{", rb'{instance="b",'),
        ("triton_two_models.txt", rb'model="(large|small)"', rb'model="\1-b"'),
        ("tgi_3.txt", rb"^(tgi_\w+)(\{| )", rb'\1{replica="b"} '),
        ("llamacpp_load.txt", rb"^(llamacpp:\w+)(\{| )", rb'\1{slot="b"} '),
    ],
)
def test_two_series_of_a_quantity_are_two(name: str, old: bytes, new: bytes) -> None:
    text = body(name)
    engine = detect(text)
    assert engine is not None
    one, two = engine.parse(text, AT), engine.parse(with_another(text, old, new), AT)
    for field in SUMS:
        before, after = getattr(one, field), getattr(two, field)
        expected = None if before is None else 2 * before
        assert after == pytest.approx(expected), f"{field}: {before} became {after}"
    assert two.kv_used == pytest.approx(one.kv_used), "a share was added up"


def test_of_two_ranks_one_that_is_unreadable_makes_the_sum_unknown_in_every_engine() -> None:
    running = {
        "vllm": b'vllm:num_requests_running{engine="%d"} %s\n',
        "sglang": b'sglang:num_running_reqs{dp_rank="%d"} %s\n',
        "trtllm": b'trtllm_num_requests_running{instance="%d"} %s\n',
        "triton": b'nv_trt_llm_request_metrics{model="%d",request_type="scheduled",version="1"} %s\n',
        "tgi": b'tgi_batch_current_size{replica="%d"} %s\n',
        "llamacpp": b'llamacpp:requests_processing{slot="%d"} %s\n',
    }
    generic = Generic({"running": "my_running"})
    engines = {name: (get(name), line) for name, line in running.items()}
    engines["generic"] = (generic, b'my_running{rank="%d"} %s\n')
    for name, (engine, line) in engines.items():
        assert engine.parse(line % (0, b"3") + line % (1, b"4"), AT).running == 7.0, name
        for garbage in (b"NaN", b"-1", b"", b"x"):
            sample = engine.parse(line % (0, b"3") + line % (1, garbage), AT)
            assert sample.running is None, f"{name}: {garbage!r} became {sample.running}"
