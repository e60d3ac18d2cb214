"""The live page's server side: what it is told, decisions in a table and opened, open pages that are bounded."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from extproc.cli import admin_port
from extproc.core.ending import Ending
from extproc.core.states import OVER
from extproc.core.usage.record import Usage
from extproc.errors import ConfigError
from extproc.io import clock
from extproc.io.metrics import Metrics
from extproc.io.page import build as live_page
from extproc.io.page import events, fleet
from extproc.io.page.choices import Filter, found, opened
from extproc.io.page.files import POLICY, Files
from extproc.io.page.fleet import Fleet, Others, flights_of, pieces_of
from extproc.io.page.history import History
from extproc.io.page.key import OrderKey
from extproc.io.page.orders import FilePolicies
from extproc.io.page.page import Page
from extproc.io.page.policy_desk import _numbers
from extproc.io.page.reader import Reader
from extproc.io.page.sample import A_SECOND, SIZE, Sample
from extproc.io.records import Kept, Records
from tests.unit.test_records import World


class Live(World):
    """A mind whose decisions are shown on a page."""

    def __init__(self) -> None:
        super().__init__()
        self.page: Page = live_page.build(
            "gw-0", self.steering, self.records, Metrics(self.steering, CollectorRegistry()),
            sharing=None, admission=None, removed=list, shared=lambda: ("off", ""), streams=lambda: 3,
            takes_orders=False,
        )  # fmt: skip

    @asynccontextmanager
    async def served(self) -> AsyncIterator[aiohttp.ClientSession]:
        app = web.Application()
        app.add_routes(self.page.routes())
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            yield session
        self.page.close()
        await runner.cleanup()


async def message(answer: aiohttp.ClientResponse, kind: str = "news") -> Any:
    """The next message of this kind in a stream of events."""
    while (line := await answer.content.readline()) != b"event: %b\n" % kind.encode():
        assert line, "the stream ended"
    return orjson.loads((await answer.content.readline()).removeprefix(b"data: "))


async def rows_of(live: Live, others: Others = dict) -> list[dict[str, Any]]:
    return [row async for piece in pieces_of(live.steering.pools, others, 1.0) for row in piece]


def dealt(live: Live, number: int) -> Kept:
    kept = live.records.numbered(number)
    assert kept is not None
    return kept


# -- the files ---------------------------------------------------------------------------------------------


async def test_the_page_and_its_files_come_with_a_strict_policy() -> None:
    live = Live()
    async with live.served() as session:
        for path in ("/", *(f"/page/{name}" for name in Files().names)):
            async with session.get(path) as answer:
                assert answer.status == 200
                assert answer.headers["content-security-policy"] == POLICY
                assert answer.headers["x-content-type-options"] == "nosniff"
    assert "unsafe" not in POLICY
    assert POLICY.startswith("default-src 'none'")


def test_nothing_of_the_page_is_inline_of_elsewhere_or_put_in_as_markup() -> None:
    bodies = {name: body.decode() for name, body in Files()._bodies.items()}
    page = bodies["index.html"]
    assert set(re.findall(r'(?:src|href)="([^"#]*)"', page)) <= {f"page/{name}" for name in bodies}
    assert not re.search(r"<script>|<style| style=| on\w+=", page)
    for name, text in bodies.items():
        assert "//" not in re.sub(r"^\s*//.*$|http://www\.w3\.org/2000/svg", "", text, flags=re.M), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text), name


def test_no_file_of_the_page_has_a_path_from_the_root() -> None:
    for name, body in Files()._bodies.items():
        text = body.decode()
        assert not re.search(r"""(?:src|href)=["']?/""", text), name
        assert not re.search(r"""["'`(]/(?:page|policies|replicas|decisions|state|versions)\b""", text), name
        assert not re.search(
            r"""(?:fetch|get|order|ordered|EventSource|import)\(["'`]/|url\(["']?/""", text
        ), name


def test_the_page_tells_the_number_of_pages_that_there_is() -> None:
    assert f"const PAGES = {events.PAGES}," in Files()._bodies["app.js"].decode()


