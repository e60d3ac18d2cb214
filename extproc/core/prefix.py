"""Prompt to prefix chain: hashes at stable boundaries, each seeded by the one before.

Two prompts share exactly the hashes of their common beginning. What comes after a boundary never changes a
hash before it, so a chat extended by a turn keeps its whole earlier chain. Every piece (a text, an image, a
tool) is hashed under a tag that says what it is and where it begins, so that a byte moved from one piece,
role or message to the next makes another chain. XXH3 is not made against an adversary: a forced collision
can at worst misroute the request that forces it, as hashes steer and never fetch anything.
"""

from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson
from xxhash import xxh3_64_intdigest as _xxh3

from extproc.core.known_runs import KnownRuns
from extproc.core.prompt import Chain, chain_of
from extproc.errors import Unreadable

#: Bytes between two hashes inside a long text: about 256 tokens, or 256 token ids of four bytes. Engines
#: keep blocks of 16 to 64 tokens; finer hashes would cost memory and tell a router nothing it can use.
CHUNK = 1024

#: From here on a hash stands for 16 KiB of a long text. That is a million tokens, longer than any engine's context,
#: so few texts come so far, and finer hashes would only cost: 32 MiB have 5,900 so, and 32,000 else.
DEEP = 4 * 2**20
DEEP_CHUNK = 16 * 1024

#: Bytes a message counts for beyond its content: role and separators are about four tokens in the chat
#: templates in use (three and the role in OpenAI's token counting recipe), at four bytes a token.
MESSAGE_BYTES = 16

#: Bytes an image, audio clip or file counts for: about 1,000 tokens at four bytes a token. A picture of
#: 1024 x 1024 is 765 tokens to GPT-4o (85 + 4 * 170), 1,369 to Qwen2-VL (one for 28 x 28 pixels, 37 * 37)
#: and 576 to LLaVA-1.5. The length of its URL or base64 says nothing about that.
MEDIA_BYTES = 4000

#: Most values looked at to find how deep a JSON value nests: 10 to 20 ms. A hundred large tools have 20,000.
_MAX_WALKED = 200_000

_CHAIN_SEED = 0x6B767374656572  # "kvsteer": our hashes never equal those of another user of XXH3
_BITS_DROPPED = 4  # 60 bits are two digits of a Python int: 16 bytes less than three, a million times over

#: Up to so many bytes a message stands wholly before DEEP.
_NEAR = DEEP - MESSAGE_BYTES

#: Hashes of texts above 2 CHUNK: below, looking them up costs as much as making them.
_RUNS = KnownRuns()
#: Differs in each process, so that nobody can make a text that others' texts are taken for.
_OWN = hash("kvsteer") >> _BITS_DROPPED & (1 << 60) - 1

#: What a message raises that is not plain: another role, no text, no object, half of a surrogate pair.
_NOT_PLAIN = (AttributeError, KeyError, TypeError, UnicodeEncodeError)


def utf8(text: str) -> bytes:
    """Bytes of `text`; lone surrogates, which JSON escapes can spell, keep a code of their own."""
    return text.encode("utf-8", "surrogatepass")


def tag(word: str) -> int:
    """The 60-bit number that marks pieces of the kind `word`; XORed into the seed of a piece's first hash."""
    return _xxh3(utf8(word), _CHAIN_SEED) >> _BITS_DROPPED


def seed(model: str, adapter: str = "", salt: str = "", extra: str = "") -> int:
    """Where a chain starts: prompts that differ in any of the four words share nothing.

    `extra` is a second salt (SGLang's `extra_key`). Lengths go first, so ("ab", "c") and ("a", "bc") differ.
    """
    lengths = f"{len(model)},{len(adapter)},{len(salt)},{len(extra)};"
    return _xxh3(utf8(lengths + model + adapter + salt + extra), _CHAIN_SEED) >> _BITS_DROPPED


def fold(start: int, kind: int, data: bytes) -> int:
    """`start` for prompts that also have `data` of kind `kind` (a `tag`) before everything else."""
    return _xxh3(data, start ^ kind) >> _BITS_DROPPED


