"""Whether a Redis can be relied on for what gateways share, and words for why not.

A Redis that can't is used as far as it goes, and told of as degraded; a gateway starts with any Redis and with none.
"""

from typing import Any

from redis import exceptions
from redis.exceptions import RedisError

from extproc.io.redis_guard import RedisResting

#: Oldest version: XADD and XTRIM know MINID since 6.2.
_OLDEST = (6, 2)

_CAUSES: tuple[tuple[type[BaseException], str], ...] = (
    (RedisResting, "it failed a moment ago and is left alone for a while"),
    (exceptions.NoPermissionError, "the user may not do that; docs/redis.md lists what it needs"),
    (exceptions.AuthenticationError, "it refuses the user or the password"),
    (exceptions.BusyLoadingError, "it still loads its data"),
    (exceptions.MaxConnectionsError, "too many calls at once"),
    (exceptions.ReadOnlyError, "it is a replica, which can't be written to"),
    (exceptions.OutOfMemoryError, "it is full (maxmemory)"),
    (exceptions.ClusterDownError, "the cluster is down"),
    (exceptions.TimeoutError, "it does not answer in time"),
    (exceptions.ConnectionError, "it can't be reached"),
    (OSError, "it can't be reached"),
)


def cause(error: BaseException) -> str:
    """Why a call failed, in words that quote nothing of it."""
    if isinstance(error, TimeoutError):
        return "it does not answer in time"
    for kind, words in _CAUSES:
        if isinstance(error, kind):
            return words
    return f"it refuses the call ({type(error).__name__})"


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
    found: dict[str, Any] = {}
    for section in ("server", "memory", "replication"):
        said = await client.execute_command("INFO", section, **where)
        if not isinstance(said, dict):
            raise RedisError("INFO was not understood")
        found |= next(iter(said.values())) if len(said) == 1 else said
    return found


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
