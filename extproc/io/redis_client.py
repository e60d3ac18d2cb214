"""Every connection to Redis is made here, whatever it is for: one server, Sentinels, a Cluster, a socket; with TLS.

A client is redis-py's own, with a guard before every call and pipeline (redis_guard.py): a deadline, and a fuse
that makes calls fail at once for a while when Redis does not answer. A kept connection may be one to a Redis that has
restarted since, so a call whose connection breaks is made once more on a fresh one; whatever is sent must therefore
bear being sent twice. A call that ran out of time is not repeated.

Passwords are read when a connection is made, so that a changed file serves the next one.
"""

import asyncio
import os
from collections.abc import Awaitable, Iterable
from typing import Any, cast

import redis.asyncio
from redis import exceptions
from redis.asyncio.client import Pipeline
from redis.asyncio.cluster import ClusterNode, ClusterPipeline
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.maint_notifications import MaintNotificationsConfig

from extproc.config import RedisSettings
from extproc.io.redis_check import MissingPassword
from extproc.io.redis_guard import Fuse, Guard, closing
from extproc.io.redis_shape import begin, check
from extproc.io.regular import read_regular
from extproc.io.trust import left_out
from extproc.settings.redis_url import RedisPlace

#: Connections of one client: a bound, far above what a gateway has under way at once.
_CONNECTIONS = 16
#: Longest password that is read, in bytes.
_LONGEST_PASSWORD = 4096


def make_client(settings: RedisSettings, role: str = "", *, patience: float = 0.0) -> Any:
    """A client of its own for one use, with a guard of its own (`client.guard`). Connects with its first call.

    Keys must begin with `settings.key_prefix`, which puts all of them into one slot of a Cluster.

    Args:
        settings: where Redis is, and how to log in. Only what the first call needs is read later: password files.
        role: what it is for, shown by CLIENT LIST as kvsteer-ROLE: letters, digits and -.
        patience: seconds that Redis itself may let a call wait (XREAD BLOCK), beside the deadline.

    Raises:
        OSError, ssl.SSLError: a certificate or key can't be read.
    """
    place = settings.place
    options = _options(settings, place, role, patience)
    guard = Guard(
        settings.deadline + settings.connect_timeout + patience,
        Fuse(settings.breaker_failures, settings.breaker_rest),
    )
    if place.kind == "cluster":
        client: Any = _cluster(place, options)
    elif place.kind == "sentinel":
        client = _behind_sentinels(settings, place, options)
    else:
        client = _untyped(GuardedRedis)(**_address(place), db=place.database, **options)
    if place.kind != "cluster":  # there redirections tell
        guard.reconnect = client.connection_pool.disconnect
    guard.drop = guard.reconnect or client.aclose  # which connects again with the next call
    client.guard = guard
    return client


class GuardedRedis(redis.asyncio.Redis):
    """redis-py's client with a guard."""

    guard: Guard

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """As redis-py's, within the guard."""
        call: Any = super().execute_command
        return await self.guard.call(lambda: _checked(call(*args, **options), [args]))

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> "GuardedPipeline":
        """As redis-py's, within the guard."""
        made = _untyped(GuardedPipeline)(
            self.connection_pool, self.response_callbacks, transaction, shard_hint
        )
        made.guard = self.guard
        return cast("GuardedPipeline", made)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close every connection, within a bound and without an error."""
        await closing(super().aclose(close_connection_pool))


class GuardedPipeline(Pipeline):
    """redis-py's pipeline with a guard."""

    guard: Guard
    #: The task that uses the connection, which may go on when nobody waits for it any more (redis_guard.py).
    _user: "asyncio.Task[Any] | None" = None

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """As redis-py's, within the guard. A server that has become a replica is left, as by a single call."""
        asked = [args for args, _ in self.command_stack]
        answers: list[Any] = await self.guard.call(
            lambda: _checked(self._execute(raise_on_error), asked, is_many=True)
        )
        if self.guard.reconnect is not None and any(isinstance(a, exceptions.ReadOnlyError) for a in answers):
            await self.guard.reconnect()
        return answers

    async def _execute(self, raise_on_error: bool) -> list[Any]:
        self._user = asyncio.current_task()
        try:
            return await super().execute(raise_on_error)
        finally:
            self._user = None

    async def reset(self) -> None:  # type: ignore[override]
        """As redis-py's, which gives the connection back; where a call still reads from it, that one will do so."""
        if self._user in (None, asyncio.current_task()):
            await super().reset()  # type: ignore[no-untyped-call]

    async def immediate_execute_command(self, *args: Any, **options: Any) -> Any:
        """As redis-py's, within the guard."""
        call: Any = super().immediate_execute_command
        return await self.guard.call(lambda: call(*args, **options))


