"""Envoy by itself, no gateway running, with small HTTP servers as replicas."""

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from extproc.addresses import HostPort
from extproc.config import parse
from extproc.envoyconfig import render
from tests.integration.patience import patient, until

ENVOY = Path(sys.executable).with_name("envoy")


class _Echo(BaseHTTPRequestHandler):
    """Answers every request with the headers it got, as JSON."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        time.sleep(float(self.headers.get("x-test-sleep", 0)))
        body = json.dumps({name.lower(): value for name, value in self.headers.items()}).encode()
        self.send_response(200)
        self.send_header("x-kvsteer-replica", "a lie")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - the base class's naming

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass


@contextmanager
def replicas(count: int) -> Iterator[list[str]]:
    """Addresses of `count` echoing replicas."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _Echo) for _ in range(count)]
    for server in servers:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield [f"127.0.0.1:{server.server_address[1]}" for server in servers]
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


class _InOnePiece(http.client.HTTPConnection):
    """Sends a request's head and body at once: Envoy has both before the gateway has said anything to the head."""

    def _send_output(self, message_body: Any = None, encode_chunked: bool = False) -> None:
        self._buffer.extend((b"", b""))
        self.send(b"\r\n".join(self._buffer) + (message_body or b""))
        self._buffer.clear()


class Envoy:
    """A running Envoy and what it can be asked."""

    def __init__(self, admin: str) -> None:
        self._admin = admin
        listeners = json.loads(self._get(admin, "/listeners?format=json")[1])["listener_statuses"]
        socket = listeners[0]["local_address"]["socket_address"]
        self._listen = f"127.0.0.1:{socket['port_value']}"

    def hosts(self, cluster: str) -> set[str]:
        """`ip:port` of the hosts a cluster has at this moment."""
        statuses = json.loads(self._get(self._admin, "/clusters?format=json")[1])["cluster_statuses"]
        (hosts,) = [status.get("host_statuses", []) for status in statuses if status["name"] == cluster]
        sockets = [host["address"]["socket_address"] for host in hosts]
        return {str(HostPort(socket["address"], socket["port_value"])) for socket in sockets}

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers (lower case) of one answer to a client."""
        return self._ask(self._listen, method, path, body, headers or {})

    def _get(self, address: str, path: str) -> tuple[int, bytes, dict[str, str]]:
        return self._ask(address, "GET", path, None, {})

    @staticmethod
    def _ask(
        address: str, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes, dict[str, str]]:
        connection = _InOnePiece(address, timeout=patient(10))
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, answer.read(), names
        finally:
            connection.close()


@contextmanager
def envoy(folder: Path, tree: dict[str, Any]) -> Iterator[Envoy]:
    """An Envoy for these settings on free ports; no gateway is running where it is told to ask one."""
    tree["envoy"] = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", **tree.get("envoy", {})}
    tree.setdefault("grpc", {"address": "127.0.0.1:1"})
    (folder / "envoy.yaml").write_text(render(parse(yaml.safe_dump(tree), "alone")))
    admin = folder / "admin"
    command = [str(ENVOY), "-c", str(folder / "envoy.yaml"), "--use-dynamic-base-id", "--concurrency", "1"]
    command += ["--log-level", "warn", "--admin-address-path", str(admin)]
    with (folder / "envoy.log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            yield until(lambda: _started(process, admin, folder), 20, "Envoy listens")
        finally:
            process.terminate()
            process.wait(timeout=patient(20))


def _started(process: "subprocess.Popen[bytes]", admin: Path, folder: Path) -> Envoy | None:
    assert process.poll() is None, (folder / "envoy.log").read_text()
    try:
        return Envoy(admin.read_text())
    except (OSError, KeyError, IndexError):  # not listening yet
        return None
