"""`host:port` in one canonical form. Envoy's override_host only matches canonical IP literals."""

import ipaddress
import re
from typing import NamedTuple
from urllib.parse import urlsplit

_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")


class HostPort(NamedTuple):
    """A host (IP literal without brackets, or a name) and a port (0..65535)."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_ip(self) -> bool:
        """Whether the host is an IP literal, so that Envoy can match it."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return False
        return True


def parse_address(text: str) -> HostPort:
    """Read `1.2.3.4:80`, `[::1]:80` or `name:80`; IPv6 is brought to its canonical form.

    An IPv4 address in IPv6 form (`[::ffff:1.2.3.4]:80`, RFC 4291, 2.5.5.2) becomes plain IPv4: it is the same
    endpoint, and must not be known by two names.

    Raises:
        ValueError: with a sentence that says what is wrong and how to write it.
    """
    host, colon, port_text = text.strip().rpartition(":")
    if not colon and port_text.isascii() and port_text.isdigit() and int(port_text[:6]) <= 65535:
        raise ValueError(f"{text!r} is a port without a host; write host:port, such as 127.0.0.1:{port_text}")
    if not colon or not port_text.isascii() or not port_text.isdigit() or int(port_text) > 65535:
        raise ValueError(f"{text!r} has no port; write host:port, IPv6 as [::1]:port")
    if "//" in host or "/" in host or "@" in host:
        raise ValueError(f"{text!r} is a URL; write only host:port")
    if host.startswith("[") != host.endswith("]") or (":" in host and not host.startswith("[")):
        raise ValueError(f"{text!r} is ambiguous; write IPv6 as [::1]:port")
    if host.startswith("["):
        return HostPort(_canonical_ipv6(host[1:-1], text), int(port_text))
    return HostPort(_canonical_host(host, text), int(port_text))


class Network(NamedTuple):
    """Addresses with a beginning in common (`bits` of `first`, an IP literal), and one port of them (1..65535)."""

    first: str
    bits: int
    port: int

    def __str__(self) -> str:
        return str(HostPort(f"{self.first}/{self.bits}", self.port))


def parse_network(text: str) -> Network:
    """Read `10.0.0.0/8:8000` or `[fd00::/8]:8000`; an address alone is a network of one.

    Raises:
        ValueError: with a sentence that says what is wrong and how to write it.
    """
    host, _, port = text.strip().rpartition(":")
    network = _network(host[1:-1], 6) if host.startswith("[") and host.endswith("]") else _network(host, 4)
    if network is None or not re.fullmatch("[0-9]{1,5}", port):
        raise ValueError(
            f"{text!r} is not a network and a port; write the network's first address, its bits and the port, "
            "such as 10.0.0.0/8:8000 or [fd00::/8]:8000"
        )
    if not 0 < int(port) <= 65535:
        raise ValueError(f"{text!r} has no such port; write one from 1 to 65535")
    return Network(str(network.network_address), network.prefixlen, int(port))


def _network(text: str, version: int) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        return None
    return network if network.version == version else None


def is_plain_url(text: str) -> bool:
    """Whether it is an http or https URL with a host and a sound port, without a user, blanks or odd characters."""
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a broken IPv6 literal, or a port that is none
        return False
    return good and "@" not in text and text.isascii() and text.isprintable() and " " not in text


def _canonical_ipv6(host: str, text: str) -> str:
    try:
        ip = ipaddress.IPv6Address(host if "%" not in host else "")  # Envoy matches no zones
    except ValueError:
        raise ValueError(f"{text!r} has no IPv6 address in its brackets; write IPv6 as [::1]:port") from None
    return str(ip.ipv4_mapped or ip)


def _canonical_host(host: str, text: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.removesuffix(".").split(".")
    if len(host) > 253 or not all(_is_label(label) for label in labels):
        raise ValueError(f"{text!r} has no valid host; write an IP literal or a DNS name")
    if labels[-1].isdigit():
        raise ValueError(f"{text!r} looks like an IPv4 address but is none")
    return host.lower()


def _is_label(label: str) -> bool:
    return _LABEL.fullmatch(label) is not None
