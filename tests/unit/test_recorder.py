"""Recorded requests: what a line holds and what not, how it becomes a row of a trace, and that all is bounded."""

import asyncio
import json
import time
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from extproc.core.ending import Ending
from extproc.core.exchange import Exchange
from extproc.core.usage.record import Usage
from extproc.io import recorder
from extproc.io.recorder import RecordDesk, Recording
from extproc.io.records import Records
from extproc.sim.compare import Plan, settings_of
from extproc.sim.plan import Fleet
from extproc.sim.recorded import BLOCK, Places, blocks_of, row_of
from extproc.sim.run import SimSettings
from extproc.sim.texts import engine_settings
from extproc.sim.traces import read_trace
from extproc.sim.workload import WorkloadError
from tests.unit.messages import chat, request_body, request_headers
from tests.unit.test_records import World

KEY = b"k" * 16


class Recorded(World):
    """A mind whose exchanges are recorded from second 10 on."""

    def __init__(self) -> None:
        super().__init__()
        self.recording = self.records.recorder = Recording(10.0)

    def exchange(self, now: float) -> Exchange:
        made = Exchange(self.steering)
        made.receive(request_headers(), now)
        made.receive(request_body(chat()), now)
        self.records.settled(made, 0.0)
        return made

    def end(self, exchange: Exchange, first: float) -> None:
        exchange.ending = ending = Ending()
        ending.first_token = first
        ending.usage = Usage(input=100, cached=40, output=7)
        self.records.ended(exchange)

    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.recording.lines().splitlines()]


def test_a_line_has_lengths_hashes_and_times_and_no_word_of_the_request() -> None:
    world = Recorded()
    exchange = world.exchange(12.0)
    assert world.lines() == []  # it runs
    world.end(exchange, 12.25)
    (line,) = world.lines()
    assert set(line) == {
        "at", "tokens", "output", "limit", "bytes", "hashes", "ends", "first", "cached", "policy", "pool",
    }  # fmt: skip
    assert (line["at"], line["tokens"], line["output"], line["cached"]) == (2.0, 100, 7, 40)
    assert line["first"] == pytest.approx(0.25)
    texts = [value for value in line.values() if isinstance(value, str)]
    assert texts == ["charged_cost", world.pool.name]
    assert exchange.decision is not None
    assert exchange.decision.prompt is not None
    assert exchange.decision.prompt.chains == []  # the record still lets go of it


def test_what_began_before_or_after_is_not_in_it() -> None:
    world = Recorded()
    world.records.recorder = None
    early = world.exchange(9.0)
    world.records.recorder = world.recording
    world.end(early, 9.5)
    inside = world.exchange(11.0)
    assert not world.recording.is_over(12.0, 12.0)  # one runs
    late = world.exchange(13.0)
    for exchange in (inside, late):
        world.end(exchange, 13.5)
    assert [line["at"] for line in world.lines()] == [1.0]
    assert world.recording.is_over(13.6, 12.0)


def test_who_never_ends_is_waited_for_only_so_long() -> None:
    world = Recorded()
    world.exchange(11.0)
    assert not world.recording.is_over(41.9, 12.0)
    assert world.recording.is_over(42.0, 12.0)


def test_what_there_is_no_room_for_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_RUNNING", 1)
    monkeypatch.setattr(recorder, "_LINES", 0)
    world = Recorded()
    first = world.exchange(11.0)
    world.exchange(11.0)
    assert (world.recording.left_out, len(world.recording.running)) == (1, 1)
    world.end(first, 11.5)
    assert (world.recording.left_out, world.lines()) == (2, [])


def test_prompts_share_the_blocks_of_what_their_chains_share() -> None:
    # 160 tokens are blocks of 64, 64 and 32. The chains part behind token 128.
    one = blocks_of([64.0, 128.0, 160.0], [1, 2, 3], 160, KEY)
    two = blocks_of([64.0, 128.0, 160.0], [1, 2, 4], 160, KEY)
    assert len(one) == 3
    assert [a == b for a, b in zip(one, two, strict=True)] == [True, True, False]


def test_a_block_that_ends_between_two_hashes_goes_by_the_later_one() -> None:
    # Blocks end at tokens 64 and 128. The first hash is at 75, so that of the first block is that one's; the second
    # block goes by the hash at 150, where the chains have parted.
    one = blocks_of([75.0, 150.0], [1, 2], 150, KEY)
    two = blocks_of([75.0, 150.0], [1, 9], 150, KEY)
    assert [a == b for a, b in zip(one, two, strict=True)] == [True, False, False]


