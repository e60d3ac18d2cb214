"""The admin port's word on paths there are not, and what commands say of whoever answers in its place."""

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

import aiohttp
import click
import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from extproc.cli import drain, engine, replicas, state
from extproc.io.admin import Admin
from extproc.io.records import Records


def bare(snapshot: Callable[[], dict[str, Any]] = dict) -> Admin:
    """An admin port without pools."""
    return Admin(
        "127.0.0.1:0", pools=[], removed=list, records=Records(1), registry=CollectorRegistry(),
        readiness=lambda: "", shared=lambda: "off", policies=list, snapshot=snapshot,
        explain=lambda _body, _path: {}, max_body=100, clock=lambda: 0.0,
    )  # fmt: skip


async def asked(*questions: tuple[str, str]) -> list[tuple[int, str | None, Any]]:
    """Status, Allow and JSON that an admin port without pools answers to each."""
    port = bare()
    await port.start()
    found = []
    try:
        async with aiohttp.ClientSession() as session:
            for method, path in questions:
                async with session.request(method, f"http://127.0.0.1:{port.port}{path}") as answer:
                    found.append((answer.status, answer.headers.get("allow"), await answer.json()))
    finally:
        await port.stop()
    return found


async def test_a_path_there_is_not_is_answered_with_those_there_are() -> None:
    for status, _, said in await asked(("GET", "/"), ("GET", "/metric"), ("POST", "/a/b%20c")):
        assert status == 404
        assert said["paths"] == [
            "GET /decisions", "POST /explain", "GET /healthz", "GET /metrics", "GET /policies", "GET /readyz",
            "GET /replicas", "GET /snapshot",
        ]  # fmt: skip
        assert "has no such path; it has: GET /decisions, POST /explain" in said["error"]


async def test_a_wrong_method_is_answered_with_the_right_one() -> None:
    post, get = await asked(("POST", "/healthz"), ("GET", "/explain"))
    assert (post[0], post[1], post[2]["error"]) == (405, "GET", "/healthz takes GET")
    assert (get[0], get[1], get[2]["error"]) == (405, "POST", "/explain takes POST")


async def test_a_parameter_there_is_not_is_refused() -> None:
    wrong, right, none = await asked(
        ("GET", "/decisions?lats=3"), ("GET", "/decisions?last=3"), ("GET", "/decisions")
    )
    assert (wrong[0], wrong[2]["error"]) == (400, "there is no parameter 'lats' here; there are: last")
    assert (right[0], none[0]) == (200, 200)


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
async def test_a_url_that_is_too_long_is_answered_and_leaves_no_traceback(
    level: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(level)
    port = bare()
    await port.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
        writer.write(b"GET /%b HTTP/1.1\r\nhost: x\r\n\r\n" % (b"a" * 9000))
        async with asyncio.timeout(60):
            assert (await reader.readline()).split()[1] == b"400"
        writer.close()
        await writer.wait_closed()
    finally:
        await port.stop()
    ours = [record for record in caplog.records if record.name == "kvsteer.admin.http"]
    assert not any(record.exc_info for record in caplog.records)
    wanted = ["a request that is no HTTP was refused: LineTooLong"] if level == logging.DEBUG else []
    assert [record.getMessage() for record in ours] == wanted


async def test_a_fault_of_the_gateway_itself_is_logged_in_full(caplog: pytest.LogCaptureFixture) -> None:
    port = bare(snapshot=lambda: {}["no such"])
    await port.start()
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port.port}/snapshot") as answer,
        ):
            assert answer.status == 500
    finally:
        await port.stop()
    assert [record.exc_info is not None for record in caplog.records] == [True]


@contextmanager
def stranger(status: int, body: bytes) -> Iterator[str]:
    """A server that answers everything alike; its URL."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815 - http.server's name

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


COMMANDS: list[tuple[click.Command, list[str]]] = [
    (replicas.command, []),
    (state.command, []),
    (drain.command, ["10.0.0.1:80"]),
    (drain.undrain, ["10.0.0.1:80"]),
]


@pytest.mark.parametrize(("command", "words"), COMMANDS)
@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (404, b"<html>not found</html>", "it answered HTTP status 404"),
        (404, b'{"error": {"message": "no such route"}}', "it answered HTTP status 404"),
        (200, b"<html>welcome</html>", "something that is not JSON"),
        (200, b'{"object": "list"}', "JSON without '"),
        (200, b"[" * 100_000, "something that is not JSON"),
    ],
)
def test_somebody_else_is_not_taken_for_a_gateway(
    command: click.Command, words: list[str], status: int, body: bytes, says: str
) -> None:
    with stranger(status, body) as url:
        result = CliRunner().invoke(command, [*words, "--admin", url])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"kvsteer: {url} is not the admin port of a gateway")
    assert says in result.stderr
    assert "give the gateway's admin.address (by default port 9095) with --admin" in result.stderr


def test_a_port_that_speaks_no_http_is_taken_for_the_wrong_one_of_the_gateway() -> None:
    class Frames(StreamRequestHandler):
        def handle(self) -> None:
            self.rfile.readline()
            self.wfile.write(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")  # SETTINGS, as a gRPC server begins

    with ThreadingTCPServer(("127.0.0.1", 0), Frames) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        result = CliRunner().invoke(
            replicas.command, ["--admin", f"http://127.0.0.1:{server.server_address[1]}"]
        )
        server.shutdown()
    assert result.exit_code == 1
    assert "it answered no HTTP, as a gateway's grpc.address does" in result.stderr


@pytest.mark.parametrize(("code", "status"), [(400, 2), (409, 3)])
def test_a_gateways_refusal_is_its_own_words(code: int, status: int) -> None:
    with stranger(code, json.dumps({"error": "it is \x1b[31mnot drained"}).encode()) as url:
        result = CliRunner().invoke(drain.undrain, ["10.0.0.1:80", "--admin", url])
    assert (result.exit_code, result.stderr) == (status, "kvsteer: it is ?[31mnot drained\n")


def test_an_engines_port_that_is_taken_is_named_with_what_to_do() -> None:
    with ThreadingTCPServer(("127.0.0.1", 0), StreamRequestHandler) as taken:
        port = taken.server_address[1]
        result = CliRunner().invoke(engine.command, ["--port", str(port)])
    assert result.exit_code == 1
    assert result.stderr == (
        f"Error: can't listen on 127.0.0.1:{port}: another process listens there; end it, or choose another --port "
        "(0 takes a free one)\n"
    )


def test_an_engines_host_that_is_none_of_this_machine_is_named_with_what_to_do() -> None:
    result = CliRunner().invoke(engine.command, ["--host", "192.0.2.1", "--port", "1"])  # RFC 5737: nobody's
    assert result.exit_code == 1
    assert "can't listen on 192.0.2.1:1: " in result.stderr
    assert "must be an address of this machine" in result.stderr
