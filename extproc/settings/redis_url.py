"""Where Redis is, out of one URL.

    redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]
    redis+sentinel://[USER[:PASSWORD]@]HOST[:PORT],HOST[:PORT]/MASTER[/DATABASE]
    redis+cluster://[USER[:PASSWORD]@]HOST[:PORT],HOST[:PORT]
    unix://[USER[:PASSWORD]@]/PATH

and the first three as rediss, with TLS. No message quotes the URL: it may hold a password.
"""

import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote

from extproc.addresses import HostPort, parse_address

Kind = Literal["single", "sentinel", "cluster", "unix"]

#: The ports that Redis and Sentinel listen on when nobody says otherwise (their shipped configurations).
_PORT, _SENTINEL_PORT = 6379, 26379
#: Most hosts of one URL: what is tried in turn must have an end.
_MOST_HOSTS = 64
_SCHEMES: dict[str, tuple[Kind, bool]] = {
    "redis": ("single", False),
    "rediss": ("single", True),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
    "unix": ("unix", False),
}
_MASTER = re.compile(r"[A-Za-z0-9._-]{1,128}")
_UNSPLIT = (
    "can't be split into host and port; write redis://:PASSWORD@HOST:PORT/DATABASE without options, "
    "and / ? # @ : in the password as %2F %3F %23 %40 %3A"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisPlace:
    """A URL taken apart.

    Attributes:
        kind: one server, Sentinels that know it, a Cluster, or a socket of this machine.
        tls: whether to speak TLS.
        hosts: servers, Sentinels or nodes to begin with.
        master: the name by which Sentinels know the server.
        path: of the socket.
        database: index; 0 in a Cluster.
        username: "" for none; never shown.
        password: "" for none; never shown.
    """

    kind: Kind
    tls: bool
    hosts: tuple[HostPort, ...] = ()
    master: str = ""
    path: str = ""
    database: int = 0
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    def shown(self) -> str:
        """The URL for logs and people: without user and password."""
        if self.kind == "unix":
            return f"unix://{self.path}"
        kind = "" if self.kind == "single" else f"+{self.kind}"
        rest = f"/{self.master}" if self.master else ""
        database = "" if self.kind == "cluster" else f"/{self.database}"
        hosts = ",".join(map(str, self.hosts))
        return f"redis{'s' if self.tls else ''}{kind}://{hosts}{rest}{database}"


def read_url(url: str) -> RedisPlace:
    """Take a URL apart.

    Raises:
        ValueError: with a sentence that quotes nothing of it.
    """
    scheme, found, rest = url.partition("://")
    if not found or scheme not in _SCHEMES:
        raise ValueError(
            "is no Redis URL; write redis://HOST:PORT/DATABASE, or rediss:// for TLS (docs/redis.md has more forms)"
        )
    if "?" in rest or "#" in rest or rest.count("@") > 1:
        raise ValueError(_UNSPLIT)
    kind, tls = _SCHEMES[scheme]
    login, _, place = rest.rpartition("@")
    username, _, password = login.partition(":")
    if "/" in login:
        raise ValueError(_UNSPLIT)
    user, secret = unquote(username), unquote(password)
    if kind == "unix":
        return RedisPlace(kind=kind, tls=False, path=_socket(place), username=user, password=secret)
    hosts, _, path = place.partition("/")
    master, database = _path(kind, path)
    return RedisPlace(
        kind=kind, tls=tls, hosts=_hosts(kind, hosts), master=master, database=database,
        username=user, password=secret,
    )  # fmt: skip


def _hosts(kind: Kind, text: str) -> tuple[HostPort, ...]:
    texts = text.split(",")
    if len(texts) > (1 if kind == "single" else _MOST_HOSTS):
        raise ValueError(
            "names too many hosts; write one, or redis+sentinel:// or redis+cluster:// with at most 64"
        )
    port = _SENTINEL_PORT if kind == "sentinel" else _PORT
    try:
        hosts = tuple(parse_address(_with_port(one.strip(), port)) for one in texts)
    except ValueError:
        raise ValueError(_UNSPLIT) from None
    if any(host.port == 0 for host in hosts):
        raise ValueError(_UNSPLIT)
    return hosts


def _with_port(host: str, port: int) -> str:
    if not host:
        raise ValueError
    there = host.endswith("]") if host.startswith("[") else ":" not in host
    return f"{host}:{port}" if there else host


def _path(kind: Kind, path: str) -> tuple[str, int]:
    """The Sentinels' name for the server, and the database."""
    parts = path.split("/") if path else []
    master = parts.pop(0) if kind == "sentinel" and parts else ""
    if kind == "sentinel" and not _MASTER.fullmatch(master):
        raise ValueError(
            "names no master; write redis+sentinel://HOST:PORT/MASTER, the name in sentinel monitor"
        )
    number = parts.pop(0) if parts else "0"
    if parts or not (number or "0").isdigit() or not number.isascii() or len(number) > 6:
        raise ValueError("has no number for its database; write /0 after host and port")
    if kind == "cluster" and int(number or 0):
        raise ValueError("names a database, but a Redis Cluster has one only; write nothing after its hosts")
    return master, int(number or 0)


def _socket(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError("names no socket; write unix:///run/redis/redis.sock")
    return unquote(path)
