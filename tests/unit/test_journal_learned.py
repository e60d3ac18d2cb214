"""What was learned of engines and answers goes with a snapshot, and a new gateway begins with it."""

import math

import msgspec
import pytest

from extproc.core.journal import Engine
from extproc.core.learned import Known, Learned, Lengths, learned, presume
from extproc.core.pool import Pool
from extproc.core.sample import Sample

A = "10.0.0.1:8000"


def pool(*addresses: str) -> Pool:
    made = Pool("chat", now=0.0)
    for address in addresses:
        made.join(address, 0.0)
    return made


def test_a_new_gateway_knows_how_large_caches_are_before_it_hears_an_engine() -> None:
    writer, reader = pool(A), pool(A)
    writer.observe(A, Sample(at=1.0, kv_capacity=2_000_000, started=1000.0))
    assert presume(reader, learned(writer)) == 1
    mine, theirs = reader.get(A), writer.get(A)
    assert mine is not None
    assert theirs is not None
    assert mine.kv_tokens == 2_000_000
    assert reader.index._slots[mine.slot].capacity == writer.index._slots[theirs.slot].capacity


def test_what_an_engine_said_itself_and_other_engines_sizes_are_left_alone() -> None:
    writer, reader = pool(A), pool(A)
    writer.observe(A, Sample(at=1.0, kv_capacity=2_000_000, started=1000.0))
    reader.observe(A, Sample(at=1.0, kv_capacity=1_000_000, started=1000.0))
    assert presume(reader, learned(writer)) == 0
    assert reader.replicas[0].kv_tokens == 1_000_000
    assert presume(pool("10.0.0.9:8000"), learned(writer)) == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 40,
        msgspec.msgpack.encode([[[Engine("chat", A), -1]]]),
        msgspec.msgpack.encode([[[Engine("other", A), 5000]]]),
        msgspec.msgpack.encode([[[Engine("chat", A), 5000, 1, math.nan]]]),
        msgspec.msgpack.encode([[], [["m", [1.0, -1.0], []]]]),
        msgspec.msgpack.encode([[], [["m", [math.inf, 1.0], []]]]),
    ],
)
def test_what_can_not_be_read_of_engines_does_nothing(data: bytes) -> None:
    reader = pool(A)
    assert presume(reader, data) == 0
    assert reader.replicas[0].kv_tokens == 500_000
    assert len(reader.output) == 0


def test_what_is_nonsense_but_of_the_right_form_changes_nothing_that_matters() -> None:
    reader = pool(A)
    engines = [Known(Engine("chat", A), 2**62, 2**62, 0.0, 0.0)]
    lengths = [Lengths("m", (1e12, 1e12), []), Lengths("n", (0.0, 0.0), [])]
    presume(reader, msgspec.msgpack.encode(Learned(engines, lengths)))
    replica = reader.replicas[0]
    assert (replica.kv_tokens, replica.max_running) == (500_000, 256)
    assert (replica.prefill_speed, replica.decode_speed) == (8000.0, 2000.0)
    assert reader.output.predict("m", "chat", 10) == pytest.approx(
        (200 + 8 * 256) / 208
    )  # as 200 answers of 1 token
    assert reader.output.predict("n", "chat", 10) == 256


def test_a_new_gateway_begins_with_the_speeds_that_were_learned() -> None:
    writer, reader = pool(A), pool(A)
    slow = writer.replicas[0]
    slow.max_running = 64
    for _ in range(40):
        slow.learn(8000.0, 4.0)  # 2,000 a second, where 8,000 is configured
    assert slow.prefill_speed < 3000
    presume(reader, learned(writer))
    mine = reader.replicas[0]
    assert (mine.prefill_speed, mine.max_running) == (slow.prefill_speed, 64)
    assert mine.estimates == pytest.approx(slow.estimates)
    for _ in range(40):
        mine.learn(8000.0, 1.0)
    assert mine.prefill_speed > 6000, "what it sees itself overrules that"


def test_a_new_gateway_predicts_answers_as_the_writer_does() -> None:
    writer, reader = pool(), pool()
    for number in range(100):
        writer.output.observe("m", "chat", 100, 40)
        writer.output.observe("m", "chat", 5000, 900)
        writer.output.observe(f"other {number % 3}", "completions", 100, 10)
    presume(reader, learned(writer))
    for model, kind, size in (
        ("m", "chat", 100),
        ("m", "chat", 5000),
        ("m", "chat", 10**6),
        ("m", "x", 1),
        ("other 1", "completions", 9),
    ):
        assert reader.output.predict(model, kind, size) == pytest.approx(
            writer.output.predict(model, kind, size)
        )
    presume(reader, learned(writer), lengths=False)
    assert reader.output.predict("m", "chat", 100) == pytest.approx(writer.output.predict("m", "chat", 100))


def test_lengths_are_added_to_what_was_seen_here_meanwhile() -> None:
    writer, reader = pool(), pool()
    writer.output.observe("m", "chat", 100, 100)
    reader.output.observe("m", "chat", 100, 300)
    presume(reader, learned(writer))
    model = (300 + 100 + 8 * 256) / (2 + 8)
    kind = (300 + 100 + 8 * model) / (2 + 8)
    assert reader.output.predict("m", "chat", 100) == pytest.approx((300 + 100 + 8 * kind) / (2 + 8))


def test_of_many_models_those_with_the_newest_answers_are_told_and_all_of_it_is_bounded() -> None:
    writer, reader = pool(), pool()
    for number in range(200):
        for kind in range(16):
            writer.output.observe(f"{number:03}" * 85, f"kind {kind}", 100, 100)
    data = learned(writer)
    assert len(data) < 300_000
    presume(reader, data)
    assert len(reader.output) == 64
    assert reader.output.predict("199" * 85, "kind 1", 100) < 256
    assert reader.output.predict("135" * 85, "kind 1", 100) == 256


def test_items_that_a_later_release_adds_are_ignored_and_missing_ones_are_unknown() -> None:
    reader = pool(A)
    assert (
        presume(
            reader,
            msgspec.msgpack.encode([[[Engine("chat", A), 5000, 8, 1.0, 1.0, 32, 1.0, "new"]], [], [], "new"]),
        )
        == 1
    )
    assert reader.replicas[0].max_running == 8
    reader = pool(A)
    assert presume(reader, msgspec.msgpack.encode([[[Engine("chat", A), 5000]]])) == 1
    assert (reader.replicas[0].kv_tokens, reader.replicas[0].prefill_speed) == (5000, 8000.0)