class GuardedCluster(redis.asyncio.RedisCluster):
    """redis-py's client for a Cluster with a guard."""

    guard: Guard

    async def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        """As redis-py's, within the guard."""
        call = super().execute_command
        return await self.guard.call(lambda: _checked(call(*args, **kwargs), [args]))

    def pipeline(self, transaction: Any = None, shard_hint: Any = None) -> "GuardedClusterPipeline":
        """As redis-py's, within the guard."""
        return cast("GuardedClusterPipeline", _untyped(GuardedClusterPipeline)(self, transaction))

    async def aclose(self) -> None:
        """Close every connection, within a bound and without an error.

        redis-py closes none while it means to ask for the nodes anew, as after each call that ran out of time.
        """
        manager = _untyped(self.nodes_manager)
        nodes = [*manager.nodes_cache.values(), *manager.startup_nodes.values()]  # two of one name may be two
        await closing(super().aclose())
        await closing(_disconnected(nodes))


async def _disconnected(nodes: Iterable[ClusterNode]) -> None:
    await asyncio.gather(*(node.disconnect() for node in nodes), return_exceptions=True)


class GuardedClusterPipeline(ClusterPipeline):
    """redis-py's pipeline for a Cluster with a guard."""

    #: What was put into it since it was last executed.
    _asked: list[tuple[Any, ...]]

    def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        """As redis-py's, which keeps it until `execute`."""
        if "_asked" not in vars(self):
            self._asked = []
        self._asked.append(args)
        return super().execute_command(*args, **kwargs)

    async def execute(self, raise_on_error: bool = True, allow_redirections: bool = True) -> list[Any]:
        """As redis-py's, within the guard."""
        call = super().execute
        guard: Guard = _untyped(self.cluster_client).guard
        asked, self._asked = vars(self).get("_asked", []), []
        return await guard.call(
            lambda: _checked(call(raise_on_error, allow_redirections), asked, is_many=True)
        )


async def _checked(call: Awaitable[Any], asked: list[tuple[Any, ...]], *, is_many: bool = False) -> Any:
    """What a call answers, once that has the form which Redis gives it. Raises as the call, and WrongShape."""
    answer = await call
    for args, one in zip(asked, answer if is_many else [answer], strict=False):
        check(args, one)
    return answer


class Login(CredentialProvider):
    """User and password, found anew for each connection.

    Args:
        username: "" for Redis' default user.
        password: as the URL has it; used when there is no variable and no file.
        variable: of the environment; "" for none.
        path: of a file; "" for none.
    """

    def __init__(self, username: str, password: str = "", variable: str = "", path: str = "") -> None:
        self._username = username
        self._password = password
        self._variable = variable
        self._path = path

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """For redis-py. Raises AuthenticationError, with no word of the password."""
        password = self._find()
        return (self._username, password) if self._username else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """For redis-py; the file is small and local."""
        return self.get_credentials()

    def _find(self) -> str:
        if self._path:
            try:
                text = read_regular(self._path, _LONGEST_PASSWORD).decode()
            except (OSError, UnicodeDecodeError) as error:
                kind = type(error).__name__
                raise MissingPassword(f"the password file {self._path} can't be read ({kind})") from None
            return text.rstrip("\r\n")
        return os.environ.get(self._variable, "") if self._variable else self._password


