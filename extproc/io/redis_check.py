"""Whether a Redis can be relied on for what gateways share, and words for why not.

A Redis that can't is used as far as it goes, and told of as degraded; a gateway starts with any Redis and with none.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import structlog
from redis import exceptions
from redis.exceptions import RedisError

from extproc.io.redis_guard import RedisResting, WrongShape

_log = structlog.get_logger("kvsteer.redis")

#: Failures in a row after which a use of Redis counts as troubled: one or two are a Redis that just restarted.
_REPEATED = 3
#: What an ACL that forbids a command says of it, in a script too; the name alone is quoted.
_COMMAND = re.compile(r"'([a-z]{2,20}(?:\|[a-z-]{2,20})?)' (?:command|subcommand)", re.IGNORECASE)


class AtKey(RedisError):
    """Redis answers, but refuses what was to be done with one key. Told as degraded, with the key's name.

    Args:
        key: its name, which is kvsteer's own.
        error: what the client raised.
    """

    def __init__(self, key: str, error: BaseException) -> None:
        super().__init__(f"{key}: {type(error).__name__}")
        self.key = key
        self.error = error


@contextlib.contextmanager
def at_key(key: str) -> Iterator[None]:
    """Name the key that a call is about, should Redis refuse it for the key's sake. Raises AtKey then."""
    try:
        yield
    except exceptions.ResponseError as error:
        raise naming(error, key) from None


def naming(error: exceptions.ResponseError, key: str) -> RedisError:
    """An error as it is, or with the key where it is the key's: it has another type, or the user may not use it."""
    is_keys = "WRONGTYPE" in str(error) or isinstance(error, exceptions.NoPermissionError)
    return AtKey(key, error) if is_keys else error


class Lost(RedisError):
    """What stood under a key is gone, though what tells of it is still there, and nobody here knows what it was."""


class MissingPassword(exceptions.AuthenticationError):
    """A password's file can't be read. `where` is its path and the reason, with no word of the password."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.where = where


#: Oldest version: XADD and XTRIM know MINID since 6.2.
_OLDEST = (6, 2)

_CAUSES: tuple[tuple[type[BaseException], str], ...] = (
    (Lost, "what stood there was deleted or evicted, and this gateway does not know it"),
    (RedisResting, "it failed a moment ago and is left alone for a while"),
    (exceptions.NoPermissionError, "the user may not do that; docs/redis.md lists what it needs"),
    (exceptions.AuthenticationError, "it refuses the user or the password"),
    (exceptions.BusyLoadingError, "it still loads its data"),
    (exceptions.MaxConnectionsError, "too many calls at once"),
    (exceptions.ReadOnlyError, "it is a replica, which can't be written to"),
    (exceptions.OutOfMemoryError, "it is full (maxmemory)"),
    (exceptions.MasterDownError, "it is a replica that has lost its master"),
    (exceptions.ClusterDownError, "the cluster is down"),
    (exceptions.AskError, "it is a node of a Cluster; write redis+cluster:// in redis.url"),  # MOVED too
    (exceptions.TimeoutError, "it does not answer in time"),
    (exceptions.ConnectionError, "it can't be reached"),
    (OSError, "it can't be reached"),
    (WrongShape, "it answers otherwise than Redis does; look at redis.url and at what stands between"),
    (exceptions.InvalidResponse, "what answers there is no Redis; check redis.url"),
)


def cause(error: BaseException) -> str:
    """Why a call failed, in words that quote no value: at most a command, one of our keys, or a file's path."""
    if isinstance(error, AtKey):
        return _at_key(error)
    if isinstance(error, MissingPassword):
        return error.where
    if isinstance(error, RedisResting) and error.error is not None:
        return cause(error.error)
    if isinstance(error, TimeoutError):
        return "it does not answer in time"
    if isinstance(error, exceptions.NoPermissionError | exceptions.ResponseError):
        if forbidden := _COMMAND.search(str(error)):
            return f"the user may not call {forbidden[1].upper()}; docs/redis.md lists what it needs"
        if str(error).startswith("BUSY"):  # redis-py takes the word away where it knows the kind
            return "it is busy with somebody's script; SCRIPT KILL ends that"
        if "WRONGTYPE" in str(error):
            return "a key is of another type than kvsteer's"
    for kind, words in _CAUSES:
        if isinstance(error, kind):
            return words
    return f"it refuses the call ({type(error).__name__})"


