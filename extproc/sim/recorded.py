"""Recorded requests made into rows of a trace: the chain of a prompt, cut into blocks of equal length.

A block's id is that of the first place in the chain at or behind its end, so two prompts share a block where their
chains say that they share all of it. It is keyed with a word that nobody keeps: whoever has the trace can't look for
a prompt in it that he guesses.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from extproc.sim.bounds import MOST_TOKENS

#: Tokens of a block: a message's end costs half of one on average, and 64 KiB of text make a few hundred.
BLOCK: Final = 64
#: Bits of an id: what block hashes have, and JSON readers everywhere can hold.
_BITS: Final = 52


def row_of(said: Mapping[str, Any], key: bytes) -> dict[str, Any]:
    """A row as extproc/sim/traces.py reads it, of a line of GET /record.

    Raises:
        ValueError, KeyError, TypeError: it is no such line.
    """
    tokens, size, ends, hashes = int(said["tokens"]), int(said["bytes"]), said["ends"], said["hashes"]
    if not 0 < tokens <= MOST_TOKENS or len(ends) != len(hashes) or not ends:
        raise ValueError("not a line of a recording")
    first = said["first"]
    return {
        "timestamp": round(max(float(said["at"]), 0.0) * 1000, 1),
        "input_length": tokens,
        "output_length": int(said["output"]),
        "output_limit": said["limit"],
        "block_tokens": BLOCK,
        "hash_ids": blocks_of(ends, hashes, tokens, size, key),
        "ttft_ms": None if first is None else round(first * 1000, 2),
        "cached": said["cached"],
        "policy": said["policy"],
    }


def blocks_of(ends: list[int], hashes: list[int], tokens: int, size: int, key: bytes) -> list[int]:
    """Ids of a prompt's blocks; `ends` in bytes of `size` in all."""
    each = max(size, 1) / tokens
    found = []
    for number in range(max(math.ceil(tokens / BLOCK), 1)):
        place = min(bisect_left(ends, (number + 1) * BLOCK * each - 1e-6), len(ends) - 1)
        digest = blake2b(b"%d %d" % (hashes[place], number), key=key, digest_size=8).digest()
        found.append(int.from_bytes(digest, "big") >> (64 - _BITS))
    return found