# -- the fleet ---------------------------------------------------------------------------------------------


async def test_a_replica_is_shown_with_unknown_numbers_as_unknown() -> None:
    live = Live()
    row, _ = await rows_of(live)
    for name in ("running", "waiting", "kv", "headroom", "age"):
        assert row[name] is None, name
    assert row["state"] == live.pool.replicas[0].life.state
    assert row["ahead"] == [0.0, 0.0, 0.0]


async def test_requests_in_flight_are_told_apart_by_gateway() -> None:
    live = Live()
    first, second = live.pool.replicas
    flights = {"gw-1": [first, first, None], "gw-2": [second]}
    assert flights_of(flights) == {id(first): {"gw-1": 2}, id(second): {"gw-2": 1}}
    rows = await rows_of(live, lambda: flights)
    assert [row["others"] for row in rows] == [{"gw-1": 2}, {"gw-2": 1}]


# -- decisions ---------------------------------------------------------------------------------------------


async def test_the_table_is_newest_first_and_keeps_to_its_filters() -> None:
    live = Live()
    sample = Sample(live.records)
    for now in (1.0, 1.1, 1.2):
        live.decide(now)
    sample.tick()
    rows = await found(live.records, sample, Filter())
    assert [row["number"] for row in rows] == [3, 2, 1]
    address, reason = rows[0]["replica"], rows[0]["reason"]
    assert {row["replica"] for row in await found(live.records, sample, Filter(replica=address))} == {address}
    assert await found(live.records, sample, Filter(pool="no such")) == []
    assert await found(live.records, sample, Filter(reason="no such")) == []
    assert len(await found(live.records, sample, Filter(reason=reason))) == 3
    assert await found(live.records, sample, Filter(text="no such id")) == []


