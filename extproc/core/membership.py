"""Who belongs to a pool, by what its sources say: successive complete sets in, joins and leaves out.

A source is a list, a DNS name, a file ... (io/discovery). Each says now and then which endpoints there are, all of
them; a pool has what any of its sources has. The rules, per source:

1. What an answer names joins at once, and what it no longer names leaves at once.
2. A source that fails changes nothing: its last known set stays, and the status says since when and why.
3. An empty answer is believed only when it has stood for the grace period. Until then nobody leaves, even if
   answers in between name a part of the replicas: a registry that was emptied fills up again one by one.
   An answer that names everyone known ends the doubt. The first answer of all is believed as it is.
4. A source may itself call an answer doubtful (it has just come back and may not be complete); then rule 3 holds
   as well.
5. Silence after a failure proves nothing: the grace period runs on only after the next answer, from its start.
6. An answer with more endpoints than the limit is a failure, not half a fleet.
7. An operator may drop an endpoint: it leaves at once and stays out, whatever the sources say, until it is restored
   or no source names it any more. What comes back after that is a new replica.

Nothing else damps flapping.
"""

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from extproc.addresses import HostPort, parse_address

#: Most endpoints of a pool, unless set otherwise.
LIMIT = 10_000
#: Seconds an empty answer must stand, unless set otherwise.
GRACE = 30.0

#: The error word of an answer above the limit.
TOO_MANY = "too_many"


