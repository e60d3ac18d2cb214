"""A prefix index in pieces and back: what a new gateway loads."""

import random
from array import array

import msgspec
import pytest

from extproc.core.index_copy import MOST_PIECE, Run, pieces, restore, runs_of
from extproc.core.journal import Batch, Engine, Forgotten, pack_hashes
from extproc.core.pool import Pool
from extproc.core.prompt import Chain
from extproc.core.sample import Sample
from extproc.core.shared import Shared

A, B = "10.0.0.1:8000", "10.0.0.2:8000"


def pool() -> Pool:
    made = Pool("chat", now=0.0)
    made.join(A, 0.0)
    made.join(B, 0.0)
    return made


def chain(*hashes: int) -> Chain:
    return Chain(list(hashes), [1024 * (i + 1) for i in range(len(hashes))])


def load(into: Shared, found: list[bytes], now: float = 100.0) -> int:
    return sum(restore(into, run, (1, 0), now) for piece in found for run in runs_of(piece))


def filled() -> Pool:
    made, rng = pool(), random.Random(1)
    for step in range(400):  # epochs end with time: 30 minutes / 13
        hashes = [rng.getrandbits(60) for _ in range(30)]
        for replica in made.replicas if step % 5 == 0 else made.replicas[step % 2 : step % 2 + 1]:
            made.place(replica, [chain(*hashes)], float(step))
    return made


def test_a_copy_holds_what_the_original_holds() -> None:
    original, copy = filled(), pool()
    found = list(pieces(original, 400.0))
    assert all(len(piece) <= MOST_PIECE for piece in found)
    assert load(Shared([copy], ("me", 1)), found) == len(original.index) > 3000
    for address in (A, B):
        mine, theirs = copy.get(address), original.get(address)
        assert mine is not None
        assert theirs is not None
        assert copy.index.count(mine.slot) == original.index.count(theirs.slot)
        assert copy.index.size(mine.slot) == original.index.size(theirs.slot)
    assert load(Shared([copy], ("me", 1)), found) == 0, "once more changes nothing"


def test_a_long_run_is_taken_in_by_steps_of_a_thousand() -> None:
    copy = pool()
    hashes, weights = array("Q", range(1, 4097)), array("H", [1] * 4096)
    run = Run(Engine("chat", A), 0, 1.0, hashes.tobytes(), weights.tobytes())
    steps = runs_of(msgspec.msgpack.encode([run]))
    assert [len(step.weights) // 2 for step in steps] == [1024] * 4
    assert sum(restore(Shared([copy], ("me", 1)), step, (1, 0), 1.0) for step in steps) == 4096
    assert copy.index.match([4096]) == {copy.replicas[0].slot: 1}


def test_what_was_used_here_meanwhile_is_kept_as_newer() -> None:
    original, copy = pool(), pool()
    original.place(original.replicas[0], [chain(1, 2, 3)], 1.0)
    copy.place(copy.replicas[0], [chain(1, 2)], 90.0)
    assert load(Shared([copy], ("me", 1)), list(pieces(original, 2.0))) == 1
    assert copy.index.match([1, 2, 3]) == {copy.replicas[0].slot: 3}
    assert copy.index.size(copy.replicas[0].slot) == 3 * 1024


def test_what_was_taken_back_after_the_snapshot_does_not_return() -> None:
    original, copy = pool(), pool()
    original.place(original.replicas[0], [chain(1, 2, 3)], 1.0)
    shared = Shared([copy], ("me", 1))
    batch = Batch("o", 1, 0, engines=[Engine("chat", A)], forgotten=[Forgotten(0, pack_hashes([2]))])
    shared.hear(batch, (5, 0), 1.0)
    assert load(shared, list(pieces(original, 2.0))) == 2
    assert copy.index.match([2]) == {}


def test_an_engine_that_restarted_since_gets_nothing() -> None:
    original, copy = pool(), pool()
    original.observe(A, Sample(at=0.5, started=1000.0))
    original.place(original.replicas[0], [chain(1, 2)], 1.0)
    copy.observe(A, Sample(at=0.5, started=2000.0))
    assert load(Shared([copy], ("me", 1)), list(pieces(original, 2.0))) == 0


def test_a_full_slot_takes_no_more() -> None:
    original, copy = filled(), pool()
    copy.index.set_capacity(copy.replicas[0].slot, 10_000)
    load(Shared([copy], ("me", 1)), list(pieces(original, 400.0)))
    assert copy.index.size(copy.replicas[0].slot) <= 10_000


@pytest.mark.parametrize("piece", [b"", b"\xff" * 50, b"\x91" * 9000, b"\0" * (MOST_PIECE + 1)])
def test_what_is_no_piece_has_no_runs(piece: bytes) -> None:
    assert runs_of(piece) == []


@pytest.mark.parametrize(
    ("hashes", "weights"),
    [
        (b"", b""),
        (b"1234567", b"12"),
        (b"\xff" * 8, b"12"),
        (b"\x01" + b"\0" * 7, b""),
        ((b"\x01" + b"\0" * 7) * 2, b"\x01\0" * 2),
    ],
)
def test_garbled_runs_change_nothing(hashes: bytes, weights: bytes) -> None:
    copy = pool()
    run = Run(Engine("chat", A), 0, 1.0, hashes, weights)
    piece = msgspec.msgpack.encode([run])
    assert load(Shared([copy], ("me", 1)), [piece]) == 0
    assert len(copy.index) == 0


def test_of_a_part_that_does_not_fit_the_first_hashes_are_taken_and_those_held_already_need_no_room() -> None:
    original, copy = pool(), pool()
    original.place(original.replicas[0], [chain(1, 2, 3, 4)], 1.0)
    replica = copy.replicas[0]
    copy.index.set_capacity(replica.slot, 3 * 1024)
    copy.place(replica, [chain(1, 2)], 90.0)
    assert load(Shared([copy], ("me", 1)), list(pieces(original, 2.0))) == 1
    assert copy.index.match([1, 2, 3, 4]) == {replica.slot: 3}
    assert copy.index.size(replica.slot) == 3 * 1024


def test_hashes_of_a_replica_that_is_not_known_yet_are_noted_until_it_joins() -> None:
    original, copy = pool(), Pool("chat", now=0.0)
    original.place(original.replicas[1], [chain(1, 2)], 1.0)
    shared = Shared([copy], ("me", 1))
    assert load(shared, list(pieces(original, 2.0))) == 0
    assert shared.arrived() == set()
    copy.join(B, 3.0)
    assert shared.arrived() == {"chat"}
    assert shared.arrived() == set(), "it is told once"
    assert load(shared, list(pieces(original, 2.0))) == 2
