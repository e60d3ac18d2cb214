"""Reports of engines: what is told is read back, what is unknown stays so, and hostile ones are refused."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.report import LARGEST, BadReport, Report, read_report, write_report
from extproc.core.sample import Sample
from tests.examples import LETTERS

A = "10.0.0.1:8000"
FULL = Sample(
    at=70.0,
    running=3.0,
    waiting=0.0,
    kv_used=0.25,
    kv_capacity=500_000,
    block_size=16,
    max_running=256,
    hit_tokens=10.0,
    query_tokens=20.0,
    prompt_tokens=30.0,
    generated_tokens=40.0,
    ttft_sum=1.5,
    ttft_count=3.0,
    tpot_sum=0.5,
    tpot_count=40.0,
    prefill_sum=1.0,
    prefill_count=3.0,
    adapters=("a", "b"),
    max_adapters=4,
    asleep=False,
    models=("m",),
    started=1_800_000_000.5,
)


def body(sample: Any = None, **fields: Any) -> bytes:
    told = {"version": 1, "replica": A, **fields}
    return orjson.dumps(told | ({"sample": sample} if sample is not None else {}))


def refused(data: bytes) -> str:
    with pytest.raises(BadReport) as caught:
        read_report(data, 100.0)
    return str(caught.value)


def test_a_sample_arrives_as_it_was_with_its_age_on_the_receivers_clock() -> None:
    told = Report(replica=A, pool="chat", age=30.0, draining=True, sample=FULL)
    assert read_report(write_report(told), 100.0) == told, "at 100 s it is 30 s old: it was read at 70 s"


def test_a_failure_arrives_as_it_was() -> None:
    told = Report(replica="[fd00::1]:8000", failure="status_5xx")
    assert read_report(write_report(told), 100.0) == told


def test_an_unknown_quantity_stays_unknown_left_out_or_null() -> None:
    for sample in ({"running": 2}, {"running": 2, "waiting": None, "kv_used": None, "adapters": None}):
        read = read_report(body(sample), 100.0).sample
        assert read == Sample(at=100.0, running=2.0)
    assert b"waiting" not in write_report(Report(replica=A, sample=Sample(at=0.0, running=2.0)))


def test_no_sample_is_no_idle_sample() -> None:
    assert read_report(body(), 100.0).sample is None


@pytest.mark.parametrize(
    ("sample", "field"),
    [
        ({"running": -1}, "running"),
        ({"running": 1e10}, "running"),
        ({"running": "3"}, "running"),
        ({"running": True}, "running"),
        ({"kv_used": 1.01}, "kv_used"),
        ({"kv_capacity": 0}, "kv_capacity"),
        ({"kv_capacity": 10**13}, "kv_capacity"),
        ({"kv_capacity": 5.5}, "kv_capacity"),
        ({"max_running": 0}, "max_running"),
        ({"prompt_tokens": 1e16}, "prompt_tokens"),
        ({"started": 1e12}, "started"),
        ({"asleep": 1}, "asleep"),
        ({"models": "m"}, "models"),
        ({"models": [1]}, "models"),
        ({"models": ["m" * 600]}, "models"),
        ({"adapters": ["a"] * 5000}, "adapters"),
        ({"at": 5.0}, "at"),
        ({"free_kv": 5}, "free_kv"),
        ([], "sample"),
        ("idle", "sample"),
    ],
)
def test_a_sample_out_of_bounds_is_refused_with_its_field(sample: Any, field: str) -> None:
    assert field in refused(body(sample))


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "no JSON"),
        (b"[]", "no JSON object"),
        (b"nonsense", "no JSON"),
        (b'{"version": 1, "replica": "10.0.0.1:8000", "age": NaN}', "no JSON"),
        (b'{"version": 1, "replica": "10.0.0.1:8000", "sample": {"running": 1e999}}', "no JSON"),
        (b"[" * 60_000, "no JSON"),
        (b" " * (LARGEST + 1), "larger"),
        (body(version=2), "version"),
        (body(version=True), "version"),
        (body(replica=None), "replica"),
        (body(replica="engine.example:8000"), "replica"),
        (body(replica="10.0.0.1"), "replica"),
        (body(replica="10.0.0.1:8000" * 100), "replica"),
        (body(age=-1), "age"),
        (body(age=601), "age"),
        (body(pool="../x"), "pool"),
        (body(pool=7), "pool"),
        (body(draining="yes"), "draining"),
        (body(failure="because"), "failure"),
        (body({"running": 1}, failure="connect"), "both"),
        (body(token="s3cret"), "'token'"),
    ],
)
def test_what_is_no_report_is_refused_and_told_why(data: bytes, what: str) -> None:
    assert what in refused(data)


def test_a_refusal_repeats_nothing_of_what_was_sent_but_a_fields_name() -> None:
    secret = "the patient's name"
    for data in (
        body({"running": secret}),
        body({"models": [secret, 1]}),
        body(pool=secret),
        body(failure=secret),
        body(replica=secret),
        body(token=secret),
        secret.encode(),
    ):
        assert secret not in refused(data)
    assert len(refused(body({"x" * 5000: 1}))) < 200


NUMBERS = (
    st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
    | st.text(LETTERS, max_size=5)
)
FIELDS = ("running", "kv_used", "kv_capacity", "models", "asleep", "started", "strange")


@given(
    st.binary(max_size=200)
    | st.dictionaries(st.sampled_from(("version", "replica", "age", "sample", "pool")), NUMBERS).map(
        lambda told: json.dumps(told).encode()
    )
    | st.dictionaries(st.sampled_from(FIELDS), NUMBERS | st.none() | st.lists(NUMBERS, max_size=3)).map(
        lambda sample: json.dumps({"version": 1, "replica": A, "sample": sample}).encode()
    )
)
def test_anything_is_read_within_bounds_or_refused(data: bytes) -> None:
    try:
        report = read_report(data, 100.0)
    except BadReport:
        return
    sample = report.sample
    assert report.replica == A
    if sample is not None:
        assert sample.running is None or 0 <= sample.running <= 1e9
        assert sample.kv_used is None or 0 <= sample.kv_used <= 1
        assert sample.kv_capacity is None or 1 <= sample.kv_capacity <= 10**12