class ChainWriter:
    """Makes one chain, piece by piece, in the order the engine renders them.

    `parts` bounds what `spend` may be told: one more raises `Unreadable("too_many_parts")`.
    """

    __slots__ = ("_ends", "_hash", "_hashes", "_marked", "_parts", "_size", "pictures", "root")

    def __init__(self, start: int, parts: int = 20_000) -> None:
        self._hash = start
        self._size = 0
        self._marked = 0
        self._parts = parts
        self._hashes: list[int] = []
        self._ends: list[int] = []
        #: Images, clips and files so far.
        self.pictures = 0
        #: Which hash stands for the conversation, as far as that was asked.
        self.root = 0

    def fork(self) -> "ChainWriter":
        """A writer that goes on from here by itself: what many prompts begin with is hashed once."""
        other = ChainWriter(self._hash, self._parts)
        other._size, other._marked, other.pictures = self._size, self._marked, self.pictures
        other._hashes, other._ends = self._hashes.copy(), self._ends.copy()
        return other

    @property
    def length(self) -> int:
        """Hashes so far."""
        return len(self._hashes)

    def spend(self, parts: int) -> None:
        """Count `parts` messages or parts about to be written, before any work is done on them."""
        self._parts -= parts
        if self._parts < 0:
            raise Unreadable("too_many_parts")

    @classmethod
    def resumed(cls, hashed: int, size: int, written: Chain, parts: int) -> "ChainWriter":
        """A writer that goes on behind what `write_plain` wrote: `written`, up to this hash and size."""
        writer = cls(hashed, parts)
        writer._size = writer._marked = size
        writer._hashes, writer._ends = written
        return writer

    def messages(
        self, messages: list[Any], roles: Mapping[str, int], other: Callable[[object], None]
    ) -> None:
        """All messages of a chat, each with a hash at its end. They count as parts, as `spend` says.

        `other` gets those that are not plain, and writes them by `message`, or by `open`, pieces and `mark`.
        """
        self.spend(len(messages))
        self.rest(iter(messages), roles, other)

    def rest(
        self, messages: Iterator[Any], roles: Mapping[str, int], other: Callable[[object], None]
    ) -> None:
        """As `messages`, of those that are left and were counted before."""
        odd: tuple[object, ...] = (None,)
        while odd:
            self._hash, self._size, odd = write_plain(
                messages, roles, self._hash, self._size, self._hashes, self._ends
            )
            self._marked = self._size
            if odd:
                other(odd[0])

    def message(self, role: int, text: str) -> None:
        """A whole message of one text."""
        self.open()
        self.text(role, text)
        self.mark()

    def open(self) -> None:
        """Begin a message of several pieces; the first piece is tagged with its role, the last is marked."""
        self._size += MESSAGE_BYTES

    def text(self, kind: int, text: str) -> None:
        """A piece of text as its UTF-8 bytes, however JSON spelled it. A long one is likely to come again."""
        data = text.encode("utf-8", "surrogatepass")
        if 2 * CHUNK < len(data) <= DEEP - self._size:
            self._add(_run_of(data, self._hash ^ kind), len(data), CHUNK)
        else:
            self.data(kind, data)

    def data(self, kind: int, data: bytes | memoryview) -> None:
        """A piece of bytes, counted as such. An empty one counts 1, as ends must rise."""
        length = len(data)
        if length > CHUNK:
            self._long(kind, data)
            return
        self._hash = _xxh3(data, self._hash ^ kind) >> _BITS_DROPPED
        self._size += length or 1
        if self._size - self._marked >= CHUNK:
            self.mark()

    def ids(self, kind: int, ids: list[int]) -> None:
        """A prompt of token ids, four bytes each. Raises `Unreadable` for none and for anything else."""
        if not ids:
            raise Unreadable("wrong_shape")
        try:
            packed = array("I", ids)
        except (TypeError, OverflowError):
            raise Unreadable("wrong_shape") from None
        self.data(kind, memoryview(packed).cast("B"))

    def media(self, kind: int, source: bytes) -> None:
        """An image, audio clip or file by whatever names it: its URL, data URL, file id or bytes."""
        self._hash = _xxh3(source, self._hash ^ kind) >> _BITS_DROPPED
        self._size += MEDIA_BYTES
        self.pictures += 1
        self.mark()

    def mark(self) -> None:
        """Put a hash here, unless the last piece left one: messages, tools and prompts end so."""
        if self._size > self._marked:
            self._hashes.append(self._hash)
            self._ends.append(self._size)
            self._marked = self._size

    def chain(self) -> Chain:
        """The chain of all pieces written; never empty."""
        if not self._size:
            self.data(0, b"")
        if self._size > self._marked:
            self.mark()
        return chain_of(self._hashes, self._ends)

    def _long(self, kind: int, data: bytes | memoryview) -> None:
        """A hash at each KiB of `data`, fewer far from the prompt's begin, and at its end. Nothing is copied."""
        view = memoryview(data)
        near = DEEP - self._size
        if len(view) <= near:
            self._chunks(kind, view, CHUNK)
            return
        if near > 0:
            self._chunks(kind, view[:near], CHUNK)
            kind, view = 0, view[near:]
        self._chunks(kind, view, DEEP_CHUNK)

    def _chunks(self, kind: int, view: memoryview, step: int) -> None:
        """A hash for each `step` bytes of `view`, and at its end."""
        self._add(_run(view, self._hash ^ kind, step), len(view), step)

    def _add(self, run: list[int], length: int, step: int) -> None:
        """Hashes of a piece of `length` bytes, one each `step` and at its end."""
        begin, end = self._size, self._size + length
        self._hashes += run
        self._ends += range(begin + step, end, step)
        self._ends.append(end)
        self._hash, self._size, self._marked = run[-1], end, end