def test_of_many_decisions_a_second_a_few_are_taken_spread_over_it() -> None:
    live = Live()
    live.records = Records(1000)
    sample = Sample(live.records)
    for number in range(200):
        live.decide(1.0 + number / 1000)
    sample.tick()
    assert [number for number, _ in sample.newest(100)] == list(range(200, 0, -10))
    exchange = dealt(live, 1)[0]
    for _ in range(2 * SIZE // A_SECOND):
        for _ in range(5 * A_SECOND):
            live.records.settled(exchange, 0.0)
        sample.tick()
    assert len(sample.newest(10_000)) == SIZE


async def test_what_is_in_the_sample_is_found_and_opened_after_it_is_forgotten_elsewhere() -> None:
    live = Live()
    live.decide(1.0)
    await live.page.tick()
    decision = dealt(live, 1)[0].decision
    assert decision is not None
    for now in range(12):  # ten are kept
        live.decide(2.0 + now)
    assert live.records.numbered(1) is None
    async with live.served() as session:
        async with session.get("/page/decisions", params={"reason": decision.reason}) as answer:
            assert 1 in [row["number"] for row in (await answer.json())["decisions"]]
        async with session.get("/page/decisions/1") as answer:
            assert (await answer.json())["number"] == 1
        async with session.get("/page/decisions/2") as answer:
            assert answer.status == 404  # in neither: no turn came while it was kept


def test_a_decision_is_found_by_its_number_until_it_is_forgotten() -> None:
    live = Live()
    for now in range(12):  # ten are kept
        live.decide(float(now))
    for gone in (2, 13, 0):
        assert live.records.numbered(gone) is None
    oldest, newest = (opened(dealt(live, number), number) for number in (3, 12))
    assert (oldest["number"], newest["number"]) == (3, 12)
    assert newest["at"] >= oldest["at"]


def test_the_bars_of_a_candidate_add_up_to_its_score_in_seconds() -> None:
    live = Live()
    live.decide(1.0)
    whole = opened(dealt(live, 1), 1)
    assert whole["in_seconds"]
    assert len(whole["candidates"]) == 2
    for row in whole["candidates"]:
        bar = row["bar"]
        assert bar["ahead"] + bar["uncached"] + bar["rest"] == pytest.approx(row["score"])


# -- traffic -----------------------------------------------------------------------------------------------


def test_a_point_has_rates_and_what_ended_since_the_last_one() -> None:
    live, now = Live(), [100.0]
    outcomes: dict[tuple[str, ...], float] = {}
    history = History(live.records, lambda: outcomes, lambda: (7, 2, 1), lambda: now[0])
    for at in (1.0, 1.1, 1.2, 1.3):
        live.decide(at)
    outcomes["unknown_model", ""] = 6.0
    outcomes["steered", ""] = 4.0
    now[0] = 102.0
    history.tick()
    point = history.points[-1]
    assert (point["decisions"], point["open"], point["held"], point["queued"]) == (2.0, 7, 2, 1)
    assert point["refused"] == {"unknown_model": 3.0}
    assert (point["ttft"], point["hit"]) == (None, None)  # unknown, as nothing ended yet
    _, kept = next(iter(live.records.newest(1)))
    exchange = kept[0]
    exchange.ending = ending = Ending()
    assert exchange.decision is not None
    ending.first_token = exchange.decision.at + 0.25
    ending.usage = Usage(input=100, cached=40, output=1)
    exchange.state = OVER
    now[0] = 103.0
    history.tick()
    point = history.points[-1]
    assert (point["ttft"], point["ttft_p95"], point["hit"]) == (0.25, 0.25, 0.4)
    assert (point["decisions"], point["refused"]) == (0.0, {})


# -- events ------------------------------------------------------------------------------------------------


async def test_a_page_is_greeted_with_the_last_minutes_and_then_told_what_is_new() -> None:
    live = Live()
    live.decide(clock.monotonic())
    await live.page.tick()
    async with live.served() as session, session.get("/page/events") as answer:
        hello = await message(answer)
        assert hello["gateway"] == "gw-0"
        assert len(hello["history"]) == 1
        assert [row["number"] for row in hello["decisions"]] == [1]
        all_of_them = await message(answer, "fleet")
        assert [row["replica"] for row in all_of_them] == [r.address for r in live.pool.replicas]
        live.decide(clock.monotonic())
        await live.page.tick()
        news = await message(answer)
        assert "history" not in news
        assert news["count"] == 2
        assert news["point"] is not None


async def test_a_large_fleet_is_told_of_more_rarely_and_once_for_all_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet, "_PER_SECOND", 1)  # as if each replica were 250
    monkeypatch.setattr(fleet, "_PIECE", 1)
    live, now = Live(), [10.0]
    told = Fleet(live.steering.pools, dict, lambda: now[0])
    assert told.pause == 3.0
    first = await told.text()
    assert len(orjson.loads(first)) == 2
    now[0] = 12.0
    assert not told.is_due
    assert await told.text() is first
    now[0] = 12.5
    assert told.is_due
    both = await asyncio.gather(told.text(), told.text())
    assert both[0] is both[1] is not first


async def test_a_fleet_of_nobody_is_a_list_of_nobody() -> None:
    assert await Fleet([], dict, lambda: 1.0).text() == b"[]"


async def test_so_many_pages_are_open_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PAGES", 1)
    live = Live()
    async with live.served() as session:
        async with session.get("/page/events") as first:
            await message(first)
            async with session.get("/page/events") as second:
                assert second.status == 503
        assert len(live.page.events) <= 1


async def test_who_asks_for_the_head_of_the_stream_gets_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PAGES", 1)
    live = Live()
    async with live.served() as session:
        async with session.head("/page/events") as answer:
            assert (answer.status, answer.content_type) == (200, "text/event-stream")
            assert await answer.read() == b""
        async with session.get("/page/events") as first:
            await message(first)
            async with session.head("/page/events") as answer:
                assert answer.status == 503  # as the stream would be


async def test_the_page_that_was_open_longest_gives_way_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PAGES", 2)
    monkeypatch.setattr(events, "_STAY", 0.0)
    live = Live()
    async with live.served() as session, session.get("/page/events") as first:
        await message(first)
        async with session.get("/page/events") as second:
            await message(second)
            async with session.head("/page/events") as answer:
                assert answer.status == 200
            assert len(live.page.events) == 2  # who only asks takes nobody's place
            async with session.get("/page/events") as third:
                assert third.status == 200
                await message(third)
                assert (await first.content.read()).endswith(b"event: way\ndata: {}\n\n")
                await live.page.tick()
                assert await message(second)
                assert len(live.page.events) == 2


