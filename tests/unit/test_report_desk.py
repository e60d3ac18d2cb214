"""POST /report: who may report, what a body may cost, and what is answered and counted."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from extproc.core.pool import Pool
from extproc.core.report import LARGEST
from extproc.errors import ConfigError
from extproc.io.intake import Intake
from extproc.io.report_desk import ReportDesk

A, C = "10.0.0.1:8000", "10.0.0.3:8000"
TOKEN = "s3cret-of-reports"
JSON = {"content-type": "application/json"}


class Port:
    """An admin port with nothing but the desk; A reports by itself, C is scraped."""

    def __init__(self, token_file: str = "") -> None:
        self.now = 100.0
        self.counted: Counter[str] = Counter()
        self.pool = Pool("chat", now=0.0)
        for address in (A, C):
            self.pool.join(address, 0.0)
        intake = Intake([self.pool], lambda _pool, address: "push" if address == A else "pull")
        self.desk = ReportDesk(intake, token_file, lambda: self.now, self._count)

    def _count(self, result: str) -> None:
        self.counted[result] += 1

    async def post(self, data: Any, **headers: str) -> tuple[int, dict[str, Any]]:
        app = web.Application()
        app.add_routes(self.desk.routes())
        async with TestClient(TestServer(app)) as client:
            sent = JSON | {name.replace("_", "-"): value for name, value in headers.items()}
            async with client.post("/report", data=data, headers=sent) as answer:
                return answer.status, orjson.loads(await answer.read())


def report(replica: str = A, **sample: Any) -> bytes:
    return orjson.dumps({"version": 1, "replica": replica, "age": 0.5, "sample": {"running": 2, **sample}})


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    return str(path)


async def test_a_report_is_taken_and_dated_by_the_gateways_clock() -> None:
    port = Port()
    assert await port.post(report()) == (200, {"result": "taken"})
    replica = port.pool.get(A)
    assert replica is not None
    assert replica.sample is not None
    assert (replica.sample.at, replica.sample.running) == (99.5, 2.0)
    assert port.counted == {"taken": 1}


async def test_each_result_has_its_status_and_is_counted() -> None:
    port = Port()
    assert (await port.post(report("10.0.0.9:8000")))[0] == 404
    assert (await port.post(report(C)))[0] == 409
    assert (await port.post(report()))[0] == 200
    assert (await port.post(report()))[0] == 429, "the clock stands still"
    port.now += 0.3
    status, said = await port.post(
        orjson.dumps({"version": 1, "replica": A, "age": 60, "sample": {"running": 9}})
    )
    assert (status, said["result"]) == (200, "older")
    assert port.counted == {"unknown_replica": 1, "not_pushed": 1, "taken": 1, "too_many": 1, "older": 1}


@pytest.mark.parametrize(
    "given", ["", "Bearer ", "Bearer wrong", TOKEN, f"bearer {TOKEN}x", "Bearer s\u00e9cret"]
)
async def test_without_the_token_nothing_is_read(token_file: str, given: str) -> None:
    port = Port(token_file)
    status, said = await port.post(report(), **({"authorization": given} if given else {}))
    assert (status, said["result"]) == (401, "denied")
    assert TOKEN not in str(said)
    replica = port.pool.get(A)
    assert replica is not None
    assert replica.sample is None
    assert port.counted == {"denied": 1}


async def test_with_the_token_it_is_taken(token_file: str) -> None:
    assert (await Port(token_file).post(report(), authorization=f"Bearer {TOKEN}"))[0] == 200


def test_an_empty_token_file_is_no_open_door(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("\n")
    with pytest.raises(ConfigError, match="report_token_file"):
        Port(str(path))


@pytest.mark.parametrize(
    ("data", "status", "result"),
    [
        (b"", 400, "refused"),
        (b"\xff\xfe", 400, "refused"),
        (report(running=-1), 400, "refused"),
        (b'{"version": 1, "replica": "10.0.0.1:8000", "sample": {"running": NaN}}', 400, "refused"),
        (b" " * (LARGEST + 1), 413, "too_large"),
    ],
)
async def test_a_hostile_body_is_refused_and_changes_nothing(data: bytes, status: int, result: str) -> None:
    port = Port()
    got, said = await port.post(data)
    assert (got, said["result"]) == (status, result)
    replica = port.pool.get(A)
    assert replica is not None
    assert replica.sample is None


async def test_a_large_body_of_unknown_length_is_cut_off() -> None:
    async def endless() -> Any:
        for _ in range(100):
            yield b" " * 4096

    status, said = await Port().post(endless())
    assert (status, said["result"]) == (413, "too_large")


async def test_a_body_that_does_not_come_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extproc.io.report_desk._DEADLINE", 0.05)
    never = asyncio.Event()

    async def slow() -> Any:
        yield b"{"
        await never.wait()

    async with asyncio.timeout(30):
        status, said = await Port().post(slow())
    assert (status, said["result"]) == (408, "refused")


async def test_web_pages_and_forms_can_not_report() -> None:
    port = Port()
    assert (await port.post(report(), origin="https://example.org"))[0] == 403
    assert (await port.post(report(), content_type="text/plain"))[0] == 415