def _at_key(error: AtKey) -> str:
    if "WRONGTYPE" in str(error.error):
        return f"the key {error.key} is of another type than kvsteer's; rename or delete it"
    return f"{cause(error.error)} (key {error.key})"


class Trouble:
    """Whether Redis refuses one use again and again, and why; told once in the log, and at /healthz by `why`.

    Args:
        use: what it is, in a word or two.

    Attributes:
        why: in one sentence; "" while it works, or failed but once or twice.
    """

    def __init__(self, use: str) -> None:
        self._use = use
        self._failures = 0
        self.why = ""

    def failed(self, error: BaseException, key: str = "") -> None:
        """It failed once more, at a key of ours if that is known."""
        if not isinstance(error, exceptions.ResponseError | AtKey):
            return  # Redis is gone or slow, which the registry tells
        self._failures += 1
        if self._failures < _REPEATED:
            return
        why = f"{self._use}: {cause(AtKey(key, error) if key and _is_refusal(error) else error)}"
        if not self.why:  # the reason may change as Redis goes and comes; one line is enough
            _log.warning("shared state is degraded", why=why)
        self.why = why

    def works(self) -> None:
        """It succeeded."""
        if self.why:
            _log.info("works again", use=self._use)
        self._failures, self.why = 0, ""


def _is_refusal(error: BaseException) -> bool:
    return isinstance(error, exceptions.ResponseError) and not isinstance(error, AtKey)


async def unsafe(client: Any, prefix: str) -> str:
    """What makes this Redis unsafe to share state through, in one sentence; "" for nothing, or when INFO is denied.

    Args:
        client: of io/redis_client.py.
        prefix: first part of the keys; in a Cluster it is its node that is looked at.

    Raises:
        RedisError, OSError, TimeoutError: as the client, but for a denied INFO.
    """
    try:
        return judge(await _info(client, prefix))
    except (exceptions.NoPermissionError, exceptions.ResponseError):
        return ""  # not known is no fault: proxies and strict ACLs hide it


async def _info(client: Any, prefix: str) -> dict[str, Any]:
    where = {}
    if hasattr(client, "get_node_from_key"):
        await client.initialize()
        where = {"target_nodes": client.get_node_from_key(prefix)}
    said = await client.execute_command("INFO", **where)  # all sections: one round trip, in 6.2 too
    if not isinstance(said, dict):
        raise RedisError("INFO was not understood")
    found: Any = next(iter(said.values())) if len(said) == 1 else said  # a Cluster tells the node
    return found if isinstance(found, dict) else {}


def judge(info: dict[str, Any]) -> str:
    """What INFO (server, memory, replication) says against a Redis; "" for nothing."""
    version = str(info.get("redis_version", ""))
    if _parts(version) and _parts(version) < _OLDEST:
        return f"redis {version} is older than 6.2; update it"
    if info.get("role") == "slave":
        return (
            "redis is a replica, which can't be written to; name the server, or its Sentinels, in redis.url"
        )
    most, used = info.get("maxmemory", 0), info.get("used_memory", 0)
    if not isinstance(most, int) or most <= 0:
        return ""
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        return f"redis drops keys when it is full (maxmemory-policy {policy}); set noeviction"
    if isinstance(used, int) and used >= most:
        return "redis is full (maxmemory); give it more memory"
    return ""


def _parts(version: str) -> tuple[int, ...]:
    """The first two numbers of a version; empty when it is none."""
    numbers = version.split(".")[:2]
    return tuple(int(n) for n in numbers) if all(n.isdigit() for n in numbers) else ()