@lru_cache(maxsize=2 * LIMIT)
def canonical(address: str) -> str:
    """`ip:port` as Envoy writes it. An IPv4 address in IPv6 form (`::ffff:1.2.3.4`) becomes plain IPv4.

    Raises:
        ValueError: it is a host name, has port 0, or can't be connected to (unspecified, multicast, reserved).
    """
    host, port = parse_address(address)
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        raise ValueError(f"{address!r} is a host name; write the IP address, or use DNS discovery") from None
    if port == 0:
        raise ValueError(f"{address!r} has port 0; write the port the engine listens on")
    if (
        ip.is_unspecified or ip.is_multicast or (ip.version == 4 and ip.is_reserved)
    ):  # 240/4 and the broadcast
        raise ValueError(f"{address!r} is no address of one engine; write its own IP address")
    return str(HostPort(host, port))


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One engine endpoint as a source names it.

    Raises:
        ValueError: the address is no `ip:port` of one engine.
    """

    #: `ip:port`; brought to its canonical form.
    address: str
    #: URL of its metrics; empty for the pool's path on its address.
    metrics: str = ""
    #: It runs out: streams may end, nothing new goes there.
    terminating: bool = False
    #: What the source knows beside it (pod, node, zone ...).
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "address", canonical(self.address))


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What an answer changed in the pool; falsy when nothing. Addresses in order."""

    joined: tuple[Endpoint, ...] = ()
    left: tuple[str, ...] = ()
    #: Became terminating, or joined so.
    terminating: tuple[Endpoint, ...] = ()
    #: Terminating no more.
    returned: tuple[Endpoint, ...] = ()
    #: Has another metrics URL or other labels.
    changed: tuple[Endpoint, ...] = ()
    #: Whether this was the first answer of its source: who joins by it may have been serving all along.
    first: bool = False

    def __bool__(self) -> bool:
        return bool(self.joined or self.left or self.terminating or self.returned or self.changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """How a source does. Times in seconds."""

    source: str
    #: Endpoints believed of it.
    endpoints: int
    #: Age of its last answer; None before the first.
    age: float | None
    #: Why it fails, a short word; empty while it does not.
    error: str
    #: For how long it has been failing; None while it does not.
    failing: float | None
    #: For how long leaves have been held back (rule 3); None while they are not.
    doubted: float | None


class _Known:
    """What is known of one source."""

    __slots__ = ("answer", "answered", "believed", "doubted", "error", "failing", "latest")

    def __init__(self) -> None:
        self.answer: object = None  # the last answer as it came, to know it again
        self.latest: dict[str, Endpoint] = {}
        self.believed: dict[str, Endpoint] = {}
        self.answered: float | None = None
        self.error = ""
        self.failing: float | None = None
        self.doubted: float | None = None

    def doubts(self, latest: dict[str, Endpoint], now: float, doubtful: bool, grace: float) -> float | None:
        """Since when leaves are held back, given this answer; None when they are not."""
        since = self.doubted
        begins = since is None and self.answered is not None and (doubtful or not latest)
        if begins or (since is not None and self.failing is not None):
            since = now
        over = since is None or now - since >= grace or self.believed.keys() <= latest.keys()
        return None if over else since

    def status(self, name: str, now: float) -> SourceStatus:
        """Its state in numbers."""
        return SourceStatus(
            source=name,
            endpoints=len(self.believed),
            age=_since(self.answered, now),
            error=self.error,
            failing=_since(self.failing, now),
            doubted=_since(self.doubted, now),
        )


class Membership:
    """The endpoints of a pool.

    Args:
        sources: names of its sources.
        grace: seconds an empty answer must stand before it is believed.
        limit: most endpoints of the pool.
    """

    def __init__(self, sources: Iterable[str], *, grace: float = GRACE, limit: int = LIMIT) -> None:
        self._known = {name: _Known() for name in sources}
        self._grace = grace
        self._limit = limit
        self._endpoints: dict[str, Endpoint] = {}
        self._dropped: dict[str, float] = {}

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """Who belongs to the pool now, by address."""
        return self._endpoints

    @property
    def dropped(self) -> Mapping[str, float]:
        """Who was dropped and is still named by a source: address -> when."""
        return self._dropped

    def drop(self, address: str, now: float) -> Changes:
        """Leave an endpoint out from now on (rule 7). One that no source names is ignored."""
        if address in self._endpoints:
            self._dropped[address] = now
        return self._changes(False)

    def restore(self, address: str) -> Changes:
        """Take a dropped endpoint in again, as one that joins now."""
        self._dropped.pop(address, None)
        return self._changes(False)

    def took(
        self,
        source: str,
        endpoints: Iterable[Endpoint],
        now: float,
        *,
        doubtful: bool = False,
        error: str = "",
    ) -> Changes:
        """A source answered with its complete set. Raises KeyError for a source that is none.

        With an `error`, a short word, it goes on failing all the same: something else of it does not answer.
        The very tuple of last time is known again without a look into it.
        """
        known = self._known[source]
        same = endpoints is known.answer and isinstance(endpoints, tuple)
        if same and known.doubted is None and not known.error and not error:
            known.answered = now
            return Changes()
        latest = by_address(endpoints, self._limit)
        doubted = known.doubts(latest, now, doubtful, self._grace)
        believed = latest if doubted is None else known.believed | latest
        if len(latest) > self._limit or self._would_be_too_many(known, believed):
            self.failed(source, TOO_MANY, now)
            return Changes()
        first = known.answered is None
        known.latest, known.believed, known.doubted = latest, believed, doubted
        known.answer, known.answered, known.error = endpoints, now, error
        known.failing = (now if known.failing is None else known.failing) if error else None
        return self._changes(first)

    def failed(self, source: str, error: str, now: float) -> None:
        """A source could not answer; `error` is a short word. Nobody leaves by it."""
        known = self._known[source]
        known.error = error
        known.failing = now if known.failing is None else known.failing

    def tick(self, now: float) -> Changes:
        """Let time pass: grace periods end."""
        for known in self._known.values():
            if known.doubted is not None and known.failing is None and now - known.doubted >= self._grace:
                known.doubted = None
                known.believed = known.latest
        return self._changes(False)

    def status(self, now: float) -> list[SourceStatus]:
        """How each source does."""
        return [known.status(name, now) for name, known in self._known.items()]

    def _would_be_too_many(self, changed: _Known, believed: dict[str, Endpoint]) -> bool:
        others = [known.believed for known in self._known.values() if known is not changed]
        most = len(believed) + sum(map(len, others))
        return most > self._limit and len(believed.keys() | set().union(*others)) > self._limit

    def _changes(self, first: bool) -> Changes:
        after = self._merged()
        if after == self._endpoints:
            return Changes()
        changes = compare(self._endpoints, after, first)
        self._endpoints = after
        return changes

    def _merged(self) -> dict[str, Endpoint]:
        sets = [known.believed for known in self._known.values() if known.believed]
        if len(sets) == 1:
            merged = sets[0]
        else:
            merged = by_address(endpoint for believed in sets for endpoint in believed.values())
        if not self._dropped:
            return merged
        self._dropped = {address: when for address, when in self._dropped.items() if address in merged}
        return {address: endpoint for address, endpoint in merged.items() if address not in self._dropped}


def by_address(endpoints: Iterable[Endpoint], limit: int | None = None) -> dict[str, Endpoint]:
    """Endpoints by address, each once; stops when more than `limit` are found.

    Of one named twice the first counts, but it is terminating only if every mention says so: where an endpoint
    moves from one list to another, both may name it for a while.
    """
    found: dict[str, Endpoint] = {}
    for endpoint in endpoints:
        before = found.get(endpoint.address)
        if before is None or (before.terminating and not endpoint.terminating):
            found[endpoint.address] = endpoint
        if limit is not None and len(found) > limit:
            break
    return found


def compare(before: Mapping[str, Endpoint], after: Mapping[str, Endpoint], first: bool = False) -> Changes:
    """What differs between two sets."""
    joined = [after[address] for address in sorted(after.keys() - before.keys())]
    stayed = [
        (before[a], after[a]) for a in sorted(after.keys() & before.keys()) if after[a] is not before[a]
    ]
    return Changes(
        joined=tuple(joined),
        left=tuple(sorted(before.keys() - after.keys())),
        terminating=tuple(
            [e for e in joined if e.terminating]
            + [new for old, new in stayed if new.terminating and not old.terminating]
        ),
        returned=tuple(new for old, new in stayed if old.terminating and not new.terminating),
        changed=tuple(new for old, new in stayed if (old.metrics, old.labels) != (new.metrics, new.labels)),
        first=first,
    )


def _since(then: float | None, now: float) -> float | None:
    return None if then is None else max(0.0, now - then)