def test_prompts_with_other_bytes_a_token_share_the_blocks_of_what_they_share() -> None:
    # A system prompt of 4,100 bytes is 1,025 tokens in the first prompt, which is 4 bytes a token throughout. The
    # second, whose end is dense, has 2 bytes a token as a whole; the system prompt lies where it lay in the first.
    places, ends = Places(), [1024, 2048, 3072, 4100, 6000]
    first = places.of(ends, [1, 2, 3, 4, 5], 1500, 6000)
    second = places.of(ends, [1, 2, 3, 4, 6], 3000, 6000)
    assert first == [256.0, 512.0, 768.0, 1025.0, 1500.0]
    assert second == [256.0, 512.0, 768.0, 1025.0, 3000.0]
    one, two = blocks_of(first, [1, 2, 3, 4, 5], 1500, KEY), blocks_of(second, [1, 2, 3, 4, 6], 3000, KEY)
    assert one[:16] == two[:16]  # 1,024 of the 1,025 tokens
    assert not set(one[16:]) & set(two[16:])


def test_a_prompt_with_fewer_tokens_than_what_it_shares_still_has_places() -> None:
    places = Places()
    places.of([1000], [1], 900, 1000)
    assert places.of([1000, 1010], [1, 2], 500, 1010) == [900.0, 900.0]


def test_places_are_bounded_and_what_was_seen_longest_ago_goes_first() -> None:
    places = Places(most=3)
    places.of([100, 200, 300], [1, 2, 3], 75, 300)
    places.of([100], [1], 25, 100)
    places.of([50], [4], 10, 50)
    assert len(places) == 3
    assert places.of([100], [1], 99, 100) == [25.0]  # kept, so not anew
    assert places.of([100], [2], 99, 100) == [99.0]


def test_the_key_makes_blocks_other_numbers() -> None:
    chain = ([160.0], [7], 160)
    assert blocks_of(*chain, b"a") != blocks_of(*chain, b"b")
    assert len(set(blocks_of(*chain, b"a"))) == 3  # blocks behind one hash are different ones


def test_a_recorded_trace_is_read_and_played_with_its_own_blocks(tmp_path: Path) -> None:
    said = {
        "at": 1.5, "tokens": 160, "output": 7, "limit": 9, "bytes": 640, "hashes": [1, 2, 3], "ends": [256, 512, 640],
        "first": 0.25, "cached": 40, "policy": "charged_cost", "pool": "p",
    }  # fmt: skip
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(row_of(said, KEY, Places())) + "\n")
    workload = read_trace(path)
    (row,) = workload.rows()
    assert (row.at, row.tokens, row.output, row.limit, row.block, len(row.blocks)) == (
        1.5,
        160,
        7,
        9,
        BLOCK,
        3,
    )
    assert row.prompt().chains[0].ends == [256, 512, 640]
    sim = SimSettings(fleet=Fleet(replicas={"r0": engine_settings({})}))
    plan = Plan(workload=workload, policies=["round_robin"], seeds=[0], sim=sim)
    assert settings_of(plan, "round_robin", 0).fleet.replicas["r0"].block == BLOCK


def test_rows_of_different_blocks_are_refused(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 64, "output_length": 1, "hash_ids": [1]}
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(json.dumps({**row, "block_tokens": size}) for size in (64, 128)))
    with pytest.raises(
        WorkloadError, match=r":2: .*: block_tokens must be 64 as in the rows before, not 128"
    ):
        read_trace(path)


@pytest.mark.parametrize("change", [{"tokens": 0}, {"ends": []}, {"ends": [1, 2]}, {"tokens": 10**12}])
def test_a_line_that_is_none_is_refused(change: dict[str, object]) -> None:
    said = {
        "at": 1.5, "tokens": 4, "output": 7, "limit": None, "bytes": 16, "hashes": [1], "ends": [16], "first": None,
        "cached": None, "policy": "p", "pool": "p",
    }  # fmt: skip
    assert row_of(said, KEY, Places())["ttft_ms"] is None
    with pytest.raises(ValueError, match="not a line"):
        row_of({**said, **change}, KEY, Places())


async def test_who_left_does_not_keep_others_from_recording() -> None:
    records, app = Records(1), web.Application()
    app.add_routes(RecordDesk(records, time.monotonic).routes())
    async with TestServer(app) as server, aiohttp.ClientSession() as client:
        url = server.make_url("/record?seconds=3600")
        async with client.get(url) as first:
            assert first.status == 200
            async with client.get(url) as second:
                assert second.status == 409
            first.close()
        async with asyncio.timeout(60):
            while records.recorder is not None:
                await asyncio.sleep(0.01)
        async with client.get(url) as third:
            assert third.status == 200
            third.close()
