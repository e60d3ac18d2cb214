"""Tokens per byte go from gateway to gateway, by the journal and with a snapshot."""

import math

import msgspec
import pytest

from extproc.core.journal import Batch, Ratio, decode, encode
from extproc.core.learned import Learned, learned, presume
from extproc.core.ledger import Ledger
from extproc.core.outbox import Outbox
from extproc.core.pool import Pool
from extproc.core.shared import Shared


def pool(*, learns: bool = True) -> Pool:
    return Pool("chat", now=0.0, distrust=0.5 if learns else None)


def taught(model: str = "m", prompts: int = 20, each: float = 2.5) -> Pool:
    made = pool()
    for _ in range(prompts):
        made.ratios.observe(model, "ascii", 1000, 1000 / each)
    return made


def outbox_of(writer: Pool) -> Outbox:
    return Outbox("other", 1, [writer], Ledger(), lambda: None)


def hear(reader: Pool, batch: Batch) -> None:
    Shared([reader], ("me", 1)).hear(decode(encode(batch)), (5, 0), 10.0)


def test_a_gateway_that_never_saw_a_model_knows_its_ratio_from_another() -> None:
    writer, reader = taught(), pool()
    batch = outbox_of(writer).batch(0.0)
    assert [(row.pool, row.model, row.script, row.seen) for row in batch.ratios] == [
        ("chat", "m", "", 20),
        ("chat", "m", "ascii", 20),
    ]
    hear(reader, batch)
    assert reader.ratios.line("m", "ascii") == writer.ratios.line("m", "ascii")
    assert reader.ratios.ratio("m", "ascii") == pytest.approx(0.4, rel=0.01)


def test_it_is_told_again_when_it_moved_by_a_per_cent_and_every_three_seconds_at_most() -> None:
    writer = taught()
    outbox = outbox_of(writer)
    assert len(outbox.batch(0.0).ratios) == 2
    assert outbox.batch(3.1).ratios == [], "nothing moved"
    for _ in range(20):
        writer.ratios.observe("m", "ascii", 1000, 500)
    assert outbox.batch(4.0).ratios == [], "it was looked at 0.9 s ago"
    assert len(outbox.batch(6.2).ratios) == 2
    writer.ratios.observe("m", "ascii", 1000, 1000 * writer.ratios.ratio("m", "ascii"))
    assert outbox.batch(9.3).ratios == [], "one prompt like the others moves less than a per cent"


def test_who_missed_something_hears_all_of_it_again() -> None:
    outbox = outbox_of(taught())
    outbox.batch(0.0)
    outbox.table_wanted(1.0)
    assert len(outbox.batch(3.0).ratios) == 2
    outbox.failed()
    assert len(outbox.batch(6.0).ratios) == 2, "the last batch was lost"


def test_what_was_heard_is_not_told_on() -> None:
    reader = pool()
    outbox = outbox_of(reader)
    hear(reader, outbox_of(taught()).batch(0.0))
    assert outbox.batch(0.0).ratios == []


def test_the_row_with_more_prompts_behind_it_counts() -> None:
    reader = taught(prompts=30, each=4.0)
    hear(reader, outbox_of(taught(prompts=20)).batch(0.0))
    assert reader.ratios.ratio("m", "ascii") == pytest.approx(0.25)
    hear(reader, outbox_of(taught(prompts=40)).batch(0.0))
    assert reader.ratios.ratio("m", "ascii") == pytest.approx(0.4, rel=0.01)


def test_news_of_many_models_go_in_several_batches() -> None:
    writer = pool()
    for number in range(40):
        for _ in range(8):
            writer.ratios.observe(f"model {number}", "ascii", 1000, 400)
    outbox, reader = outbox_of(writer), pool()
    sizes = []
    for at in (0.0, 3.0, 6.0):
        batch = outbox.batch(at)
        sizes.append(len(batch.ratios))
        hear(reader, batch)
    assert sizes == [64, 16, 0]
    assert len(reader.ratios) == 40


def test_a_gateway_without_feedback_neither_tells_nor_takes() -> None:
    deaf = pool(learns=False)
    hear(deaf, outbox_of(taught()).batch(0.0))
    presume(deaf, learned(taught()))
    assert len(deaf.ratios) == 0
    mute = taught()
    mute.feedback = None
    assert outbox_of(mute).batch(0.0).ratios == []


@pytest.mark.parametrize("row", [(3, 0.3, 0.1, 3.0), (20, 9.0, 0.1, 20.0), (20, 0.3, 0.1, 1e9)])
def test_rows_that_nobody_can_have_learned_are_passed_over(row: tuple[int, float, float, float]) -> None:
    seen, start, error, n = row
    reader = pool()
    hear(
        reader,
        Batch("other", 1, 0, ratios=[Ratio("chat", "m", "", seen, start, error, n, 0.0, 0.0, 1.0, 0.0)]),
    )
    assert reader.ratios.ratio("m") == 0.25


def test_a_batch_of_a_release_that_knows_no_ratios_is_read() -> None:
    old = msgspec.msgpack.encode((1, msgspec.msgpack.encode(["other", 1, 0])))
    assert decode(old).ratios == []
    rows: list[object] = ["other", 1, 0, False, False, [], None, [], [], [], [], [], [], [], []]
    newer = msgspec.msgpack.encode((1, msgspec.msgpack.encode([*rows, [], [], False, [], [], "new"])))
    assert decode(newer).gateway == "other"


def test_a_new_gateway_begins_with_the_ratios_of_the_snapshot() -> None:
    writer, reader = taught(), pool()
    data = learned(writer)
    for _ in range(2):
        presume(reader, data)
        assert reader.ratios.line("m", "ascii") == writer.ratios.line("m", "ascii")
    elsewhere = Pool("other", now=0.0, distrust=0.5)
    presume(elsewhere, data)
    assert len(elsewhere.ratios) == 0, "ratios are a pool's own"


def test_a_snapshot_with_nonsense_for_a_ratio_is_not_taken() -> None:
    reader = pool()
    presume(reader, msgspec.msgpack.encode([[], [], [["chat", "m", "", 20, math.nan, 0, 1, 0, 0, 1, 0]]]))
    assert len(reader.ratios) == 0
    presume(reader, msgspec.msgpack.encode(Learned([], [], [])))
    assert len(reader.ratios) == 0
