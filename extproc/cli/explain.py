"""kvsteer explain: where a request would go now, and why."""

import json
import sys
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any, BinaryIO

import click
import orjson

from extproc.cli.admin_port import ADMIN, checked_url, open_url, whole
from extproc.cli.explain_form import fault_of
from extproc.cli.inputs import FILE
from extproc.cli.terminal import plain, waiting
from extproc.errors import KvsteerError

_COLD = "cold, since a snapshot does not hold the prefix index"
#: Seconds a gateway may take: the largest bodies are read in a few hundred milliseconds.
_DEADLINE = 10.0
#: Largest request and snapshot that are read, in bytes.
_LARGEST = 256 * 2**20


class NoAnswer(KvsteerError):
    """There is nothing to explain, or nobody who could. The command prints it and exits with `status`."""

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status


@click.command()
@click.argument("request_file", type=FILE, metavar="[FILE]", default="-")
@click.option("--path", default="/v1/chat/completions", show_default=True, help="The request's path.")
@click.option("--admin", metavar="URL", help=f"Ask this gateway's admin port.  [default: {ADMIN}]")
@click.option(
    "--snapshot",
    type=FILE,
    metavar="FILE",
    help="Decide by a snapshot instead, saved with: curl -s URL/snapshot",
)
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object.")
def command(request_file: str, path: str, admin: str | None, snapshot: str | None, as_json: bool) -> None:
    """Where the request whose body is in FILE (or on standard input) would go, and why: the whole table.

    Asks a running gateway, which decides with what it knows now and charges nothing, or a snapshot of one, whose
    caches then count as cold. No text of the request is kept, logged or shown.
    """
    try:
        if admin is not None and snapshot is not None:
            raise NoAnswer("--admin and --snapshot are both given; remove one")
        url = checked_url(ADMIN if admin is None else admin)
        if not (path.isascii() and path.isprintable()):
            raise NoAnswer("--path holds characters that no path has")
        body = _read(request_file)
        said = _from_gateway(url, body, path) if snapshot is None else _from_file(snapshot, body, path)
    except KvsteerError as error:
        click.echo(f"kvsteer explain: {error}", err=True)
        sys.exit(getattr(error, "status", 2))
    if as_json:
        click.echo(json.dumps(said, indent=2))
        return
    from extproc.cli.explain_texts import show

    show(said)


def _read(file: str) -> bytes:
    name = "standard input" if file == "-" else file
    body = _at_most(sys.stdin.buffer, name) if file == "-" else _bytes_of(file)
    if not body.strip():
        raise NoAnswer(f"{name} is empty; give the JSON body of a request")
    return body


def _bytes_of(file: str) -> bytes:
    try:
        with Path(file).open("rb") as opened:
            return _at_most(opened, file)
    except (OSError, ValueError) as error:  # a ValueError for names that no file has
        raise NoAnswer(f"{file} can't be read: {getattr(error, 'strerror', error)}") from None


def _at_most(opened: BinaryIO, name: str) -> bytes:
    found = opened.read(_LARGEST + 1)
    if len(found) > _LARGEST:
        raise NoAnswer(f"{name} is larger than {_LARGEST} bytes")
    return found


def _from_file(file: str, body: bytes, path: str) -> dict[str, Any]:
    from extproc.io.explaining import explain
    from extproc.io.snapshot import BadSnapshot, restore

    try:
        snapshot = orjson.loads(_bytes_of(file))
    except ValueError as error:
        raise NoAnswer(f"{file} is not JSON ({error}); take it anew: curl -s URL/snapshot") from None
    try:
        steering = restore(snapshot)
    except BadSnapshot as error:
        raise NoAnswer(f"{file} {error}") from None
    about = {"snapshot": file, "gateway": snapshot.get("gateway"), "at": snapshot.get("at"), "caches": _COLD}
    return {"source": about} | explain(steering, body, path, 0.0)


def _from_gateway(url: str, body: bytes, path: str) -> dict[str, Any]:
    headers = {"x-explain-path": path, "content-type": "application/json"}
    request = urllib.request.Request(f"{url}/explain", body, headers)  # noqa: S310 - checked before
    try:
        with waiting(f"{url}, {_DEADLINE:g} s at most"), open_url(request, timeout=_DEADLINE) as answer:
            text = whole(answer, time.monotonic() + _DEADLINE, _LARGEST)
    except urllib.error.HTTPError as error:
        error.close()
        raise NoAnswer(_meaning(error.code, url), 2 if error.code == 413 else 1) from None
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error or type(error).__name__
        raise NoAnswer(
            f"no gateway answers at {url} ({plain(str(reason))[:200]}); give its admin port with --admin", 1
        ) from None
    said = _understood(text, url)
    said.pop("source", None)
    return {"source": {"gateway": url, "caches": "as believed now"}} | said


def _understood(text: bytes, url: str) -> dict[str, Any]:
    try:
        said: dict[str, Any] = orjson.loads(text)
    except ValueError:
        raise NoAnswer(f"{url}/explain answers what is not JSON; is it a gateway's admin port?", 1) from None
    fault = fault_of(said)
    if fault:
        raise NoAnswer(
            f"{url}/explain answers what is no explanation ({plain(fault)[:200]}); is it a gateway's admin port, and "
            "of this command's version?",
            1,
        )
    return said


def _meaning(status: int, url: str) -> str:
    if status == 413:
        return "the request is larger than limits.body of that gateway, which would answer 413"
    return f"{url}/explain answers {status}; is it a gateway's admin port, and as new as this command?"
