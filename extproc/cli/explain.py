"""kvsteer explain: where a request would go now, and why."""

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import click

from extproc.errors import KvsteerError

_ADMIN = "http://127.0.0.1:9095"
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
@click.argument("request_file", metavar="[FILE]", default="-")
@click.option("--path", default="/v1/chat/completions", show_default=True, help="The request's path.")
@click.option("--admin", metavar="URL", help=f"Ask this gateway's admin port.  [default: {_ADMIN}]")
@click.option(
    "--snapshot", metavar="FILE", help="Decide by a snapshot instead, saved with: curl -s URL/snapshot"
)
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object.")
def command(request_file: str, path: str, admin: str | None, snapshot: str | None, as_json: bool) -> None:
    """Where the request whose body is in FILE (or on standard input) would go, and why: the whole table.

    Asks a running gateway, which decides with what it knows now and charges nothing, or a snapshot of one, whose
    caches then count as cold. No text of the request is kept, logged or shown.

    Exit status: 0 when it could be told, also that the request would be refused; 2 when an input is wrong; 1 when
    the gateway does not answer.
    """
    try:
        if admin and snapshot:
            raise NoAnswer("--admin and --snapshot are both given; remove one")
        body = _read(request_file)
        said = _from_file(snapshot, body, path) if snapshot else _from_gateway(admin or _ADMIN, body, path)
    except KvsteerError as error:
        click.echo(f"kvsteer explain: {error}", err=True)
        sys.exit(getattr(error, "status", 2))
    if as_json:
        click.echo(json.dumps(said, indent=2))
        return
    from extproc.cli.explain_texts import show

    show(said)


def _read(file: str) -> bytes:
    body = sys.stdin.buffer.read(_LARGEST + 1) if file == "-" else _bytes_of(file)
    if not body.strip():
        raise NoAnswer(
            f"{'standard input' if file == '-' else file} is empty; give the JSON body of a request"
        )
    return body


def _bytes_of(file: str) -> bytes:
    try:
        with Path(file).open("rb") as opened:
            found = opened.read(_LARGEST + 1)
    except OSError as error:
        raise NoAnswer(f"{file} can't be read: {error.strerror}") from None
    if len(found) > _LARGEST:
        raise NoAnswer(f"{file} is larger than {_LARGEST} bytes")
    return found


def _from_file(file: str, body: bytes, path: str) -> dict[str, Any]:
    from extproc.io.explaining import explain
    from extproc.io.snapshot import BadSnapshot, restore

    try:
        snapshot = json.loads(_bytes_of(file))
        steering = restore(snapshot)
    except (ValueError, BadSnapshot) as error:
        reason = str(error) if isinstance(error, BadSnapshot) else "is not JSON"
        raise NoAnswer(f"{file} {reason}") from None
    about = {"snapshot": file, "gateway": snapshot.get("gateway"), "at": snapshot.get("at"), "caches": _COLD}
    return {"source": about} | explain(steering, body, path, 0.0)


def _from_gateway(url: str, body: bytes, path: str) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        raise NoAnswer(f"--admin {url} is no URL; write for example {_ADMIN}")
    if not (path.isascii() and path.isprintable()):
        raise NoAnswer("--path holds characters that no path has")
    headers = {"x-explain-path": path, "content-type": "application/json"}
    request = urllib.request.Request(f"{url.rstrip('/')}/explain", body, headers)  # noqa: S310 - checked above
    try:
        with urllib.request.urlopen(request, timeout=_DEADLINE) as answer:  # noqa: S310
            said: dict[str, Any] = json.loads(answer.read(_LARGEST))
    except urllib.error.HTTPError as error:
        error.close()
        raise NoAnswer(_meaning(error.code, url), 2 if error.code == 413 else 1) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise NoAnswer(
            f"no gateway answers at {url} ({reason}); give its admin port with --admin", 1
        ) from None
    return {"source": {"gateway": url, "caches": "as believed now"}} | said


def _meaning(status: int, url: str) -> str:
    if status == 413:
        return "the request is larger than limits.body of that gateway, which would answer 413"
    return f"{url}/explain answers {status}; is it a gateway's admin port, and as new as this command?"
