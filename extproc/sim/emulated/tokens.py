"""Text to tokens without a tokenizer: a token is a slice of UTF-8, so counts follow bytes exactly.

Token `i` is the bytes from `cut(i)` to `cut(i + 1)`. Blocks of tokens are hashed in a chain, each hash
seeded by the one before, so a hash stands for everything up to the end of its block.
"""

from collections.abc import Iterable

import xxhash

#: Words of the generated text: ASCII without quotes or backslashes, so that JSON needs no escapes.
_WORDS = (
    "the a one this every small quick plain warm late next other same new first last long short clear "
    "replica request cache token engine step queue answer prompt block river stone window garden letter "
    "holds sends makes finds keeps reads moves waits turns gives opens follows and but then while because "
    "near under over after before between slowly again always seldom together apart today"
)
#: Characters before the generated text repeats.
_POOL_SIZE = 1 << 16


def _make_pool() -> str:
    # A linear congruential generator (the constants of Numerical Recipes): the same text on every machine.
    state, words, size = 1, list[str](), 0
    choices = _WORDS.split()
    while size < _POOL_SIZE:
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        words.append(choices[(state >> 16) % len(choices)])
        size += len(words[-1]) + 1
    return " ".join(words)[: _POOL_SIZE - 1] + " "


_POOL = _make_pool()
#: Where words begin, so that a text does not begin inside one.
_BEGINNINGS = [0, *(index + 1 for index, char in enumerate(_POOL[:-1]) if char == " ")]


def generated_text(seed: int, start: int, end: int) -> str:
    """Characters `start` to `end` of the endless text that belongs to `seed`; ASCII, no JSON escapes."""
    size = end - start
    offset = (_BEGINNINGS[seed % len(_BEGINNINGS)] + start) % _POOL_SIZE
    text = _POOL[offset : offset + size]
    while len(text) < size:
        text += _POOL[: size - len(text)]
    return text


class Cutter:
    """Where tokens begin and end. Counts in whole thousandths of a byte, so nothing is ever rounded twice."""

    __slots__ = ("_milli", "block_size")

    def __init__(self, bytes_per_token: float, block_size: int) -> None:
        self.block_size = block_size
        self._milli = round(bytes_per_token * 1000)

    def cut(self, token: int) -> int:
        """The byte at which token `token` begins."""
        return token * self._milli // 1000

    def count(self, size: int) -> int:
        """Tokens of `size` bytes, the last one perhaps short; 0 for 0."""
        return -(-size * 1000 // self._milli)

    def full_blocks(self, size: int) -> int:
        """Blocks that `size` bytes fill: the most for which `cut` of their end is at most `size`."""
        return (size * 1000 + 999) // self._milli // self.block_size

    def slices(self, data: bytes) -> list[bytes]:
        """The tokens of `data`."""
        return [data[self.cut(i) : self.cut(i + 1)] for i in range(self.count(len(data)))]


class TokenStream:
    """The tokens of one sequence: its prompt, and what is generated after it.

    Keeps no more of the prompt than the bytes after its last full block.
    """

    __slots__ = ("_cutter", "_root", "_tail", "hashes", "prompt_tokens", "seed", "size")

    def __init__(self, cutter: Cutter, data: bytes, root: int) -> None:
        """`root` keys the cache: see `cache_root`."""
        self._cutter = cutter
        self.size = len(data)
        self.prompt_tokens = cutter.count(len(data))
        #: Chained hashes of the full blocks.
        self.hashes: list[int] = []
        self._root = root
        self._tail = b""
        self._hash_blocks(memoryview(data))
        self.seed = xxhash.xxh3_64_intdigest(self._tail, self._last())

    def sibling(self, choice: int) -> "TokenStream":
        """The same prompt for another answer, without hashing it again."""
        other = TokenStream.__new__(TokenStream)
        other._cutter, other.size, other._tail, other._root = self._cutter, self.size, self._tail, self._root
        other.prompt_tokens, other.hashes = self.prompt_tokens, self.hashes.copy()
        other.seed = self.seed + choice * 7919  # any odd step spreads the answers over the pool
        return other

    def text(self, start: int, end: int) -> str:
        """Generated tokens `start` to `end` as text."""
        return generated_text(self.seed, self._cutter.cut(start), self._cutter.cut(end))

    def characters(self, tokens: int) -> int:
        """Characters in the text of the first `tokens` generated tokens."""
        return self._cutter.cut(tokens)

    def extend(self, generated: int) -> list[int]:
        """Hash the blocks that `generated` tokens of output have filled since the last call; new hashes."""
        old, output = len(self.hashes), self._cutter.cut(generated)
        new = self._cutter.full_blocks(self.size + output)
        if new <= old:
            return []
        begin = self._block_start(old)
        text = generated_text(self.seed, max(0, begin - self.size), output)
        self._hash(memoryview(self._tail + text.encode()), old, new)
        self._tail = b""  # a new block always ends in generated text, so the prompt is used up
        return self.hashes[old:]

    def _hash_blocks(self, data: memoryview) -> None:
        full = self._cutter.full_blocks(len(data))
        self._hash(data, 0, full)
        self._tail = bytes(data[self._block_start(full) :])

    def _hash(self, data: memoryview, first: int, stop: int) -> None:
        """Hash blocks `first` to `stop`; `data` begins where block `first` does."""
        last, digest, origin = self._last(), xxhash.xxh3_64_intdigest, self._block_start(first)
        begin = 0
        for block in range(first + 1, stop + 1):
            end = self._block_start(block) - origin
            last = digest(data[begin:end], last)
            self.hashes.append(last)
            begin = end

    def _block_start(self, block: int) -> int:
        return self._cutter.cut(block * self._cutter.block_size)

    def _last(self) -> int:
        return self.hashes[-1] if self.hashes else self._root


def cache_root(parts: Iterable[str]) -> int:
    """The seed of a chain from what must keep caches apart, e.g. model, adapter and salt."""
    root = 0
    for part in parts:
        root = xxhash.xxh3_64_intdigest(part.encode(), root)
    return root
