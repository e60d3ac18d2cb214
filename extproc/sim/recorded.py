"""Recorded requests made into rows of a trace: the chain of a prompt, cut into blocks of equal length.

A block's id is that of the first of the chain's ends at or behind its own, so two prompts share a block where their
chains say that they share all of it. It is keyed with a word that nobody keeps: whoever has the trace can't look for
a prompt in it that he guesses.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

from extproc.sim.bounds import MOST_TOKENS

#: Tokens of a block: a message's end costs half of one on average, and 64 KiB of text make a few hundred.
BLOCK: Final = 64
#: Bits of an id: what block hashes have, and JSON readers everywhere can hold.
_BITS: Final = 52


class Places:
    """Where chains' ends lie in their prompts, in tokens.

    A recording tells a prompt's bytes and tokens as a whole, and prompts have different bytes a token. So that those
    which share an end share every block before it, an end lies for all of them where it lay in the first; what is
    behind the last one that is known is spread by the rest of the prompt's own tokens.

    Args:
        most: ends kept; the one that was seen longest ago goes first.
    """

    def __init__(self, most: int = 1_000_000) -> None:
        self._most = most
        self._at: dict[int, float] = {}

    def __len__(self) -> int:
        """Ends kept."""
        return len(self._at)

    def of(self, ends: Sequence[int], hashes: Sequence[int], tokens: int, size: int) -> list[float]:
        """The place of each end; `ends` in bytes of `size` in all, rising."""
        at, begin, places = self._at, 0.0, list[float]()
        for name in hashes:
            if (place := at.pop(name, None)) is None:
                break
            at[name] = place
            places.append(place)
        known = len(places)
        start, begin = (ends[known - 1], places[-1]) if known else (0, 0.0)
        each = max(tokens - begin, 0.0) / max(size - start, 1)
        for end, name in zip(ends[known:], hashes[known:], strict=True):
            place = begin + (end - start) * each
            at[name] = place
            places.append(place)
        while len(at) > self._most:
            del at[next(iter(at))]
        return places


def row_of(said: Mapping[str, Any], key: bytes, places: Places) -> dict[str, Any]:
    """A row as extproc/sim/traces.py reads it, of a line of GET /record; `places` is that of the whole recording.

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
        "hash_ids": blocks_of(places.of(ends, hashes, tokens, size), hashes, tokens, key),
        "ttft_ms": None if first is None else round(first * 1000, 2),
        "cached": said["cached"],
        "policy": said["policy"],
    }


def blocks_of(places: Sequence[float], hashes: Sequence[int], tokens: int, key: bytes) -> list[int]:
    """Ids of a prompt's blocks; `places` of its chain's ends in tokens."""
    found = []
    for number in range(max(math.ceil(tokens / BLOCK), 1)):
        place = min(bisect_left(places, (number + 1) * BLOCK - 1e-6), len(places) - 1)
        digest = blake2b(b"%d %d" % (hashes[place], number), key=key, digest_size=8).digest()
        found.append(int.from_bytes(digest, "big") >> (64 - _BITS))
    return found
