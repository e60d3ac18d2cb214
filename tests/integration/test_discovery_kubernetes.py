"""Kubernetes discovery against a scripted API server over real HTTP: list, watch, resume, 410, and every fault."""

import asyncio
import copy
import json
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from extproc.io.discovery import Failed, Found, KubernetesSource, kube_watch, pods, service_slices
from extproc.io.discovery.kube_api import Access, KubeApi
from extproc.io.discovery.kube_objects import Parsed
from extproc.io.discovery.kubernetes import Resource
from tests.integration.kube_server import Following
from tests.integration.patience import patient

FIXTURES = Path(__file__).parents[1] / "fixtures" / "discovery"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/serving/endpointslices"
PODS = "/api/v1/namespaces/serving/pods"
SLICE = json.loads((FIXTURES / "slice.json").read_text())
POD = json.loads((FIXTURES / "pod.json").read_text())

Watcher = Callable[[web.Request, web.StreamResponse], Awaitable[None]]


def pod(name: str, ip: str, version: int = 1, **meta: str) -> dict[str, Any]:
    """A ready pod."""
    made = copy.deepcopy(POD)
    made["metadata"] |= {"name": name, "resourceVersion": str(version), **meta}
    made["status"] |= {"podIP": ip, "podIPs": [{"ip": ip}]}
    return made


def event(kind: str, thing: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": thing}).encode() + b"\n"


def bookmark(version: int) -> bytes:
    return event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(version)}})


GONE = event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})


