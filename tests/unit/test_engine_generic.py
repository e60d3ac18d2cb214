"""Engines whose names come from settings; LMDeploy's as the example."""

import re
from pathlib import Path

import pytest

from extproc.config import parse
from extproc.engines import Generic
from extproc.engines.generic import FIELDS
from tests.unit.engine_bodies import AT, known, spoilt

LMDEPLOY = {
    "running": "lmdeploy:num_requests_running",
    "waiting": "lmdeploy:num_requests_waiting",
    "kv_used": "lmdeploy:gpu_cache_usage_perc",
    "ttft_sum": "lmdeploy:time_to_first_token_seconds_sum",
}

BODY = b"""\
lmdeploy:num_requests_running{engine="0",model_name="m"} 2
lmdeploy:num_requests_running{engine="1",model_name="m"} 3
lmdeploy:gpu_cache_usage_perc{engine="0",model_name="m"} 0.25
lmdeploy:gpu_cache_usage_perc{engine="1",model_name="m"} 0.75
lmdeploy:time_to_first_token_seconds_sum{engine="0",model_name="m"} 1.5
lmdeploy:time_to_first_token_seconds_sum{engine="1",model_name="m"} 0.5
"""


def test_names_of_settings_are_added_and_kv_use_is_averaged():
    sample = Generic(LMDEPLOY).parse(BODY, AT)
    assert sample.at == AT
    assert known(sample) == {"running": 5.0, "kv_used": 0.5, "ttft_sum": 2.0}


def test_labels_choose_series_and_a_factor_brings_them_to_our_units():
    names = {
        "kv_used": 'cache_percent{device="gpu",kind="a}b"} / 100',
        "kv_capacity": 'blocks{kind="max"} * 16',
        "block_size": "block_size",
        "max_running": "slots",
        "started": "boot_time",
    }
    text = b"""\
cache_percent{device="gpu",kind="a}b",x="1"} 50
cache_percent{device="cpu",kind="a}b"} 90
blocks{kind="max"} 100
blocks{kind="used"} 7
block_size{rank="0"} 16
block_size{rank="1"} 16
slots 8
boot_time 1795954974.05
"""
    assert known(Generic(names).parse(text, AT)) == {
        "kv_used": 0.5,
        "kv_capacity": 1600,
        "block_size": 16,
        "max_running": 8,
        "started": 1795954974.05,
    }


def test_a_garbled_line_makes_its_quantity_unknown():
    engine = Generic(LMDEPLOY)
    for what, changed in spoilt(BODY):
        if not what.startswith("removed"):
            sample = engine.parse(changed, AT)
            assert sample.running in (5.0, None), what
    assert engine.parse(BODY.replace(b'"m"} 3', b'"m"} NaN'), AT).running is None
    assert engine.parse(BODY.replace(b'engine="1",model_name="m"} 3', b"engine=1} 3"), AT).running is None


def test_an_unreadable_line_may_be_the_one_a_label_asks_for():
    engine = Generic({"running": 'up{a="b"}'})
    assert engine.parse(b'up{a="b"} 1\nup{a="c"} 5\n', AT).running == 1.0
    assert engine.parse(b'up{a="b"} 1\nup{a="c} 5\n', AT).running is None
    assert engine.parse(b'up{a="b"} 1\nup 5\n', AT).running == 1.0


def test_it_recognises_a_body_with_any_of_its_names():
    engine = Generic(LMDEPLOY)
    assert engine.recognises(BODY)
    assert not engine.recognises(b"vllm:num_requests_running 1\n")
    assert engine.name == "generic"
    assert set(engine.wanted) == set(LMDEPLOY.values())


def test_every_field_that_is_a_quantity_can_be_named():
    engine = Generic({field: f"m_{field}" for field in FIELDS})
    text = "".join(f"m_{field} 1\n" for field in FIELDS).encode()
    assert known(engine.parse(text, AT)).keys() == set(FIELDS)


def test_the_documented_settings_read_the_documented_engine():
    page = (Path(__file__).parent.parent.parent / "docs" / "engines.md").read_text()
    (example,) = re.findall(r"```yaml\n(pools:.*?engine: generic.*?)```", page, re.DOTALL)
    pool = parse(example, "kvsteer.yaml").pools[0]
    engine = pool.reader
    assert isinstance(engine, Generic)
    assert engine is pool.reader, "it is made anew for every replica"
    assert known(engine.parse(BODY, AT)) == {"running": 5.0, "kv_used": 0.5, "ttft_sum": 2.0}


def test_every_quantity_is_documented():
    page = (Path(__file__).parent.parent.parent / "docs" / "engines.md").read_text()
    rows = page[page.index("| quantity | unit |") : page.index("**With code**")]
    assert sorted(re.findall(r"`(\w+)`", rows)) == sorted(FIELDS)


def test_engines_with_a_name_are_read_by_it():
    assert parse('pools: [{replicas: ["10.0.0.1:1"], engine: sglang}]', "f").pools[0].reader == "sglang"
    assert parse('pools: [{replicas: ["10.0.0.1:1"]}]', "f").pools[0].reader == "auto"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({}, "no field is named; known are block_size"),
        ({"runing": "x"}, "'runing' is no field; known are .*running"),
        ({"running": ""}, "running: '' is no metric; write name"),
        ({"running": "a b"}, "is no metric; write name"),
        ({"running": "a{b=c}"}, "is no metric; write name"),
        ({"running": "a{b}"}, "is no metric; write name"),
        ({"running": "a / 0"}, "no factor that can be used: 0"),
        ({"running": "a / 1.2.3"}, r"no factor that can be used: 1\.2\.3"),
        ({"running": "a + b"}, "is no metric; write name"),
    ],
)
def test_names_that_cannot_be_meant_are_refused_with_the_form(names, message):
    with pytest.raises(ValueError, match=message):
        Generic(names)
