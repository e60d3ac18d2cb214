"""What stands in Redis of gateways and leases, for `kvsteer state`."""

from typing import Any

from redis.exceptions import ResponseError

from extproc.config import RedisSettings
from extproc.io.lease import gateway_of
from extproc.io.policy_versions import quoted
from extproc.io.redis_client import make_client

#: Most gateways and most leases read: a bound on what one command fetches.
_MOST = 1000
#: End of a key beside a lease's own: the greatest token, a string (io/lease.py).
_TOKEN = b":token"


async def read_fleet(settings: RedisSettings) -> dict[str, Any]:
    """Gateways (`heard`: seconds ago) and leases (`until`: seconds from now), ready for JSON.

    And what was `skipped`, in words: keys of theirs that hold something else.

    Raises:
        RedisError, OSError: as the client.
    """
    client = make_client(settings, "state")
    try:
        seconds, micros = await client.time()
        gateways, strange = await _hashes(client, f"{settings.key_prefix}:gateway:")
        leases, stranger = await _hashes(client, f"{settings.key_prefix}:lease:")
        return {
            "redis": settings.place.shown(),
            "gateways": [_gateway(name, held, seconds + micros / 1e6) for name, held, _ in gateways],
            "leases": [_lease(name, held, left) for name, held, left in leases],
            "skipped": [
                f"key {quoted(key)}: holds no hash, so it is no {kind}'s"
                for key, kind in [(key, "gateway") for key in strange] + [(key, "lease") for key in stranger]
            ],
        }
    finally:
        await client.aclose()


async def _hashes(client: Any, start: str) -> tuple[list[tuple[str, dict[str, str], int]], list[bytes]]:
    """Hashes whose keys begin so, by name: the rest of the key, the fields, the TTL (ms; negative for none).

    And the keys of what is no hash, though it should be.
    """
    found: list[tuple[str, dict[str, str], int]] = []
    strange: list[bytes] = []
    async for key in client.scan_iter(match=f"{start}*", count=1000):
        try:
            held = await client.hgetall(key)
        except ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            if not key.endswith(_TOKEN) and len(strange) < _MOST:
                strange.append(key)
            continue
        text = {k.decode("utf-8", "replace"): v.decode("utf-8", "replace") for k, v in held.items()}
        found.append((key[len(start) :].decode("utf-8", "replace"), text, await client.pttl(key)))
        if len(found) >= _MOST:
            break
    return sorted(found), sorted(strange)


def _gateway(name: str, held: dict[str, str], now: float) -> dict[str, Any]:
    seen = _number(held.get("seen"))
    return {
        "gateway": name,
        "version": held.get("version"),
        "address": held.get("address") or None,
        "streams": _number(held.get("streams")),
        "heard": None if seen is None else round(max(0.0, now - seen), 1),
    }


def _lease(name: str, held: dict[str, str], left: int) -> dict[str, Any]:
    return {
        "lease": name,
        "holder": gateway_of(held.get("holder", "")) or None,
        "token": _number(held.get("token")),
        "until": round(left / 1000, 3) if left >= 0 else None,
    }


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 20 else None
