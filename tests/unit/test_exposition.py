"""The exposition reader: what it keeps of a body, and that nothing it is given can mislead or break it."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.engines.exposition import MAX_LABELS, MAX_LINE, MAX_LINES, Reader, parse_labels

reader = Reader(["up", "up_total", "load", "load_seconds_sum", "app:queue"])


def values(body: bytes, name: str) -> list[float]:
    return [one.value for one in reader.read(body).series(name)]


def test_only_the_wanted_names_are_kept_and_longer_or_shorter_names_are_other_names():
    body = b"up 1\nup_total 2\nups 3\nu 4\nup_total_created 5\nload_seconds 6\nxup 7\n"
    reading = reader.read(body)
    assert [one.value for one in reading.all()] == [1.0, 2.0]
    assert "up" in reading
    assert "ups" not in reading


def test_comments_are_not_series():
    assert values(b"# HELP up 7\n# TYPE up gauge\nup 1\n", "up") == [1.0]


def test_the_first_line_and_a_last_line_without_newline_count():
    assert values(b"load 1\nup 2", "load") == [1.0]
    assert values(b"load 1\nup 2", "up") == [2.0]


def test_crlf_line_ends_are_read():
    assert values(b'up{a="b"} 3\r\nload 4\r\n', "up") == [3.0]
    assert values(b'up{a="b"} 3\r\nload 4\r\n', "load") == [4.0]


def test_timestamps_and_exemplars_are_skipped():
    body = b'up_total{a="b"} 12 1712345678.5 # {trace_id="x}y"} 0.7 1712345678\nload 3 -5\nup 4 # {a="b"} 1\n'
    assert values(body, "up_total") == [12.0]
    assert values(body, "load") == [3.0]
    assert values(body, "up") == [4.0]


def test_labels_with_escaped_quotes_commas_braces_and_newlines_are_read():
    (one,) = reader.read(rb'app:queue{a="say \"hi\", {x}",b="back\\slash",c="two\nlines",d=""} 5').series(
        "app:queue"
    )
    assert one.value == 5.0
    assert dict(one.labels) == {"a": 'say "hi", {x}', "b": "back\\slash", "c": "two\nlines", "d": ""}


def test_blanks_and_a_trailing_comma_between_labels_are_allowed():
    (one,) = reader.read(b'up{ a = "1" , b="2", }  6').series("up")
    assert (dict(one.labels), one.value) == ({"a": "1", "b": "2"}, 6.0)


def test_labels_in_other_alphabets_and_bytes_that_are_no_utf8_do_not_stop_the_reader():
    assert dict(reader.read('up{m="日本語"} 1'.encode()).series("up")[0].labels) == {"m": "日本語"}
    assert reader.read(b'up{m="\xff"} 1').series("up")[0].value == 1.0


@pytest.mark.parametrize(
    "rest",
    [
        *(b" NaN", b" +Inf", b" -Inf", b" inf", b" -1", b" -0.5", b" 1_000", b" 0x10", b" twelve"),
        *(b'{a="b" 1', b'{a="b} 1', b'{a=b} 1', b'{="b"} 1', b'{a="b"}', b'{a="b"} ', b" ", b'{a="b"} 1 2 3'),
        *(b'{a="b"} 1 later', b"{} } 1", b'{a="b"c="d"} 1', b'{"a"} 1', b" 1.2.3", b" \x00\xff"),
    ],
)  # fmt: skip
def test_a_wanted_line_that_cannot_be_read_is_there_but_unknown(rest):
    (one,) = reader.read(b"up" + rest + b"\nload 1").series("up")
    assert math.isnan(one.value)
    assert values(b"up" + rest + b"\nload 1", "load") == [1.0]


def test_numbers_are_read_in_every_form_exporters_write():
    assert values(b"up 0\nup 1.5\nup 2e3\nup 1.79595497405e+09\nup 7.\nup +4", "up") == [
        0,
        1.5,
        2000,
        1795954974.05,
        7,
        4,
    ]


def test_a_body_with_more_wanted_lines_than_any_engine_has_is_not_read_at_all():
    assert list(reader.read(b"up 1\n" * (MAX_LINES + 1)).all()) == []
    assert len(list(reader.read(b"up 1\n" * MAX_LINES).all())) == MAX_LINES


def test_lines_of_parts_are_the_wanted_lines_and_their_help_as_they_were():
    part = b'nope 1\n# HELP up text\n# HELP ups text\n# TYPE up gauge\nup{a="b"} 2\r\nload 3 4'
    assert reader.lines(part) == [b"# HELP up text", b'up{a="b"} 2\r', b"load 3 4"]


def test_no_labels_and_empty_braces_are_the_same():
    assert parse_labels(None) == parse_labels(b"") == {}
    assert [dict(one.labels) for one in reader.read(b"up{} 1\nup 1").series("up")] == [{}, {}]


def test_label_values_are_those_seen_anywhere_without_the_empty_one():
    reading = reader.read(b'up{e="0"} 1\nload{e="1"} 1\nup{e=""} 1\nup 1')
    assert reading.label_values("e") == {"0", "1"}


def test_labels_made_to_be_slow_are_read_in_linear_time():
    hostile = (
        b'up{a="' + b'\\"' * 500_000 + b"\nup{" + b'a="",' * 200_000 + b"\nup{" + b'""' * 500_000 + b"\n"
    )
    began = time.process_time()
    assert all(math.isnan(value) for value in values(hostile, "up"))
    assert time.process_time() - began < 10


@given(st.binary(max_size=200))
def test_any_bytes_are_read_without_an_error(noise):
    for body in (noise, b"up" + noise, b"up{" + noise + b"} 1", b"up 1\n" + noise + b"\nload 2"):
        for one in reader.read(body).all():
            assert one.value >= 0 or math.isnan(one.value)


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(
    st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), _TEXT, max_size=5),
    st.floats(0, 1e15),
)
def test_whatever_an_exporter_writes_comes_back(labels, value):
    def escape(text):
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    inside = ",".join(f'{name}="{escape(text)}"' for name, text in labels.items())
    (one,) = reader.read(f"up{{{inside}}} {value!r}\n".encode()).series("up")
    assert (dict(one.labels), one.value) == (labels, value)


def test_a_line_longer_than_any_engine_writes_is_unknown_and_its_labels_are_not_read():
    def line(length):
        return b'up{a="' + b"x" * (length - len(b'{a=""} 1')) + b'"} 1\n'

    assert values(line(MAX_LINE), "up") == [1.0]
    assert math.isnan(values(line(MAX_LINE + 1) + b"load 2\n", "up")[0])
    assert values(line(MAX_LINE + 1) + b"load 2\n", "load") == [2.0]


def test_more_labels_than_any_engine_writes_are_not_read_however_many_lines_they_are_on():
    line = b"up{" + b'a="",' * 100 + b"} 1\n"
    assert values(line * (MAX_LABELS // 100), "up") == [1.0] * (MAX_LABELS // 100)
    assert values(line * (MAX_LABELS // 100) + b'up{a=""} 1\n', "up") == []