class Server:
    """Answers lists with `items` at `version`; each watch sends the next of `watches`, then hangs."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.version = 100
        self.watches: list[Watcher] = []
        self.status: dict[str, list[int]] = {"list": [], "watch": []}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.tokens: list[str | None] = []
        self.page = 250
        self.port = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        kind = "watch" if "watch" in query else "list"
        self.asked.append((kind, {**query, "path": request.path}))
        self.tokens.append(request.headers.get("authorization"))
        if self.status[kind]:
            return web.json_response({"kind": "Status", "message": "s3cret"}, status=self.status[kind].pop(0))
        return await self._watch(request) if kind == "watch" else self._list(query)

    def _list(self, query: dict[str, str]) -> web.Response:
        start = int(query.get("continue", 0))
        end = start + min(self.page, int(query["limit"]))
        meta = {"resourceVersion": str(self.version), "continue": str(end) if end < len(self.items) else ""}
        return web.json_response({"metadata": meta, "items": self.items[start:end]})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        if self.watches:
            await self.watches.pop(0)(request, response)
        else:
            await asyncio.Event().wait()
        return response

    def count(self, kind: str) -> int:
        return sum(asked == kind for asked, _ in self.asked)

    def versions(self) -> list[str]:
        """Resource versions the watches began from."""
        return [query["resourceVersion"] for kind, query in self.asked if kind == "watch"]


def sends(*lines: bytes, then: str = "hang") -> Watcher:
    """A watch that sends these and then hangs, ends, or is cut off."""

    async def watch(request: web.Request, response: web.StreamResponse) -> None:
        for line in lines:
            await response.write(line)
        if then == "hang":
            await asyncio.Event().wait()
        if then == "cut":
            assert request.transport is not None
            request.transport.abort()

    return watch


@asynccontextmanager
async def serving(tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server()
    app = web.Application()
    app.router.add_get("/{tail:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    server.port = runner.addresses[0][1]
    try:
        yield server
    finally:
        await runner.cleanup()


class Heard(Following):
    """Follows a source of a scripted server for the length of a block."""

    def __init__(
        self, server: Server, resource: Resource[Parsed] | None = None, limit: int = 100, **options: Any
    ) -> None:
        access = Access(
            url=options.pop("url", f"http://127.0.0.1:{server.port}"),
            namespace="serving",
            token_file=options.pop("token_file", ""),
            ca_file=options.pop("ca_file", ""),
        )
        api = KubeApi(access, **{"deadline": 2.0, "quiet": 30.0, **options})
        wanted = resource or pods("app=engine", "serving", "8000")
        super().__init__(KubernetesSource(api, wanted, limit=limit))


# -- list and watch ------------------------------------------------------------------------------------------


async def test_slices_of_a_service_are_listed_and_their_changes_watched() -> None:
    async with serving() as server:
        server.items = [SLICE]
        gone = copy.deepcopy(SLICE)
        gone["endpoints"] = gone["endpoints"][:1]
        gone["metadata"]["resourceVersion"] = "101"
        go = asyncio.Event()

        async def watch(_request: web.Request, response: web.StreamResponse) -> None:
            await go.wait()
            await response.write(event("MODIFIED", gone))
            await asyncio.Event().wait()

        server.watches = [watch]
        async with Heard(server, service_slices("engines", "serving", "http")) as heard:
            await heard.until(lambda: len(heard.found) == 4)
            assert heard.found["10.1.0.2:8000"]  # terminating
            go.set()
            await heard.until(lambda: heard.found == {"10.1.0.1:8000": False})
        first, second = server.asked[0], server.asked[1]
        assert first[0] == "list"
        assert (first[1]["path"], first[1]["labelSelector"]) == (SLICES, "kubernetes.io/service-name=engines")
        assert second[0] == "watch"
        assert (second[1]["resourceVersion"], second[1]["allowWatchBookmarks"]) == ("100", "true")


async def test_pods_join_run_out_and_leave_by_events() -> None:
    async with serving() as server:
        server.items = [pod("a", "10.0.0.1")]
        steps = asyncio.Queue[bytes]()

        async def watch(_request: web.Request, response: web.StreamResponse) -> None:
            while True:
                await response.write(await steps.get())

        server.watches = [watch]
        async with Heard(server, pods("app in (engine),!canary", "serving", "8000")) as heard:
            await heard.until(lambda: heard.found == {"10.0.0.1:8000": False})
            steps.put_nowait(event("ADDED", pod("b", "fd00::2", 101)))
            await heard.until(lambda: "[fd00::2]:8000" in heard.found)
            leaving = pod("a", "10.0.0.1", 102, deletionTimestamp="2026-01-01T00:00:00Z")
            steps.put_nowait(event("MODIFIED", leaving))
            await heard.until(lambda: heard.found["10.0.0.1:8000"])
            steps.put_nowait(event("DELETED", leaving))
            await heard.until(lambda: heard.found == {"[fd00::2]:8000": False})
        assert server.asked[0][1]["path"] == PODS
        assert server.asked[0][1]["labelSelector"] == "app in (engine),!canary"


async def test_a_long_list_comes_in_pages() -> None:
    async with serving() as server:
        server.page = 3
        server.items = [pod(f"p{n}", f"10.0.0.{n}") for n in range(1, 11)]
        async with Heard(server) as heard:
            await heard.until(lambda: len(heard.found) == 10)
        assert server.count("list") == 4


async def test_an_event_may_come_in_pieces_and_several_at_once() -> None:
    async with serving() as server:
        whole = event("ADDED", pod("a", "10.0.0.1", 101)) + event("ADDED", pod("b", "10.0.0.2", 102))
        pieces = [whole[:40], whole[40:-30], whole[-30:] + b"\n\n" + bookmark(103)]

        async def watch(_request: web.Request, response: web.StreamResponse) -> None:
            for piece in pieces:
                await response.write(piece)
                await asyncio.sleep(0.02)

        server.watches = [watch]
        async with Heard(server) as heard:
            await heard.until(lambda: set(heard.found) == {"10.0.0.1:8000", "10.0.0.2:8000"})
            await heard.until(lambda: server.versions() == ["100", "103"])


# -- resuming ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["end", "cut"])
async def test_a_watch_that_ends_or_is_cut_goes_on_from_the_last_version_without_a_word(then: str) -> None:
    async with serving() as server:
        server.items = [pod("a", "10.0.0.1")]
        server.watches = [
            sends(event("ADDED", pod("b", "10.0.0.2", 105)), bookmark(140), then=then),
            sends(event("ADDED", pod("c", "10.0.0.3", 141))),
        ]
        async with Heard(server) as heard:
            await heard.until(lambda: len(heard.found) == 3)
        assert (server.count("list"), server.versions(), heard.reasons) == (1, ["100", "140"], [])


async def test_a_quiet_watch_is_opened_anew() -> None:
    async with serving() as server:
        server.items = [pod("a", "10.0.0.1")]
        server.watches = [sends(bookmark(140))]
        async with Heard(server, quiet=0.2) as heard:
            await heard.until(lambda: server.versions()[1:2] == ["140"])
        assert (server.count("list"), heard.reasons) == (1, [])


async def test_a_version_that_is_gone_is_listed_anew_and_what_is_no_longer_listed_leaves() -> None:
    async with serving() as server:
        server.items = [pod("a", "10.0.0.1"), pod("b", "10.0.0.2")]

        async def gone(_request: web.Request, response: web.StreamResponse) -> None:
            server.items, server.version = [pod("b", "10.0.0.2")], 200
            await response.write(GONE)

        server.watches = [gone]
        async with Heard(server) as heard:
            await heard.until(lambda: heard.found == {"10.0.0.2:8000": False})
            await heard.until(lambda: server.count("watch") == 2)
        assert (server.count("list"), server.versions(), heard.reasons) == (2, ["100", "200"], [])


async def test_a_watch_answered_with_410_is_listed_anew() -> None:
    async with serving() as server:
        server.items = [pod("a", "10.0.0.1")]
        server.status["watch"] = [410]
        async with Heard(server) as heard:
            await heard.until(lambda: server.count("watch") == 2)
        assert (server.count("list"), heard.reasons) == (2, [])


async def test_a_list_that_expires_between_its_pages_begins_again() -> None:
    async with serving() as server:
        server.page = 1
        server.items = [pod("a", "10.0.0.1"), pod("b", "10.0.0.2")]
        server.status["list"] = []
        answer, calls = server._list, []

        def first_expires(query: dict[str, str]) -> web.Response:
            calls.append(query.get("continue"))
            return web.Response(status=410) if calls == [None, "1"] else answer(query)

        server._list = first_expires  # type: ignore[method-assign]
        async with Heard(server) as heard:
            await heard.until(lambda: len(heard.found) == 2)
        assert calls == [None, "1", None, "1"]


# -- faults --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        b"{half\n",
        b"[]\n",
        b'{"type": "ADDED"}\n',
        b'{"type": "STRANGE", "object": {}}\n',
        b'{"type": "ADDED", "object": {"metadata": {}}}\n',
        b'{"type": "ADDED", "object": {"metadata": {"name": "x"}, "status": 5}}\n',
        b'{"type": "ADDED", "object": 5}\n',
        b'{"type": "ERROR", "object": {"code": 500}}\n',
        b"\xff\xfe\n",
    ],
)
async def test_a_line_that_cannot_be_read_is_told_and_the_whole_listed_anew(line: bytes) -> None:
    async with serving() as server:
        server.items = [pod("a", "10.0.0.1")]
        server.watches = [sends(line)]
        async with Heard(server) as heard:
            await heard.until(lambda: server.count("watch") == 2)
            await heard.until(lambda: isinstance(heard.said[-1], Found))
            assert heard.found == {"10.0.0.1:8000": False}
        assert (heard.reasons, server.count("list")) == (["unreadable"], 2)


async def test_a_line_without_an_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extproc.io.discovery.kube_api._LONGEST_LINE", 10_000)
    async with serving() as server:
        server.items = [pod("a", "10.0.0.1")]
        server.watches = [sends(b"x" * 20_000)]
        async with Heard(server) as heard:
            await heard.until(lambda: heard.reasons == ["too_large"])


async def test_a_page_that_is_too_large_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extproc.io.discovery.kube_api._LARGEST_PAGE", 1000)
    async with serving() as server:
        server.items = [pod(f"p{n}", f"10.0.0.{n}") for n in range(1, 11)]
        async with Heard(server) as heard:
            await heard.until(lambda: heard.reasons[:1] == ["too_large"])


@pytest.mark.parametrize(
    ("status", "reason", "hint"),
    [
        (401, "denied", "token_file"),
        (403, "denied", "rbac.yaml"),
        (404, "not_found", "URL"),
        (429, "busy", "busy"),
        (500, "status_5xx", "500"),
        (302, "status_3xx", "302"),
    ],
)
async def test_a_refused_list_is_told_with_its_remedy_and_tried_again(
    status: int, reason: str, hint: str
) -> None:
    async with serving() as server:
        server.items = [pod("a", "10.0.0.1")]
        server.status["list"] = [status]
        async with Heard(server) as heard:
            await heard.until(lambda: heard.found == {"10.0.0.1:8000": False})
        (failed,) = [said for said in heard.said if isinstance(said, Failed)]
        assert failed.reason == reason
        assert hint in failed.detail
        assert "s3cret" not in failed.detail


async def test_a_watch_refused_twice_is_told_and_goes_on_where_it_was() -> None:
    async with serving() as server:
        server.items = [pod("a", "10.0.0.1")]
        server.status["watch"] = [503, 503]
        async with Heard(server) as heard:
            await heard.until(lambda: server.count("watch") == 3)
            await heard.until(lambda: isinstance(heard.said[-1], Found))
        assert (heard.reasons, server.count("list")) == (["status_5xx"], 1)


async def test_a_server_that_ends_every_watch_at_once_is_not_asked_in_a_rush() -> None:
    async with serving() as server:
        server.items = [pod("a", "10.0.0.1")]
        server.watches = [sends(then="end") for _ in range(1000)]
        async with Heard(server) as heard:
            await heard.until(lambda: server.count("watch") == 3)
            await asyncio.sleep(0.5)
        # Waits of at least 0.19, 0.38 and 0.75 s stand between them.
        assert server.count("watch") <= 4


async def test_a_server_that_is_silent_costs_a_deadline() -> None:
    closed = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until the client gives up
        writer.close()
        closed.set()

    listening = await asyncio.start_server(silent, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with serving() as server, Heard(server, url=url, deadline=0.2) as heard:
        await heard.until(lambda: heard.reasons[:1] == ["timeout"])
        await asyncio.wait_for(closed.wait(), patient(5))
    listening.close()
    await listening.wait_closed()


async def test_nobody_there_is_a_failure() -> None:
    async with serving() as server, Heard(server, url="http://127.0.0.1:1") as heard:
        await heard.until(lambda: heard.reasons[:1] == ["connect"])


@pytest.mark.parametrize("body", [b"no json", b"[]", b'{"items": []}', b'{"metadata": {}, "items": [5]}'])
async def test_a_list_that_is_none_is_a_failure(body: bytes) -> None:
    async with serving() as server:
        server._list = lambda _query: web.Response(body=body)  # type: ignore[method-assign]
        async with Heard(server) as heard:
            await heard.until(lambda: heard.reasons[:1] == ["unreadable"])


async def test_more_objects_than_the_limit_are_a_failure_and_no_half() -> None:
    async with serving() as server:
        server.items = [pod(f"p{n}", f"10.0.0.{n}") for n in range(1, 7)]
        async with Heard(server, limit=5) as heard:
            await heard.until(lambda: heard.reasons[:1] == ["too_many"])
        assert heard.found == {}


async def test_nothing_with_the_port_is_a_failure_and_no_empty_set() -> None:
    async with serving() as server:
        server.items = [SLICE]
        async with Heard(server, service_slices("engines", "serving", "grpc")) as heard:
            await heard.until(lambda: heard.reasons[:1] == ["no_port"])
        assert heard.found == {}


# -- who asks ------------------------------------------------------------------------------------------------


async def test_the_token_is_read_anew_for_each_request(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    async with serving() as server:

        async def renewed(_request: web.Request, response: web.StreamResponse) -> None:
            token.write_text("second\n")
            await response.write(bookmark(101))

        server.watches = [renewed]
        async with Heard(server, token_file=str(token)) as heard:
            await heard.until(lambda: len(server.tokens) == 3)
        assert server.tokens == ["Bearer first", "Bearer first", "Bearer second"]


@pytest.mark.parametrize("content", [None, "", "with space", "new\nline"])
async def test_a_token_that_is_none_is_told_and_never_shown(tmp_path: Path, content: str | None) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_text(content)
    async with serving() as server:
        async with Heard(server, token_file=str(token)) as heard:
            await heard.until(lambda: heard.reasons[:1] == ["credentials"])
        failed = heard.said[0]
        assert isinstance(failed, Failed)
        assert str(token) in failed.detail
        assert not content or content not in failed.detail
        assert server.asked == []


async def test_no_token_goes_over_plain_http_to_another_machine(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    for url, sent in (("http://10.0.0.1", {}), ("http://[::1]:80", {"authorization": "Bearer secret"})):
        api = KubeApi(Access(url=url, namespace="serving", token_file=str(token)))
        assert api._credentials()[0] == sent


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, made by the openssl command."""
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    make += ["-subj", "/CN=kube", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    try:
        subprocess.run(
            [*make, "-keyout", key, "-out", cert], capture_output=True, timeout=patient(30), check=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no openssl command here to make a certificate with")
    return key, cert


async def test_the_server_is_verified_by_its_ca_which_is_read_anew(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    key, cert = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    ca, token = tmp_path / "ca.crt", tmp_path / "token"
    token.write_text("first")
    async with serving(context) as server:
        server.items = [pod("a", "10.0.0.1")]
        url = f"https://127.0.0.1:{server.port}"
        async with Heard(server, url=url, token_file=str(token)) as heard:
            await heard.until(lambda: heard.reasons[:1] == ["tls"])
        assert server.tokens == []  # whoever can't be verified gets no token
        ca.write_text("none yet")
        async with Heard(server, url=url, token_file=str(token), ca_file=str(ca)) as heard:
            await heard.until(lambda: heard.reasons[:1] == ["credentials"])
            ca.write_text(cert.read_text())
            await heard.until(lambda: heard.found == {"10.0.0.1:8000": False})
        assert server.tokens[0] == "Bearer first"


async def test_cancelling_ends_the_watch_and_closes_its_connection() -> None:
    async with serving() as server:
        ended = asyncio.Event()

        async def watch(_request: web.Request, response: web.StreamResponse) -> None:
            try:
                while True:
                    await response.write(bookmark(101))
                    await asyncio.sleep(0.02)
            finally:
                ended.set()

        server.watches = [watch]
        async with Heard(server) as heard:
            await heard.until(lambda: len(heard.said) > 3)
        async with asyncio.timeout(patient(5)):
            await ended.wait()
        assert heard.task.cancelled()


@pytest.mark.parametrize("body", [b"", b"<html><body>log in</body></html>", b"[]", b"null"])
async def test_watches_that_end_at_once_without_an_event_are_told_and_lists_go_on(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_watch, "_SHORT", 600.0)  # on a machine that stalls "at once" may take a while
    async with serving() as server:
        server.items = [pod("a", "10.0.0.1")]
        ended = asyncio.Event()

        async def no_watch(_: web.Request, response: web.StreamResponse) -> None:
            await response.write(body)
            if ended.is_set():
                await response.write(b"\n" + bookmark(200))
                await asyncio.Event().wait()

        server.watches = [no_watch] * 1000
        async with Heard(server) as heard:
            await heard.until(lambda: bool(heard.reasons))
            assert [kind for kind, _ in server.asked[:4]] == ["list", "watch", "watch", "watch"]
            server.items, server.version = [pod("a", "10.0.0.1"), pod("b", "10.0.0.2")], 101
            await heard.until(lambda: heard.found == {"10.0.0.1:8000": False, "10.0.0.2:8000": False})
            last = [said for said in heard.said if isinstance(said, Found)][-1]
            assert last.trouble is not None, "the list alone ended the failure"
            assert {last.trouble.reason, *heard.reasons} == {"unreadable"}
            if body:
                return  # what is no event stays none
            ended.set()
            await heard.until(lambda: isinstance(heard.said[-1], Found) and heard.said[-1].trouble is None)


async def test_watches_that_stand_again_end_the_failure_though_nothing_changes() -> None:
    async with serving() as server:
        server.items = [pod("a", "10.0.0.1")]
        server.watches = [sends(then="end")] * 1000
        async with Heard(server) as heard:
            await heard.until(lambda: bool(heard.reasons))
            server.watches.clear()  # from now on they are silent, and stand
            await heard.until(lambda: heard.said[-1] == Found(heard.said[0].endpoints))  # type: ignore[union-attr]


async def test_lists_that_are_always_gone_are_told() -> None:
    async with serving() as server:
        server.status["list"] = [410] * 1000
        async with Heard(server) as heard:
            await heard.until(lambda: heard.reasons[:1] == ["unreadable"])
