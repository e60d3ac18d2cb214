"""Bodies of one replica read one after the other tell what each of them tells when it is read alone."""

import random
import re
from dataclasses import fields

import pytest

from extproc import engines
from extproc.core.sample import Sample
from extproc.engines import Engine, Last
from extproc.engines.exposition import Reader
from extproc.engines.factored import Factored
from tests.examples import QUICK, count_of
from tests.unit.engine_bodies import body, some, spoilt

FIXTURES = [
    ("vllm", "vllm_0_32_load.txt"),
    ("vllm", "vllm_0_32_dp2_load.txt"),
    ("sglang", "sglang_0_5_load.txt"),
    ("trtllm", "trtllm_prometheus.txt"),
    ("tgi", "tgi_3.txt"),
    ("triton", "triton_two_models.txt"),
    ("llamacpp", "llamacpp_load.txt"),
]


class Counting:
    """An engine that counts the bodies of which all is read, and the samples that are made anew."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = engine
        self.read = self.made = 0
        read, parse = Reader.places, type(engine).parse

        def counted(reader: Reader, text: bytes):
            self.read += 1
            return read(reader, text)

        def made(*arguments):
            self.made += 1
            return parse(*arguments)

        monkeypatch.setattr(Reader, "places", counted)
        monkeypatch.setattr(type(engine), "parse", made)


def grown(text: bytes, by: float) -> bytes:
    """The body with every value larger: integers by a whole number, so that some get a digit more."""

    def more(match: re.Match[str]) -> str:
        value = float(match[2])
        return f"{match[1]} {value + by if value > 1 else value}"

    return re.sub(r"^([a-z]\S*) ([0-9.e+]+)$", more, text.decode(), flags=re.M).encode()


@pytest.mark.parametrize(("engine", "name"), FIXTURES)
def test_a_body_whose_values_moved_tells_what_it_tells_alone(engine, name) -> None:
    made, last, text = engines.get(engine), Last(), body(name)
    for step, by in enumerate([0.0, 0.0, 1.0, 1.25, 9.0, 900.0, 1e6, 0.0]):
        moved = grown(text, by)
        assert last.parse(made, moved, float(step)) == made.parse(moved, float(step)), by


@pytest.mark.parametrize(("engine", "name"), FIXTURES)
def test_a_line_that_went_or_is_garbled_is_seen_at_once_and_again_when_it_is_back(engine, name) -> None:
    made, text = engines.get(engine), body(name)
    whole, last = made.parse(text, 1.0), Last()
    wanted = [word.encode() for word in made.wanted]
    for what, other in some(spoilt(text)):
        if any(word in what.encode() for word in wanted):
            assert last.parse(made, text, 1.0) == whole, what
            assert last.parse(made, other, 1.0) == made.parse(other, 1.0), what
            if what.startswith(
                ("no value", "blanks lost")
            ):  # then it is no line of the name, until all is read anew
                last = Last()


@pytest.mark.parametrize(("engine", "name"), FIXTURES)
def test_a_line_that_came_is_seen_at_once(engine, name) -> None:
    made, text = engines.get(engine), body(name)
    lines = text.splitlines(keepends=True)
    new = [f"{name} 7\n".encode() for name in made.wanted]
    last = Last()
    for number, place in enumerate(range(0, len(lines) + 1, 3 if QUICK else 1)):
        other = b"".join([*lines[:place], new[number % len(new)], *lines[place:]])
        last.parse(made, text, 1.0)
        assert last.parse(made, other, 1.0) == made.parse(other, 1.0), place


def test_a_body_that_says_the_same_is_neither_read_nor_made_into_a_sample_again(monkeypatch) -> None:
    vllm, text, last = engines.get("vllm"), body("vllm_0_32_load.txt"), Last()
    counting = Counting(vllm, monkeypatch)
    first = last.parse(vllm, text, 1.0)
    others = text.replace(b"process_open_fds 57.0", b"process_open_fds 157.0")  # a line that nobody wants
    second = last.parse(vllm, others, 2.0)
    assert (second, second.at, counting.read, counting.made) == (first.again(2.0), 2.0, 1, 1)
    third = last.parse(vllm, re.sub(rb"(num_requests_running\S+) \S+", rb"\1 17.0", text), 3.0)
    assert (third.running, third.waiting, counting.read, counting.made) == (17.0, first.waiting, 1, 2)


def test_all_is_read_anew_now_and_then(monkeypatch) -> None:
    vllm, text, last = engines.get("vllm"), body("vllm_0_32_load.txt"), Last()
    counting = Counting(vllm, monkeypatch)
    for step in range(130):
        last.parse(vllm, text, float(step))
    assert counting.read == 3  # the first, and each 64th behind it


def test_lines_that_stand_elsewhere_are_found_as_long_as_no_wanted_line_came_between(monkeypatch) -> None:
    made, last = engines.made_of({"running": "run", "waiting": "wait"}), Last()
    counting = Counting(made, monkeypatch)
    for between in (b"other 1\n", b'other 1\nother{a="b"} 22\n', b"\n", b"other 1\n" * 30):
        text = b"# TYPE run gauge\nrun 3\n" + between + b"wait 4\n" + between
        sample = last.parse(made, text, 1.0)
        assert (sample.running, sample.waiting) == (3.0, 4.0)
    assert counting.read == 1
    assert last.parse(made, b'# TYPE run gauge\nrun 3\nrun{a="b"} 5\nwait 4\n', 1.0).running == 8.0
    assert (
        last.parse(made, b"# TYPE run gauge\nrun 3\n" + b"other 1\n" * 99 + b"wait 4\n", 1.0).running == 3.0
    )
    assert counting.read == 3


@pytest.mark.parametrize(
    "value", ["NaN", "+Inf", "-1", "1_0", "3 1712345678", '3 # {a="b"} 1', "1e999", "x", ""]
)
def test_values_that_are_no_plain_numbers_mean_what_they_mean_alone(value) -> None:
    made, last = engines.made_of({"running": "run", "waiting": "wait"}), Last()
    plain, other = b"run 3\nwait 4\n", f"run {value}\nwait 4\n".encode()
    for text in (plain, other, other, plain, other, plain):
        assert last.parse(made, text, 1.0) == made.parse(text, 1.0), text


def test_json_between_two_texts_leaves_nothing_behind() -> None:
    sglang, last = engines.get("sglang"), Last()
    text, json = body("sglang_0_5_load.txt"), body("sglang_0_5_loads_load.json")
    for each in (text, json, text, text, json, json, text):
        assert last.parse(sglang, each, 1.0) == sglang.parse(each, 1.0)


def test_an_engine_with_one_more_metric_is_followed_in_both() -> None:
    made = Factored(engines.get("vllm"), "price")
    text, last = body("vllm_0_32_load.txt"), Last()
    for price in (b"2.5", b"2.5", b"3.5", b"10"):
        both = text + b"price " + price + b"\n"
        sample = last.parse(made, both, 1.0)
        assert (sample, sample.factor) == (made.parse(both, 1.0), float(price))


def test_bodies_of_which_one_line_comes_goes_or_changes_tell_what_they_tell_alone() -> None:
    made = engines.made_of({"running": "run", "waiting": "wait", "kv_used": "kv / 100"})
    names = ["run", "wait", "kv", "other", 'run{a="1"}', 'run{a="2"}', "#HELP"]
    rng, last = random.Random(5), Last()
    lines: list[str] = []
    for step in range(count_of(5000, quick=1500)):
        value = f"{rng.choice([1, 5, 10, 99.5])}{rng.choices(['', ' 5', chr(13)], [20, 1, 1])[0]}"
        place = rng.randrange(len(lines) + 1)
        if rng.random() < 0.4 and lines:
            del lines[place - 1]
        elif rng.random() < 0.5 and lines:
            lines[place - 1] = lines[place - 1].split(" ")[0] + " " + value
        elif len(lines) < 9:
            lines.insert(place, f"{rng.choice(names)} {value}")
        text = "\n".join(lines).encode() + rng.choice([b"", b"\n"])
        assert last.parse(made, text, 1.0) == made.parse(text, 1.0), (step, text)


def test_told_again_a_sample_differs_in_its_time_alone() -> None:
    names = [field.name for field in fields(Sample) if field.name != "at"]
    sample = Sample(at=1.0, **dict(zip(names, range(len(names)), strict=True)))
    again = sample.again(2.0)
    assert again.at == 2.0
    assert [getattr(again, name) for name in names] == list(range(len(names)))
