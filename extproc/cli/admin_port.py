"""Asking a running gateway through its admin port; shared by the commands that do."""

import json
import os
import re
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
import orjson

from extproc.cli.answers import Form, fault_of
from extproc.cli.terminal import plain, waiting
from extproc.errors import KvsteerError

#: Environment variable that names the file of the token by which orders are taken (`admin.token_file`).
TOKEN_FILE = "KVSTEER_TOKEN_FILE"  # noqa: S105 - a name
#: The admin port that is asked unless another one is named.
ADMIN = "http://127.0.0.1:9095"
#: A host (IPv6 in brackets), perhaps a port, perhaps a path before the admin port's own; nothing else.
_URL = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]{1,5}))?(/[!-~]*)?")
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
        default=ADMIN,
        show_default=True,
        metavar="URL",
        help="Admin port of a gateway.",
    )(function)


def json_option(function: Callable[..., None]) -> Callable[..., None]:
    """`--json`, for machines."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")(function)


class BadUrl(KvsteerError):
    """What is to be asked is no URL of an admin port."""


def checked_url(url: str) -> str:
    """`url` without a slash at its end. Raises BadUrl for one that names no host to ask."""
    match = _URL.fullmatch(url)
    if match is None or int(match["port"] or 1) not in range(1, 65_536):
        shown = ascii(url.rpartition("@")[2])  # never the part that may be a password
        raise BadUrl(f"--admin {shown} is no URL of an admin port; write for example {ADMIN}")
    return url.rstrip("/")


def _opener() -> urllib.request.OpenerDirector:
    """HTTP without redirects: neither a request's text nor a token goes where whoever answers at a port says."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.HTTPDefaultErrorHandler,
    ):
        opener.add_handler(handler())
    return opener


open_url = _opener().open


class NotHad(KvsteerError):
    """An admin port did not answer what it was asked for.

    Attributes:
        status: what the command exits with.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def call(admin: str, path: str, form: Form, method: str = "GET") -> Any:
    """JSON from the admin port.

    Prints what is wrong and exits: with 1 when it can't be had, also when somebody else answers there, 2 when
    refused, 3 when there is nothing to change (HTTP 409).

    Args:
        admin: URL of the port.
        path: what is asked for.
        form: what the answer looks like (extproc/cli/answers.py); one that does not is no gateway's.
        method: GET, or POST for orders.
    """
    try:
        admin = checked_url(admin)
    except BadUrl as error:
        fail(str(error), 2)
    headers = _token() if method == "POST" else {}
    request = urllib.request.Request(admin + path, method=method, headers=headers)  # noqa: S310 - http(s) only, above
    try:
        with waiting(f"{admin}, {_DEADLINE:g} s at most"), open_url(request, timeout=_DEADLINE) as answer:
            return understood(admin, whole(answer, time.monotonic() + _DEADLINE), form)
    except NotHad as error:
        fail(str(error), error.status)
    except (OSError, HTTPException, ValueError) as error:
        not_had = why_not(admin, path, error)
        fail(str(not_had), not_had.status)


def why_not(admin: str, path: str, error: Exception) -> NotHad:
    """What it means that an admin port could not be asked: an OSError, HTTPException or ValueError of urllib."""
    if isinstance(error, urllib.error.HTTPError):
        reason = _reason(error)
        if not reason:
            return stranger(admin, f"HTTP status {error.code} to {path}")
        return NotHad(plain(reason), 3 if error.code == 409 else 2)
    if isinstance(error, HTTPException):
        return stranger(admin, "no HTTP, as a gateway's grpc.address does")
    cause: Any = getattr(error, "reason", error)
    told = plain(str(getattr(cause, "strerror", None) or cause))
    return NotHad(f"no gateway answers at {admin} ({told}); is it running, and is this its admin port?", 1)


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


def understood(admin: str, body: bytes, *forms: Form) -> dict[str, Any]:
    """An answer that looks like one of `forms`. Raises NotHad for others, of which it says what the first lacks."""
    try:
        found = orjson.loads(body)
    except ValueError:
        raise stranger(admin, "something that is not JSON") from None
    faults = [fault_of(found, form) for form in forms]
    if all(faults):
        raise stranger(admin, faults[0])
    told: dict[str, Any] = found
    return told


def stranger(admin: str, answered: str) -> NotHad:
    """It is not a gateway's admin port that answers."""
    return NotHad(
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


def _reason(error: urllib.error.HTTPError) -> str:
    """What a gateway says of a request it refuses; "" for the answer of somebody else."""
    try:
        with error:
            said = json.loads(error.read(_MOST))["error"]
    except (OSError, HTTPException, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return said[:_LONGEST] if isinstance(said, str) else ""
