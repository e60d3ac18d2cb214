"""What the tests of the engines share: the fixtures, and the ways a line can be spoilt."""

import json
import random
import re
from collections.abc import Collection, Iterator
from dataclasses import fields
from itertools import islice
from pathlib import Path

from extproc.core.sample import Sample
from tests.examples import QUICK

FIXTURES = Path(__file__).parent.parent / "fixtures" / "engines"

#: When every test reads its sample, in seconds.
AT = 100.0


def body(name: str) -> bytes:
    return (FIXTURES / name).read_bytes()


def known(sample: Sample) -> dict[str, object]:
    """The fields of a sample that tell something."""
    told = {field.name: getattr(sample, field.name) for field in fields(sample) if field.name != "at"}
    return {name: value for name, value in told.items() if value is not None and value != ()}


def spoilt(text: bytes, wanted: Collection[str] | None = None) -> Iterator[tuple[str, bytes]]:
    """Each line of a body in turn removed or garbled, the rest as it was; and what was done to which line.

    With the names that are `wanted`, lines of others, most of a body, are garbled all at once: none of them is read.
    """
    lines = text.splitlines(keepends=True)
    others: dict[str, list[bytes]] = {}
    for index, line in enumerate(lines):
        if line.startswith(b"#"):
            continue
        is_read = wanted is None or re.split(rb"[{ ]", line)[0].decode() in wanted
        for way, other in _garbled(line):
            if is_read:
                changed = b"".join([*lines[:index], other, *lines[index + 1 :]])
                yield f"{way}: {line.decode()[:120]}", changed
            else:
                others.setdefault(way, list(lines))[index] = other
    for way, changed_lines in others.items():
        yield f"{way}: all that is not read", b"".join(changed_lines)


def some(spoilt_bodies: Iterator[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """Each fourth of them, so that every line is spoilt in some ways and every way befalls some lines.

    Each run has others. All of them where as many examples are tried as are asked for (tests/examples.py).
    """
    return islice(spoilt_bodies, random.randrange(4), None, 4) if QUICK else spoilt_bodies


def _garbled(line: bytes) -> Iterator[tuple[str, bytes]]:
    head, _, _ = line.rstrip().rpartition(b" ")
    yield "removed", b""
    yield "no value", head + b"\n"
    for value in (b"NaN", b"-1", b"+Inf", b"-Inf", b"0x00", b"1_0", b"0.0.0", b"\xff\x00"):
        yield f"value {value!r}", head + b" " + value + b"\n"
    yield "blanks lost", line.replace(b" ", b"")
    if b"{" in line:
        yield "cut within the labels", line[: line.index(b"{") + 3] + b"\n"
        yield "brace lost", line.replace(b"}", b"")
        yield "quotes lost", line.replace(b'"', b"")
        yield "one quote lost", re.sub(rb'"(.*)"', rb'\1"', line, count=1)


def faults(before: Sample, after: Sample, may_become: dict[str, object]) -> list[str]:
    """The fields that a spoilt line turned into something false: neither the truth nor unknown.

    `may_become` names fields that have a second source, and the value that it tells.
    """
    wrong = []
    for field in fields(before):
        truth, told = getattr(before, field.name), getattr(after, field.name)
        allowed = (truth, None, ()) if field.name == "models" else (truth, None)
        if told not in allowed and told != may_become.get(field.name, truth):
            wrong.append(f"{field.name}: {truth} became {told}")
    return wrong


def spoilt_json(text: bytes) -> Iterator[tuple[str, bytes]]:
    """Each value inside a JSON body in turn removed or of a wrong kind; and the body cut off."""
    tree = json.loads(text)
    for path in _paths(tree):
        yield f"removed: {path}", json.dumps(_changed(tree, path, _REMOVED)).encode()
        for value in (None, -1, "7", True, [], {}, float("nan"), float("inf"), 10**400):
            yield f"{value!r:.20}: {path}", json.dumps(_changed(tree, path, value)).encode()
    for share in (0.0, 0.3, 0.9):
        yield f"cut at {share}", text[: int(len(text) * share)]


_REMOVED = object()


def _paths(tree: object) -> Iterator[tuple[str | int, ...]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (key,)
        yield from ((key, *rest) for rest in _paths(value))


def _changed(tree: object, path: tuple[str | int, ...], value: object) -> object:
    copy = json.loads(json.dumps(tree))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    if value is _REMOVED:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return copy