class Pipe:
    """A transport in which so many bytes wait."""

    def __init__(self) -> None:
        self.waits, self.is_aborted = 0, False

    def get_write_buffer_size(self) -> int:
        return self.waits

    def abort(self) -> None:
        self.is_aborted = True


def test_a_page_stalls_while_bytes_wait_and_none_are_taken() -> None:
    pipe: Any = Pipe()
    page = Reader(pipe, 100.0)
    page.sent(1000)
    assert page.stalled(105.0) == 0  # nothing waits: its system took all
    page.sent(1000)
    pipe.waits = 1000
    assert page.stalled(106.0) == 1  # since it was last seen to take anything
    page.sent(500)
    pipe.waits = 1500
    assert page.stalled(110.0) == 5
    pipe.waits = 1400  # slow, but it takes some
    assert page.stalled(111.0) == 0
    pipe.waits = 0
    assert page.stalled(120.0) == 0


async def test_of_full_places_that_of_a_page_that_takes_nothing_is_given_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "PAGES", 2)
    live, stuck, good = Live(), Pipe(), Pipe()
    pages: list[Any] = [Reader(pipe, clock.monotonic() - age) for pipe, age in ((good, 9.0), (stuck, 5.0))]  # type: ignore[arg-type]
    stuck.waits = 100
    live.page.events._pages.update(dict.fromkeys(pages))
    async with live.served() as session, session.get("/page/events") as answer:
        assert answer.status == 200
        await message(answer)
        assert (stuck.is_aborted, good.is_aborted) == (True, False)
        assert pages[1] not in live.page.events._pages


async def served(stream: events.Events) -> web.AppRunner:
    """A server that has this stream alone; whoever asks for it cleans it up."""
    app = web.Application()
    app.add_routes([web.get("/page/events", stream.answer)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=60.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner


async def turns_until_let_go(stream: events.Events) -> int:
    """How often a page that does not read was told, from when it came until it was let go."""
    while not stream:
        await asyncio.sleep(0.01)
    turns = 0
    while stream:
        await stream.turn()
        turns += 1
        await asyncio.sleep(0.01)
    return turns


async def test_a_page_that_does_not_read_a_small_fleets_news_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "_DEADLINE", 0.2)

    async def little() -> dict[str, bytes]:
        return {"news": b"x" * 8000}

    stream = events.Events(little, little)
    runner = await served(stream)
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(runner.addresses[0][:2])
        deaf.sendall(b"GET /page/events HTTP/1.1\r\nhost: x\r\n\r\n")
        async with asyncio.timeout(60):
            told = await turns_until_let_go(stream)
    await runner.cleanup()
    assert told < 150, "the system kept more than a megabyte for it"


async def test_a_page_that_reads_slowly_misses_messages_and_gets_the_newest_of_each_kind() -> None:
    page = Reader()
    page.give({"news": b"1", "fleet": b"a"})
    assert await page.next() == b"1"
    page.give({"news": b"2"})
    page.give({"news": b"3"})
    assert [await page.next(), await page.next()] == [b"a", b"3"]
    page.end()
    assert await page.next() is None


async def test_a_page_that_does_not_read_is_let_go_and_nothing_is_kept_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "_DEADLINE", 0.2)

    async def much() -> dict[str, bytes]:
        return {"news": b"x" * 4_000_000}  # more than buffers of the network take

    stream = events.Events(much, much)
    runner = await served(stream)
    address = runner.addresses[0]
    with socket.create_connection(address[:2]) as deaf:
        deaf.sendall(b"GET /page/events HTTP/1.1\r\nhost: x\r\n\r\n")
        async with asyncio.timeout(60):
            await turns_until_let_go(stream)
            while runner.server is not None and runner.server.connections:
                await asyncio.sleep(0.01)  # its connection is gone too, with all that it had not taken
    await runner.cleanup()


