"""Endpoints behind a DNS name: its A and AAAA records with a configured port, or SRV records with their own.

The name is looked up again when the shortest TTL of the answer is over, within bounds. All lookups of a look must
succeed: an AAAA query that times out would otherwise look like half of the fleet leaving. A name that does not
exist is an empty answer, which the grace period covers.

SRV priorities and weights are not used: which replica is best is what a gateway finds out better.
"""

import asyncio
import ipaddress
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal, cast

import dns.asyncresolver
import dns.exception
import dns.message
import dns.name
import dns.nameserver
import dns.rdata
import dns.rdatatype
import dns.resolver
import dns.rrset
from dns.rdtypes.IN.A import A
from dns.rdtypes.IN.AAAA import AAAA
from dns.rdtypes.IN.SRV import SRV

from extproc.addresses import HostPort, parse_address
from extproc.core.membership import LIMIT, Endpoint
from extproc.errors import ConfigError
from extproc.io.discovery.base import Failed, Found, SourceFailed, poll, together

Family = Literal["any", "ipv4", "ipv6"]
_TYPES = {
    "any": (dns.rdatatype.A, dns.rdatatype.AAAA),
    "ipv4": (dns.rdatatype.A,),
    "ipv6": (dns.rdatatype.AAAA,),
}
#: Lookups of SRV targets at once.
_PLACES = 16
#: A whole look may take so many times the deadline of one lookup.
_LOOK_DEADLINES = 5


@dataclass(frozen=True, slots=True)
class _Records:
    """Records of one name and the seconds they hold."""

    records: tuple[dns.rdata.Rdata, ...]
    ttl: float
    #: Address records that came along (SRV), by name and type.
    glue: Sequence[dns.rrset.RRset] = ()


