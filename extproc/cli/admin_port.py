"""Asking a running gateway through its admin port; shared by the commands that do."""

import json
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any, NoReturn

import click

from extproc.cli.terminal import plain

#: Environment variable that names the file of the token by which orders are taken (`admin.token_file`).
TOKEN_FILE = "KVSTEER_TOKEN_FILE"  # noqa: S105 - a name
#: Seconds one call may take.
_DEADLINE = 5.0
#: Most bytes read of a refusal.
_MOST = 64 * 1024
#: Bytes that are read of an answer at a time, and at most in all.
_PIECE = 64 * 1024
_LARGEST = 256 * 2**20
#: Most characters that are shown of a refusal.
_LONGEST = 1000


def admin_option(function: Callable[..., None]) -> Callable[..., None]:
    """`--admin URL`, the gateway to ask."""
    return click.option(
        "--admin",
        default="http://127.0.0.1:9095",
        show_default=True,
        metavar="URL",
        help="Admin port of a gateway.",
    )(function)


def json_option(function: Callable[..., None]) -> Callable[..., None]:
    """`--json`, for machines."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")(function)


def call(admin: str, path: str, holds: str, method: str = "GET") -> Any:
    """JSON from the admin port.

    Prints what is wrong and exits: with 1 when it can't be had, also when somebody else answers there, 2 when
    refused, 3 when there is nothing to change (HTTP 409).

    Args:
        admin: URL of the port.
        path: what is asked for.
        holds: a key that every answer to it has; what lacks it is no gateway's.
        method: GET, or POST for orders.
    """
    if not admin.startswith(("http://", "https://")):
        fail(f"--admin {admin}: is no URL; write for example http://127.0.0.1:9095", 2)
    headers = _token() if method == "POST" else {}
    url = admin.rstrip("/") + path
    request = urllib.request.Request(url, method=method, headers=headers)  # noqa: S310 - http(s) only, above
    try:
        with urllib.request.urlopen(request, timeout=_DEADLINE) as answer:  # noqa: S310
            return _understood(admin, whole(answer, time.monotonic() + _DEADLINE), holds)
    except urllib.error.HTTPError as error:
        reason = _reason(error.read(_MOST))
        if not reason:
            _stranger(admin, f"HTTP status {error.code} to {path}")
        fail(plain(reason), 3 if error.code == 409 else 2)
    except HTTPException:
        _stranger(admin, "no HTTP, as a gateway's grpc.address does")
    except (OSError, ValueError) as error:
        cause: Any = getattr(error, "reason", error)
        told = plain(str(getattr(cause, "strerror", None) or cause))
        fail(f"no gateway answers at {admin} ({told}); is it running, and is this its admin port?", 1)


def _token() -> dict[str, str]:
    """The token of orders, from the file that the environment names; exits with 2 when that can't be read."""
    path = os.environ.get(TOKEN_FILE, "")
    if not path:
        return {}
    try:
        return {"authorization": f"Bearer {Path(path).read_text().strip()}"}
    except (OSError, ValueError) as error:
        fail(f"{TOKEN_FILE}={path}: can't be read ({getattr(error, 'strerror', None) or 'no text'})", 2)


def whole(answer: Any, deadline: float, most: int = _LARGEST) -> bytes:
    """The body of an answer; a server that sends it byte by byte gets no more time than another.

    Args:
        answer: what urllib opened.
        deadline: by the monotonic clock, in seconds.
        most: bytes that are read.

    Raises:
        TimeoutError: it does not end in time, or is larger.
    """
    parts, size = [], 0
    while part := answer.read1(_PIECE):
        parts.append(part)
        size += len(part)
        if size > most or time.monotonic() > deadline:
            raise TimeoutError("the answer does not end")
    return b"".join(parts)


def _understood(admin: str, body: bytes, holds: str) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        _stranger(admin, "something that is not JSON")
    if not isinstance(found, dict) or holds not in found:
        _stranger(admin, f"JSON without {holds!r}")
    return found


def _stranger(admin: str, answered: str) -> NoReturn:
    """Say that it is not a gateway's admin port that answers, and exit with 1."""
    fail(
        f"{admin} is not the admin port of a gateway of this version: it answered {answered}; "
        "give the gateway's admin.address (by default port 9095) with --admin",
        1,
    )


def replica_path(address: str, action: str) -> str:
    """Path of an order for a replica."""
    return f"/replicas/{urllib.parse.quote(address, safe='')}/{action}"


def fail(message: str, status: int) -> NoReturn:
    """Print to standard error and exit."""
    click.echo(f"kvsteer: {message}", err=True)
    sys.exit(status)


def _reason(body: bytes) -> str:
    """What a gateway says of a request it refuses; "" for the answer of somebody else."""
    try:
        said = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return said[:_LONGEST] if isinstance(said, str) else ""
