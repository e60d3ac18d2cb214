"""Where the views of two gateways differ, by what each says at /state."""

from collections.abc import Iterator
from typing import Any

#: Numbers that move under load differ when they are further apart than a share of the larger one, and than so many.
_SHARE = 0.1
_ROOM = {"entries": 256, "requests": 5, "tokens": 8192}

#: What differs -> a sentence.
Differences = dict[tuple[str, ...], str]


def differences(one: dict[str, Any], other: dict[str, Any]) -> Differences:
    """Every difference that matters, by what it concerns, so that two looks can be compared."""
    return dict(_differences(one, other))


def _differences(one: dict[str, Any], other: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    names = (str(one["gateway"]), str(other["gateway"]))
    mine, theirs = ({pool["pool"]: pool for pool in said["pools"]} for said in (one, other))
    yield from _only_in_one((), "pool", mine, theirs, names)
    for pool in mine.keys() & theirs.keys():
        versions = mine[pool]["policy_version"], theirs[pool]["policy_version"]
        if versions[0] != versions[1]:
            yield (pool, "policy"), _sentence(f"{pool}: policy version", versions, names)
        replicas = [{row["replica"]: row for row in side[pool]["replicas"]} for side in (mine, theirs)]
        yield from _only_in_one((pool,), f"{pool}: replica", replicas[0], replicas[1], names)
        for address in replicas[0].keys() & replicas[1].keys():
            yield from _replica(pool, replicas[0][address], replicas[1][address], names)


def _only_in_one(
    above: tuple[str, ...], what: str, mine: dict[str, Any], theirs: dict[str, Any], names: tuple[str, str]
) -> Iterator[tuple[tuple[str, ...], str]]:
    for name in mine.keys() ^ theirs.keys():
        knows = names[0] if name in mine else names[1]
        yield (*above, name, "there"), f"{what} {name}: only {knows} knows it"


def _replica(
    pool: str, one: dict[str, Any], other: dict[str, Any], names: tuple[str, str]
) -> Iterator[tuple[tuple[str, ...], str]]:
    where = f"{pool}: {one['replica']}:"
    if one["state"] != other["state"]:
        states = one["state"], other["state"]
        yield (pool, one["replica"], "state"), _sentence(f"{where} state", states, names)
    for field, room in _ROOM.items():
        a, b = one[field], other[field]
        if abs(a - b) > max(room, _SHARE * max(a, b)):
            yield (pool, one["replica"], field), _sentence(f"{where} {field}", (a, b), names)


def _sentence(what: str, values: tuple[Any, Any], names: tuple[str, str]) -> str:
    return f"{what}: {values[0]} at {names[0]}, {values[1]} at {names[1]}"