class DnsSource:
    """Looks a name up, again and again.

    Args:
        host: the name; relative ones go through the search list of the system.
        port: port of the engines; None takes SRV records, which have their own.
        family: which addresses count; `any` takes both.
        server: `ip:port` of the DNS server; empty for those of /etc/resolv.conf, read anew at each look.
        deadline: longest wait for one lookup, its retries included, in seconds.
        least: shortest time between two looks, in seconds, whatever the TTL.
        most: longest time between two looks, in seconds, whatever the TTL.
        limit: most endpoints read.

    Raises:
        ConfigError: the name or the server can't be one.
    """

    name = "dns"

    def __init__(
        self,
        host: str,
        *,
        port: int | None = None,
        family: Family = "any",
        server: str = "",
        deadline: float = 2.0,
        least: float = 1.0,
        most: float = 30.0,
        limit: int = LIMIT,
    ) -> None:
        self._host = _checked_name(host)
        self._port = port
        self._types = _TYPES[family]
        self._server = _checked_server(server)
        self._deadline = deadline
        self._least, self._most = least, most
        self._limit = limit
        self._ttl = least
        self._places = asyncio.Semaphore(_PLACES)

    async def watch(self) -> AsyncGenerator[Found | Failed, None]:
        """A set after each look."""
        async with aclosing(poll(self._look, self._pause)) as answers:
            async for answer in answers:
                yield answer

    def _pause(self) -> float:
        return min(max(self._ttl, self._least), self._most)

    async def _look(self) -> Found:
        resolver = self._resolver()
        try:
            async with asyncio.timeout(self._deadline * _LOOK_DEADLINES):
                if self._port is None:
                    endpoints, self._ttl = await self._services(resolver)
                else:
                    ips, self._ttl = await self._addresses(resolver, dns.name.from_text(self._host, None))
                    endpoints = _endpoints(ips, self._port, {})
        except TimeoutError:
            raise SourceFailed("timeout", f"looking up {self._host} took too long") from None
        return Found(tuple(endpoints))

    # -- what a look consists of -----------------------------------------------------------------------

    async def _services(self, resolver: dns.asyncresolver.Resolver) -> tuple[list[Endpoint], float]:
        found = await self._query(resolver, dns.name.from_text(self._host, None), dns.rdatatype.SRV)
        targets = [cast(SRV, record) for record in found.records]
        glue = self._glue(found)
        names = {
            srv.target for srv in targets if srv.target != dns.name.root
        }  # ".": no such service, RFC 2782
        missing = sorted(names - glue.keys())
        looked = await together([self._addresses(resolver, name) for name in missing])
        ips = glue | {name: ips for name, (ips, _ttl) in zip(missing, looked, strict=True)}
        endpoints: list[Endpoint] = []
        for srv in targets:
            host = srv.target.to_text(omit_final_dot=True)
            endpoints += _endpoints(ips.get(srv.target, ()), srv.port, {"host": host})
        return endpoints, min([found.ttl, *(ttl for _ips, ttl in looked)])

    def _glue(self, found: _Records) -> dict[dns.name.Name, list[str]]:
        """Addresses that came with SRV records, so that they need no lookup of their own."""
        glue: dict[dns.name.Name, list[str]] = {}
        for records in found.glue:
            if records.rdtype in self._types:
                glue.setdefault(records.name, []).extend(_ip(record) for record in records)
        return glue

    async def _addresses(
        self, resolver: dns.asyncresolver.Resolver, name: dns.name.Name
    ) -> tuple[list[str], float]:
        """IP literals of a name, and the seconds they hold."""
        async with self._places:
            found = await together([self._query(resolver, name, rdtype) for rdtype in self._types])
        ips = [_ip(record) for records in found for record in records.records]
        return ips, min(records.ttl for records in found)

    async def _query(
        self, resolver: dns.asyncresolver.Resolver, name: dns.name.Name, rdtype: dns.rdatatype.RdataType
    ) -> _Records:
        try:
            answer = await resolver.resolve(
                name, rdtype, lifetime=self._deadline, raise_on_no_answer=False, search=not self._server
            )
        except dns.resolver.NXDOMAIN as error:
            return _Records((), _negative_ttl(error))
        except dns.resolver.LifetimeTimeout:
            raise SourceFailed("timeout", f"no DNS server answered for {name} in time") from None
        except (dns.exception.DNSException, OSError) as error:
            raise SourceFailed(
                "refused", f"{rdtype.name} records of {name} can't be had ({type(error).__name__}); "
                "ask the DNS server for them by hand, or set the family if it knows only one",
            ) from None  # fmt: skip
        records = tuple(answer.rrset or ())[: self._limit + 1]
        glue = tuple(answer.response.additional)
        ttl = min([answer.chaining_result.minimum_ttl, *(records.ttl for records in glue)])
        return _Records(records, float(ttl), glue)

    def _resolver(self) -> dns.asyncresolver.Resolver:
        try:
            resolver = dns.asyncresolver.Resolver(configure=self._server is None)
        except dns.exception.DNSException:
            raise SourceFailed("no_resolver", "/etc/resolv.conf names no DNS server; set server") from None
        if self._server is not None:
            resolver.nameservers = [dns.nameserver.Do53Nameserver(self._server.host, self._server.port)]
        resolver.timeout = self._deadline / 2  # a lost packet leaves time for a second one
        return resolver


def _endpoints(ips: Iterable[str], port: int, labels: dict[str, str]) -> list[Endpoint]:
    """Endpoints at a port; addresses no engine can have (0.0.0.0, multicast) are passed over."""
    found = []
    for ip in ips:
        try:
            found.append(Endpoint(address=str(HostPort(ip, port)), labels=labels))
        except ValueError:
            continue
    return found


def _ip(record: dns.rdata.Rdata) -> str:
    return str(cast(A | AAAA, record).address)


def _negative_ttl(error: dns.resolver.NXDOMAIN) -> float:
    """Seconds for which a name may be taken not to exist (RFC 2308, 5), the shortest of all names tried."""
    responses: dict[dns.name.Name, dns.message.QueryMessage] = error.kwargs["responses"]
    return float(min(response.resolve_chaining().minimum_ttl for response in responses.values()))


def _checked_name(host: str) -> str:
    try:
        parsed = dns.name.from_text(host, None)
    except dns.exception.DNSException:
        parsed = dns.name.empty
    if not parsed.labels or parsed == dns.name.root:
        raise ConfigError(f"discovery.dns: {host!r} is no DNS name; write for example engines.example.com")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host
    raise ConfigError(f"discovery.dns: {host!r} is an IP address; list it under replicas instead")


def _checked_server(server: str) -> HostPort | None:
    if not server:
        return None
    try:
        parsed = parse_address(server)
    except ValueError as error:
        raise ConfigError(f"discovery.dns: the server {error}") from None
    if not parsed.is_ip:
        raise ConfigError(f"discovery.dns: the server {server!r} is a host name; write its IP address")
    return parsed
