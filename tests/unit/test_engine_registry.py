"""All engines at once: their names are documented, they are told apart, and no bytes make them fail."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.sample import Sample
from extproc.engines import NAMES, Engine, detect, get
from tests.unit.engine_bodies import AT, FIXTURES, body

PAGE = (Path(__file__).parent.parent.parent / "docs" / "engines.md").read_text()
ENGINES: list[Engine] = [get(name) for name in NAMES]

#: What each kind of fixture is.
OWNERS = {
    "vllm": "vllm",
    "mocker_vllm": "vllm",
    "sglang": "sglang",
    "mocker_sglang": "sglang",
    "llamacpp": "llamacpp",
    "tgi": "tgi",
    "triton": "triton",
    "trtllm": "trtllm",
    "mocker_trtllm": None,
    "mocker_frontend": None,
}


def documented() -> set[str]:
    found = set()
    for quoted in re.findall(r"`([^`\n]+)`", PAGE):
        name, _, _ = quoted.partition("{")
        ends = ("sum", "count") if quoted.endswith("{sum,count}") else ("",)
        found |= {name + end for end in ends}
    return found


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_every_name_that_is_read_is_in_the_documentation(engine):
    assert set(engine.wanted) - documented() == set()


def test_every_metric_in_the_documentation_is_read():
    prefixes = ("vllm:", "sglang:", "trtllm_", "nv_", "tgi_", "llamacpp:")
    tables = PAGE[PAGE.index("## Names") : PAGE.index("## Another engine")]
    named = {
        name for name in documented() if (name.startswith(prefixes) and name in tables) or "process_" in name
    }
    assert {name for name in named if not name.endswith("_")} - {
        n for e in ENGINES for n in e.wanted
    } == set()


@pytest.mark.parametrize("path", sorted(FIXTURES.iterdir()), ids=lambda path: path.name)
def test_every_fixture_is_recognised_as_its_own_engines_and_no_others(path):
    kind = max((kind for kind in OWNERS if path.name.startswith(kind)), key=len)
    text = path.read_bytes()
    owner = detect(text)
    assert (owner.name if owner else None) == OWNERS[kind]
    assert [engine.name for engine in ENGINES if engine.recognises(text)] == [OWNERS[kind]] * bool(
        OWNERS[kind]
    )


@pytest.mark.parametrize(
    "name", ["vllm_0_32_load.txt", "sglang_0_5_load.txt", "llamacpp_load.txt", "tgi_3.txt"]
)
def test_crlf_line_ends_and_timestamps_change_nothing(name):
    text = body(name)
    engine = detect(text)
    assert engine is not None
    truth = engine.parse(text, AT)
    assert engine.parse(text.replace(b"\n", b"\r\n"), AT) == truth
    assert engine.parse(text.rstrip(), AT) == truth
    stamped = re.sub(rb"(?m)^([^#\n].*)$", rb"\1 1795956915000", text)
    assert engine.parse(stamped, AT) == truth


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
@given(noise=st.binary(max_size=300), name=st.integers(0, 100))
def test_no_bytes_make_a_parser_fail_or_tell_what_is_not_there(engine, noise, name):
    wanted = engine.wanted[name % len(engine.wanted)].encode()
    for text in (noise, wanted + noise, wanted + b"{" + noise + b"} 1", b"[{" + noise, b'{"loads":[' + noise):
        sample = engine.parse(text, AT)
        engine.recognises(text)
        for field in fields(Sample):
            value = getattr(sample, field.name)
            assert value is None or not isinstance(value, float) or value >= 0


def test_a_blank_sample_is_one_that_tells_nothing_of_load_cache_or_work():
    assert Sample(at=1.0).is_blank
    assert Sample(at=1.0, models=("m",), started=5.0, block_size=16).is_blank
    for known in ("running", "waiting", "kv_used", "prompt_tokens", "ttft_count"):
        assert not Sample(at=1.0, **{known: 0.0}).is_blank
