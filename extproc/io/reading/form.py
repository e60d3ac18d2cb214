"""What a gateway and its reading process tell each other over their socket.

One message at a time each way, a head of fixed size before it. To the process: the rules, once; then of each body its
path, coding and bytes. Back: a prompt as JSON and the numbers of its chains as they lie in memory, as both run on one
machine; behind them the body without its coding, where it was compressed and goes on under another model's name.
"""

import json
from array import array
from collections.abc import Collection
from dataclasses import asdict, fields
from struct import Struct
from typing import Any, Final

from extproc.core.dialects import Limits
from extproc.core.prompt import Chain, Prompt
from extproc.core.reading import Found, Unread

#: Bytes of the rules.
RULES: Final = Struct("=I")
#: Bytes of path, content-encoding and body, and whether the body may be changed.
ASK: Final = Struct("=IIQ?")
#: Bytes of the JSON, numbers in all chains, and bytes of the body.
ANSWER: Final = Struct("=IQQ")
#: What of a prompt goes as JSON.
_FIELDS: Final = tuple(field.name for field in fields(Prompt) if field.name != "chains")
_NUMBER: Final = 8


def rules(expanded: int, limits: Limits, renamed: Collection[str] = ()) -> bytes:
    """What is said first, once.

    Args:
        expanded: most bytes that a body may decompress to.
        limits: what reading may cost.
        renamed: models that replicas know by other names.
    """
    said = json.dumps([expanded, asdict(limits), sorted(renamed)]).encode()
    return RULES.pack(len(said)) + said


def rules_in(said: bytes) -> tuple[int, Limits, frozenset[str]]:
    """What `rules` said, after its head."""
    expanded, limits, renamed = json.loads(said)
    return expanded, Limits(**limits), frozenset(renamed)


def asked(unread: Unread) -> bytes:
    """What goes before the body."""
    path, coding = (
        unread.path.encode("utf-8", "surrogatepass"),
        unread.coding.encode("utf-8", "surrogatepass"),
    )
    return ASK.pack(len(path), len(coding), unread.size, unread.keeps) + path + coding


def answered(found: Found, body: bytes = b"") -> bytes:
    """What was found, to be sent back before `body`."""
    prompt, why = found
    told = [getattr(prompt, name) for name in _FIELDS]
    said = json.dumps([why, told, [len(chain.hashes) for chain in prompt.chains]]).encode()
    numbers = array("Q")
    for chain in prompt.chains:
        numbers.extend(chain.hashes)
        numbers.extend(chain.ends)
    return ANSWER.pack(len(said), len(numbers), len(body)) + said + numbers.tobytes()


def size_of(head: bytes | bytearray) -> int:
    """Bytes of an answer, its head and the body included, by that head."""
    said, numbers, body = ANSWER.unpack_from(head)
    return ANSWER.size + int(said) + int(numbers) * _NUMBER + int(body)


def found_in(data: bytes | bytearray) -> tuple[Found, memoryview]:
    """A whole answer read back, and the body, empty if none came. Raises ValueError, KeyError or TypeError."""
    said, count, _ = ANSWER.unpack_from(data)
    stop = ANSWER.size + said
    end = stop + count * _NUMBER
    why, told, lengths = json.loads(bytes(data[ANSWER.size : stop]))
    numbers = array("Q", bytes(data[stop:end])).tolist()
    named: dict[str, Any] = dict(zip(_FIELDS, told, strict=True))
    prompt = Prompt(**named)
    if prompt.spots is not None:
        prompt.spots = {name: [(start, end) for start, end in spots] for name, spots in prompt.spots.items()}
    at = 0
    for length in lengths:
        prompt.chains.append(Chain(numbers[at : at + length], numbers[at + length : at + 2 * length]))
        at += 2 * length
    return (prompt, why), memoryview(data)[end:]
