"""The files that a configuration names: whether each can be opened and holds what it is for.

Nothing of their content is ever said.
"""

import os
import re
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

from extproc.config import GatewaySettings, PoolSettings, RedisSettings
from extproc.io.regular import read_regular
from extproc.settings.grpc import TlsSettings

#: Where a fault is: keys and numbers from the top of the file.
Loc = tuple[int | str, ...]
#: What a bearer token may consist of (RFC 6750, 2.1).
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
#: Longest token file and longest file of endpoints that are read, in bytes.
_LONGEST_TOKEN = 65_536
_LONGEST_ENDPOINTS = 16 * 2**20


class _Fault(Exception):
    """What is wrong with a file and how to mend it. Raised within this module only."""


def faults(settings: GatewaySettings) -> Iterator[tuple[Loc, str]]:
    """Every named file that `serve` could not use: where it is named, and a sentence that says how to mend it."""
    for loc, path, check in _named(settings):
        try:
            check(path)
        except _Fault as fault:
            yield loc, f"{path} {fault}"
        except OSError as error:
            reason = error.strerror or "it can't be opened"
            yield loc, f"{path} can't be read ({reason}); mend the path or its permissions"


def _named(settings: GatewaySettings) -> Iterator[tuple[Loc, str, Callable[[str], None]]]:
    if settings.admin.report_token_file:
        yield ("admin", "report_token_file"), settings.admin.report_token_file, _is_token
    yield from _named_by_tls(settings.grpc.tls)
    yield from _named_by_redis(settings.redis)
    for number, pool in enumerate(settings.pools):
        for loc, path, check in _named_by_pool(pool):
            yield ("pools", number, *loc), path, check
    if settings.envoy.eds_dir:
        yield ("envoy", "eds_dir"), settings.envoy.eds_dir, _is_folder


def _named_by_tls(tls: TlsSettings) -> Iterator[tuple[Loc, str, Callable[[str], None]]]:
    found: list[tuple[str, str, Callable[[str], None]]] = [
        ("cert_file", tls.cert_file, _has_certificates),
        ("key_file", tls.key_file, _can_be_opened),
        ("client_ca_file", tls.client_ca_file, _has_certificates),
    ]
    return ((("grpc", "tls", key), path, check) for key, path, check in found if path)


def _named_by_redis(redis: RedisSettings) -> Iterator[tuple[Loc, str, Callable[[str], None]]]:
    found: list[tuple[str, str, Callable[[str], None]]] = [
        ("password_file", redis.password_file, _is_password),
        ("password", redis.password, _is_in_environment),
        ("sentinel_password_file", redis.sentinel_password_file, _is_password),
        ("ca_file", redis.ca_file, _has_certificates),
        ("cert_file", redis.cert_file, _can_be_opened),
        ("key_file", redis.key_file, _can_be_opened),
    ]
    return ((("redis", key), path, check) for key, path, check in found if path and redis.url)


def _named_by_pool(pool: PoolSettings) -> Iterator[tuple[Loc, str, Callable[[str], None]]]:
    found: list[tuple[Loc, str, Callable[[str], None]]] = [
        (("metrics", "token_file"), pool.metrics.token_file, _is_token),
        (("adapters", "token_file"), pool.adapters.token_file, _is_token),
        (("metrics", "ca_file"), pool.metrics.ca_file, _has_certificates),
    ]
    if pool.metrics.token.startswith("env:"):
        found.append((("metrics", "token"), pool.metrics.token, _is_in_environment))
    for key in ("kubernetes", "inference_pool"):
        if server := getattr(pool.discovery, key):
            found.append((("discovery", key, "token_file"), server.token_file, _is_token))
            found.append((("discovery", key, "ca_file"), server.ca_file, _has_certificates))
    if file := pool.discovery.file:
        endpoints = _Endpoints(file.cluster, pool.discovery.limit)
        found.append((("discovery", "file", "path"), file.path, endpoints.can_be_read))
    return (entry for entry in found if entry[1])


def _is_token(path: str) -> None:
    token = read_regular(path, _LONGEST_TOKEN).decode("ascii", "replace").strip()
    if not token:
        raise _Fault("is empty; write the bearer token into it, or remove the setting")
    if not _TOKEN.fullmatch(token):
        raise _Fault("holds no bearer token; it may have letters, digits and -._~+/ only, in one line")


def _is_password(path: str) -> None:
    if not read_regular(path, _LONGEST_TOKEN).strip():
        raise _Fault("is empty; write the password into it, or remove the setting")


def _can_be_opened(path: str) -> None:
    read_regular(path, 1)


def _is_in_environment(setting: str) -> None:
    if not os.environ.get(setting.removeprefix("env:")):
        raise _Fault("is not set in this environment; set the variable, or name a token_file")


def _has_certificates(path: str) -> None:
    read_regular(path, 1)  # says what is wrong in the system's words, which ssl does not
    try:
        ssl.create_default_context(cafile=path)
    except ssl.SSLError:
        raise _Fault("is no PEM file of certificates; give the CA's certificates in PEM") from None


def _is_folder(path: str) -> None:
    """The gateway makes a folder that is not there yet, so then it is the next one above that counts."""
    there = next(folder for folder in (Path(path), *Path(path).parents) if folder.exists())
    if not there.is_dir():
        raise _Fault(f"can't be a folder, as {there} is a file; name another")
    if not os.access(there, os.W_OK | os.X_OK):
        raise _Fault("can't be written to; give the gateway's user the right to, or name another")


class _Endpoints:
    """A check of a file of endpoints."""

    def __init__(self, cluster: str, limit: int) -> None:
        self._cluster = cluster
        self._limit = limit

    def can_be_read(self, path: str) -> None:
        """Raise what is wrong with the file."""
        # Discovery's libraries are loaded only where they are needed.
        from extproc.io.discovery.base import SourceFailed
        from extproc.io.discovery.file_forms import read_endpoints

        with Path(path).open("rb") as file:
            text = file.read(_LONGEST_ENDPOINTS)
        try:
            found = read_endpoints(text, self._cluster, self._limit)
        except SourceFailed as error:
            raise _Fault(f"can't be used: {error.detail}; mend it there") from None
        if len(found) > self._limit:
            raise _Fault(f"names more than {self._limit} endpoints; raise discovery.limit, or shorten it")
