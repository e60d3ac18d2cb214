"""What a gateway and its reading process tell each other over their socket.

One message at a time each way, a head of fixed size before it. To the process: the rules, once; then of each body its
path, coding and bytes. Back: a prompt as JSON and the numbers of its chains as they lie in memory, as both run on one
machine.
"""

import json
from array import array
from dataclasses import asdict, fields
from struct import Struct
from typing import Any, Final

from extproc.core.dialects import Limits
from extproc.core.prompt import Chain, Prompt
from extproc.core.reading import Found, Unread

#: Bytes of the rules.
RULES: Final = Struct("=I")
#: Bytes of path, content-encoding and body.
ASK: Final = Struct("=IIQ")
#: Bytes of the JSON, and numbers in all chains.
ANSWER: Final = Struct("=IQ")
#: What of a prompt goes as JSON.
_FIELDS: Final = tuple(field.name for field in fields(Prompt) if field.name != "chains")
_NUMBER: Final = 8


def rules(expanded: int, limits: Limits) -> bytes:
    """What is said first, once: most bytes that a body may decompress to, and what reading may cost."""
    said = json.dumps([expanded, asdict(limits)]).encode()
    return RULES.pack(len(said)) + said


def rules_in(said: bytes) -> tuple[int, Limits]:
    """What `rules` said, after its head."""
    expanded, limits = json.loads(said)
    return expanded, Limits(**limits)


def asked(unread: Unread) -> bytes:
    """What goes before the body."""
    path, coding = (
        unread.path.encode("utf-8", "surrogatepass"),
        unread.coding.encode("utf-8", "surrogatepass"),
    )
    return ASK.pack(len(path), len(coding), unread.size) + path + coding


def answered(found: Found) -> bytes:
    """What was found, to be sent back."""
    prompt, why = found
    told = [getattr(prompt, name) for name in _FIELDS]
    said = json.dumps([why, told, [len(chain.hashes) for chain in prompt.chains]]).encode()
    numbers = array("Q")
    for chain in prompt.chains:
        numbers.extend(chain.hashes)
        numbers.extend(chain.ends)
    return ANSWER.pack(len(said), len(numbers)) + said + numbers.tobytes()


def size_of(head: bytes | bytearray) -> int:
    """Bytes of an answer, its head included, by that head."""
    said, numbers = ANSWER.unpack_from(head)
    return ANSWER.size + int(said) + int(numbers) * _NUMBER


def found_in(data: bytes | bytearray) -> Found:
    """A whole answer read back. Raises ValueError, KeyError or TypeError for anything else."""
    said, _ = ANSWER.unpack_from(data)
    stop = ANSWER.size + said
    why, told, lengths = json.loads(bytes(data[ANSWER.size : stop]))
    numbers = array("Q", bytes(data[stop:])).tolist()
    named: dict[str, Any] = dict(zip(_FIELDS, told, strict=True))
    prompt = Prompt(**named)
    at = 0
    for length in lengths:
        prompt.chains.append(Chain(numbers[at : at + length], numbers[at + length : at + 2 * length]))
        at += 2 * length
    return prompt, why