def _options(settings: RedisSettings, place: RedisPlace, role: str, patience: float) -> dict[str, Any]:
    """What every kind of client takes."""
    username = settings.username or place.username
    login = None
    if username or settings.password or settings.password_file or place.password:
        login = Login(username, place.password, settings.password_variable, settings.password_file)
    return {
        "credential_provider": login,
        **_wire(settings, place),
        "socket_timeout": settings.deadline + patience,
        "socket_connect_timeout": settings.connect_timeout,
        "client_name": f"kvsteer-{role}" if role else "kvsteer",
        "max_connections": _CONNECTIONS,
        "health_check_interval": 0,
        "retry": _once_more(),
        **({} if place.kind == "cluster" else {"redis_connect_func": begin}),
    }


def _wire(settings: RedisSettings, place: RedisPlace) -> dict[str, Any]:
    """How bytes go: protocol and TLS. Names of the library are not sent: a strict ACL refuses CLIENT SETINFO."""
    wire: dict[str, Any] = {
        "protocol": settings.protocol,
        "driver_info": None,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }
    if place.tls:
        wire |= {
            "ssl": True,
            "ssl_ca_certs": settings.ca_file or None,
            "ssl_exclude_verify_flags": left_out(settings.ca_file),
            "ssl_certfile": settings.cert_file or None,
            "ssl_keyfile": settings.key_file or None,
            "ssl_check_hostname": settings.verify_host,
        }
    return wire


def _untyped(made_by: Any) -> Any:
    """What redis-py left without types, or declares otherwise than it is."""
    return made_by


def _once_more() -> Retry:
    return Retry(NoBackoff(), 1, supported_errors=(exceptions.ConnectionError,))


def _address(place: RedisPlace) -> dict[str, Any]:
    if place.kind == "unix":
        return {"unix_socket_path": place.path}
    return {"host": place.hosts[0].host, "port": place.hosts[0].port}


def _cluster(place: RedisPlace, options: dict[str, Any]) -> "GuardedCluster":
    return GuardedCluster(
        startup_nodes=[ClusterNode(host, port) for host, port in place.hosts],
        require_full_coverage=False,  # every key is in one slot; the others are not ours to judge
        **options,
    )


def _behind_sentinels(settings: RedisSettings, place: RedisPlace, options: dict[str, Any]) -> "GuardedRedis":
    """A client of the server that the Sentinels name; they are asked at each new connection.

    They share the time to connect, so that the living ones are reached although others are cut off.
    """
    login = None
    if settings.sentinel_username or settings.sentinel_password_file:
        login = Login(settings.sentinel_username, path=settings.sentinel_password_file)
    share = settings.connect_timeout / len(place.hosts)
    asking = {
        **_wire(settings, place),
        "credential_provider": login,
        "socket_timeout": share,
        "socket_connect_timeout": share,
        "retry": Retry(NoBackoff(), 0),
        "max_connections": _CONNECTIONS,
    }
    sentinels = _untyped(Sentinel)(list(place.hosts), sentinel_kwargs=asking)
    tls = options.pop("ssl", False)
    pool = _untyped(SentinelConnectionPool)(place.master, sentinels, ssl=tls, db=place.database, **options)
    return GuardedSentinel.of(pool, sentinels)


class GuardedSentinel(GuardedRedis):
    """A guarded client that closes its Sentinels with it."""

    _sentinels: Sentinel

    @classmethod
    def of(cls, pool: SentinelConnectionPool, sentinels: Sentinel) -> "GuardedSentinel":
        """A client that owns the pool and the Sentinels."""
        made = cls(connection_pool=pool)
        made.auto_close_connection_pool = True
        made._sentinels = sentinels
        return made

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close every connection, those to the Sentinels too."""
        await super().aclose(close_connection_pool)
        await closing(self._sentinels.aclose())