def write_plain(
    messages: Iterator[Any],
    roles: Mapping[str, int],
    hashed: int,
    size: int,
    hashes: list[int],
    ends: list[int],
) -> tuple[int, int, tuple[object, ...]]:
    """Write messages up to the first that is not plain: hash and size then, and that one, or nothing.

    Nine of ten are {"role", "content": text} with a role of `roles`. They are written in one loop without a call
    of ours, which takes a third of what it takes otherwise.
    """
    for message in messages:
        try:
            data = message["content"].encode()
            start = hashed ^ roles[message["role"]]
            if len(message) != 2:
                return hashed, size, (message,)
        except _NOT_PLAIN:
            return hashed, size, (message,)
        length = len(data)
        if length <= CHUNK:
            hashed = _xxh3(data, start) >> _BITS_DROPPED
            hashes.append(hashed)
        elif size + length > _NEAR:
            return hashed, size, (message,)
        elif length > 2 * CHUNK:
            run = _run_of(data, start)
            hashed = run[-1]
            hashes += run
            begin = size + MESSAGE_BYTES
            ends += range(begin + CHUNK, begin + length, CHUNK)
        else:
            first = _xxh3(data[:CHUNK], start) >> _BITS_DROPPED
            hashed = _xxh3(data[CHUNK:], first) >> _BITS_DROPPED
            hashes += first, hashed
            ends.append(size + MESSAGE_BYTES + CHUNK)
        size += MESSAGE_BYTES + (length or 1)
        ends.append(size)
    return hashed, size, ()


def _run(view: memoryview, start: int, step: int) -> list[int]:
    """A hash for each `step` bytes of `view`, and at its end; the first is seeded with `start`."""
    hashed, run = start, []
    for at in range(0, len(view), step):
        hashed = _xxh3(view[at : at + step], hashed) >> _BITS_DROPPED
        run.append(hashed)
    return run


def _run_of(data: bytes, start: int) -> list[int]:
    """The same for each CHUNK of a message's text; not to be changed.

    Such a text is likely to come again after the same ones: a conversation is sent whole with each turn, and begins
    as others do. So what a long one came to is remembered by one hash of it.
    """
    key = _xxh3(data, start ^ _OWN), len(data)
    run = _RUNS.get(key)
    if run is None:
        run = _run(memoryview(data), start, CHUNK)
        _RUNS.keep(key, run)
    return run


def canonical(value: object, depth: int) -> bytes:
    """Bytes that stand for a JSON value: equal values in equal order of keys give equal bytes.

    The client's order of keys is kept: engines render tools in that order, so another order is another
    prompt to them. Raises `Unreadable("too_deep")` when lists and objects nest more than `depth` deep.
    """
    try:
        data = orjson.dumps(value)
    except TypeError:  # nested beyond orjson's 254, a lone surrogate, an int beyond 64 bits
        _check_depth(value, depth)
        return _spelled(value)
    # Counting brackets takes no time and bounds the depth; only what has many is walked.
    if data.count(b"[") + data.count(b"{") > depth:
        _check_depth(value, depth)
    return data


def _check_depth(value: object, depth: int) -> None:
    """Raise when `value` nests too deep, or is too large to tell: level by level, so never a deep stack."""
    level: list[object] = [value]
    left = _MAX_WALKED
    for _ in range(depth):
        nests = [item for item in level if type(item) is dict or type(item) is list]
        if not nests:
            return
        left -= sum(map(len, nests))
        if left < 0:
            raise Unreadable("too_deep")
        level = [inner for nest in nests for inner in (nest.values() if type(nest) is dict else nest)]
    if any(type(item) is dict or type(item) is list for item in level):
        raise Unreadable("too_deep")


def _spelled(value: object) -> bytes:
    """What `orjson.dumps` can't take, as length-prefixed leaves and counted brackets; at any depth."""
    words: list[bytes] = []
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            words.append(b"{%d" % len(item))
            for key, inner in item.items():
                todo += (inner, key)
        elif isinstance(item, list):
            words.append(b"[%d" % len(item))
            todo += item
        else:  # hex, as Python refuses to print an int of 4,300 decimal digits
            leaf = b"%x" % item if type(item) is int else ascii(item).encode()
            words.append(b"%d:%b" % (len(leaf), leaf))
    return b"".join(words)
