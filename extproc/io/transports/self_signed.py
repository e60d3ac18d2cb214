"""A key and a self-signed certificate, made at the start for data planes that insist on TLS and check nothing.

Nobody can know who such a certificate belongs to, so its key proves nothing; what keeps listeners out is the key
exchange of TLS itself. That is why plain Python is good enough here: P-256 by the textbook, run twice in a process'
life, its timing of no use to anybody. Certificates that are checked come as files (`tls.TlsFiles`).

Formats: X.509 by RFC 5280, in DER (X.690); the key by RFC 5915; ECDSA by FIPS 186-5, section 6.4; the curve's numbers
by SEC 2, section 2.4.2.
"""

import base64
import hashlib
import ipaddress
import secrets
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

_P: Final = 0xFFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF
_N: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_G: Final = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
#: Before now, for clocks that run late; and after it: nobody renews what is made anew at each start.
_EARLIER: Final = timedelta(days=1)
_LIFE: Final = timedelta(days=3650)

_Point = tuple[int, int] | None  # None is the point at infinity


def make(names: Sequence[str], now: datetime | None = None) -> tuple[bytes, bytes]:
    """A fresh certificate for these DNS names and IP addresses, and its key, both in PEM.

    Args:
        names: at least one; the first is the subject's too.
        now: when it is made; None for the clock's time.
    """
    private = secrets.randbelow(_N - 1) + 1
    public = _times(private, _G)
    assert public is not None
    point = b"\x04" + public[0].to_bytes(32) + public[1].to_bytes(32)
    signed = _to_be_signed(names, point, now or datetime.now(UTC))
    certificate = _sequence(signed, _ECDSA_SHA256, _bits(_signature(private, signed)))
    key = _sequence(
        _integer(1), _der(0x04, private.to_bytes(32)), _der(0xA0, _PRIME256V1), _der(0xA1, _bits(point))
    )
    return _pem("CERTIFICATE", certificate), _pem("EC PRIVATE KEY", key)


# -- the curve y² = x³ - 3x + b --------------------------------------------------------------------------------


def _add(one: _Point, other: _Point) -> _Point:
    if one is None or other is None:
        return one or other
    (x1, y1), (x2, y2) = one, other
    if x1 != x2:
        slope = (y2 - y1) * pow(x2 - x1, -1, _P)
    elif y1 == y2:
        slope = (3 * x1 * x1 - 3) * pow(2 * y1, -1, _P)
    else:
        return None
    x3 = (slope * slope - x1 - x2) % _P
    return x3, (slope * (x1 - x3) - y1) % _P


def _times(factor: int, point: _Point) -> _Point:
    product: _Point = None
    while factor:
        if factor & 1:
            product = _add(product, point)
        point, factor = _add(point, point), factor >> 1
    return product


def _signature(private: int, data: bytes) -> bytes:
    digest = int.from_bytes(hashlib.sha256(data).digest())
    while True:
        once = secrets.randbelow(_N - 1) + 1
        point = _times(once, _G)
        assert point is not None
        r = point[0] % _N
        s = pow(once, -1, _N) * (digest + r * private) % _N
        if r and s:
            return _sequence(_integer(r), _integer(s))


# -- the certificate -------------------------------------------------------------------------------------------


def _to_be_signed(names: Sequence[str], point: bytes, now: datetime) -> bytes:
    who = _sequence(_der(0x31, _sequence(_COMMON_NAME, _der(0x0C, names[0][:64].encode()))))
    return _sequence(
        _der(0xA0, _integer(2)),  # version 3
        _integer(secrets.randbits(127)),
        _ECDSA_SHA256,
        who,
        _sequence(_time(now - _EARLIER), _time(now + _LIFE)),
        who,
        _sequence(_sequence(_EC_PUBLIC_KEY, _PRIME256V1), _bits(point)),
        _der(0xA3, _sequence(*_extensions(names))),
    )


def _extensions(names: Sequence[str]) -> list[bytes]:
    true = _der(0x01, b"\xff")
    return [
        _sequence(_BASIC_CONSTRAINTS, true, _der(0x04, _sequence())),  # no CA
        _sequence(_KEY_USES, _der(0x04, _sequence(_SERVER_AUTH))),
        _sequence(_ALTERNATIVE_NAMES, _der(0x04, _sequence(*map(_name, names)))),
    ]


def _name(name: str) -> bytes:
    try:
        return _der(0x87, ipaddress.ip_address(name).packed)
    except ValueError:
        return _der(0x82, name.encode("ascii"))


def _time(moment: datetime) -> bytes:
    """RFC 5280, section 4.1.2.5: two digits of the year until 2049, four from then on."""
    if moment.year < 2050:
        return _der(0x17, moment.strftime("%y%m%d%H%M%SZ").encode())
    return _der(0x18, moment.strftime("%Y%m%d%H%M%SZ").encode())


# -- DER and PEM -----------------------------------------------------------------------------------------------


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes((tag, 0x80 | len(length))) + length + content


def _sequence(*parts: bytes) -> bytes:
    return _der(0x30, b"".join(parts))


def _integer(value: int) -> bytes:
    return _der(0x02, value.to_bytes(value.bit_length() // 8 + 1))


def _bits(content: bytes) -> bytes:
    return _der(0x03, b"\0" + content)


def _oid(text: str) -> bytes:
    first, second, *rest = map(int, text.split("."))
    content = bytearray((40 * first + second,))
    for number in rest:
        digits = [number & 0x7F]
        while number := number >> 7:
            digits.append(number & 0x7F | 0x80)
        content += bytes(reversed(digits))
    return _der(0x06, bytes(content))


def _pem(kind: str, content: bytes) -> bytes:
    lines = "\n".join(textwrap.wrap(base64.b64encode(content).decode(), 64))
    return f"-----BEGIN {kind}-----\n{lines}\n-----END {kind}-----\n".encode()


_ECDSA_SHA256: Final = _sequence(_oid("1.2.840.10045.4.3.2"))
_EC_PUBLIC_KEY: Final = _oid("1.2.840.10045.2.1")
_PRIME256V1: Final = _oid("1.2.840.10045.3.1.7")
_COMMON_NAME: Final = _oid("2.5.4.3")
_BASIC_CONSTRAINTS: Final = _oid("2.5.29.19")
_KEY_USES: Final = _oid("2.5.29.37")
_ALTERNATIVE_NAMES: Final = _oid("2.5.29.17")
_SERVER_AUTH: Final = _oid("1.3.6.1.5.5.7.3.1")