async def test_nothing_is_worked_out_while_nobody_looks() -> None:
    async def never() -> dict[str, bytes]:
        raise AssertionError

    await events.Events(never, never).turn()


async def test_a_decision_that_is_not_kept_is_a_404_that_says_so() -> None:
    live = Live()
    live.decide(1.0)
    async with live.served() as session:
        for number, status in (("1", 200), ("2", 404), ("x", 404), ("9" * 400, 404)):
            async with session.get(f"/page/decisions/{number}") as answer:
                assert answer.status == status
        async with session.get("/page/decisions", params={"reason": "none such"}) as answer:
            assert await answer.json() == {"count": 1, "decisions": []}


async def test_a_parameter_of_the_table_that_there_is_not_is_refused_with_those_there_are() -> None:
    async with Live().served() as session, session.get("/page/decisions?last=x") as answer:
        assert answer.status == 400
        said = (await answer.json())["error"]
        assert said == "there is no parameter 'last' here; there are: pool, replica, reason, text"


# -- orders ------------------------------------------------------------------------------------------------


async def ordered(token: str, headers: dict[str, str], tmp_path: Path) -> int:
    """Status that an order gets."""
    path = tmp_path / "token"
    path.write_text(token)

    async def take(_request: web.Request) -> web.Response:
        return web.Response(text="done")

    app = web.Application()
    key = OrderKey(str(path) if token else "", clock.monotonic)
    app.add_routes(key.guard([web.post("/order", take), web.get("/look", take)]))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    origin = f"http://127.0.0.1:{runner.addresses[0][1]}"
    given = {name: value.replace("OWN", origin) for name, value in headers.items()}
    try:
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{origin}/look") as look:
                assert look.status == 200  # reading needs no token
            async with session.post(f"{origin}/order", headers=given) as answer:
                return answer.status
    finally:
        await runner.cleanup()


RIGHT = {"authorization": "Bearer secret"}


@pytest.mark.parametrize(
    ("token", "headers", "status"),
    [
        ("", {}, 200),  # a command, and no token is set
        ("", {"origin": "OWN"}, 403),  # a web page needs one
        ("secret", {}, 401),
        ("secret", {"authorization": "Bearer other"}, 401),
        ("secret", {"authorization": "Bearer s\xe9cret"}, 401),
        ("secret", RIGHT, 200),
        ("secret", {**RIGHT, "origin": "OWN"}, 200),
        ("secret", {**RIGHT, "origin": "http://elsewhere.example"}, 403),
        ("secret", {**RIGHT, "origin": "null"}, 403),
    ],
)
async def test_an_order_needs_the_token_and_comes_from_the_page_itself(
    token: str, headers: dict[str, str], status: int, tmp_path: Path
) -> None:
    assert await ordered(token, headers, tmp_path) == status


def test_an_empty_token_file_is_refused_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("")
    with pytest.raises(ConfigError, match="token_file"):
        OrderKey(str(path), clock.monotonic)


def test_commands_send_the_token_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text("secret\n")
    monkeypatch.setenv("KVSTEER_TOKEN_FILE", str(path))
    assert admin_port._token() == {"authorization": "Bearer secret"}
    monkeypatch.setenv("KVSTEER_TOKEN_FILE", str(tmp_path / "none"))
    with pytest.raises(SystemExit):
        admin_port._token()
    monkeypatch.delenv("KVSTEER_TOKEN_FILE")
    assert admin_port._token() == {}


async def test_without_redis_policies_are_shown_and_not_changed() -> None:
    app = web.Application()
    app.add_routes(FilePolicies().routes())
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as session:
            async with session.get("/policies/p/versions") as answer:
                assert "redis.url is empty" in (await answer.json())["why"]
            async with session.post("/policies/p/set") as answer:
                assert answer.status == 409
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("text", ["gain", "gain=x", "=", "a b", "gain=1 " * 33])
def test_settings_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no setting|more than 32"):
        _numbers(text)


def test_settings_are_read_as_numbers() -> None:
    assert _numbers(" gain=2  most=10.5 ") == {"gain": 2.0, "most": 10.5}
