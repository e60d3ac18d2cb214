"""Asking a running gateway through its admin port; shared by the commands that do."""

import json
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any, NoReturn

import click

#: Seconds one call may take.
_DEADLINE = 5.0
#: Most bytes read of a refusal.
_MOST = 64 * 1024


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


def call(admin: str, path: str, method: str = "GET") -> Any:
    """JSON from the admin port.

    Prints what is wrong and exits: with 1 when it can't be had, 2 when refused, 3 when there is nothing to change
    (HTTP 409).
    """
    if not admin.startswith(("http://", "https://")):
        fail(f"--admin {admin}: is no URL; write for example http://127.0.0.1:9095", 2)
    request = urllib.request.Request(admin.rstrip("/") + path, method=method)  # noqa: S310 - http(s) only, above
    try:
        with urllib.request.urlopen(request, timeout=_DEADLINE) as answer:  # noqa: S310
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        status = 3 if error.code == 409 else 2
        fail(_reason(error.read(_MOST)) or f"{admin} answered {error.code}", status)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        fail(f"no gateway answers at {admin} ({reason}); is it running, and is this its admin port?", 1)


def replica_path(address: str, action: str) -> str:
    """Path of an order for a replica."""
    return f"/replicas/{urllib.parse.quote(address, safe='')}/{action}"


def fail(message: str, status: int) -> NoReturn:
    """Print to standard error and exit."""
    click.echo(f"kvsteer: {message}", err=True)
    sys.exit(status)


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return ""
