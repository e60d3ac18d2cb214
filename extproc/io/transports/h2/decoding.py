"""Header blocks decoded (RFC 7541). Tables of codes and of usual fields are those of the `hpack` library.

That library's own decoder takes longer for one block than all else that is done for its request. Most blocks are
known by their bytes and never get here; but where Envoy traces, each has a `traceparent` of its own.
"""

from collections import deque
from typing import Final

from hpack.huffman_table import HUFFMAN_COMPLETE, HUFFMAN_EMIT_SYMBOL, HUFFMAN_FAIL, HUFFMAN_TABLE
from hpack.table import HeaderTable

Field = tuple[bytes, bytes]

#: Bytes of fields that a peer's dynamic table may hold: what every table holds before SETTINGS, which we leave so.
TABLE_SIZE: Final = 4096
#: What each entry counts beside its bytes (section 4.1).
_ENTRY: Final = 32
_STATIC: Final[list[Field]] = [(bytes(name), bytes(value)) for name, value in HeaderTable.STATIC_TABLE]
#: Bits that an integer's later bytes may bring: no index and no length needs more.
_MOST_BITS: Final = 28


class TooLarge(Exception):
    """A header list above the limit."""


class Decoder:
    """Decodes the blocks of one connection, in the order in which they come.

    Args:
        most: bytes of a decoded block, counted as in section 4.1.

    Attributes:
        changes: grows whenever the dynamic table changes.
        size: bytes that the peer lets its dynamic table hold.
    """

    __slots__ = ("_entries", "_most", "_used", "changes", "size")

    def __init__(self, most: int) -> None:
        self.changes = 0
        self.size = TABLE_SIZE
        self._most = most
        self._entries: deque[Field] = deque()
        self._used = 0

    def decode(self, block: bytes) -> list[Field]:
        """The fields of a block.

        Raises:
            TooLarge: they are more than the limit.
            ValueError, IndexError: it can't be read.

        After any of them the table is no longer what the peer believes.
        """
        fields: list[Field] = []
        at, stop, total = 0, len(block), 0
        while at < stop:
            first = block[at]
            if first & 0x80:
                if first < 0xFF:
                    at, field = at + 1, self._entry(first & 0x7F)
                else:
                    at, index = _integer(block, at, 0x7F)
                    field = self._entry(index)
            elif first & 0x40:
                at, field = self._literal(block, at, 0x3F)
                self._add(field)
            elif first & 0x20:
                if fields:
                    raise ValueError("the table's size changes after a field")
                at = self._resize(block, at)
                continue
            else:
                at, field = self._literal(block, at, 0x0F)
            fields.append(field)
            total += _ENTRY + len(field[0]) + len(field[1])
            if total > self._most:
                raise TooLarge
        return fields

    def _entry(self, index: int) -> Field:
        if not index:
            raise ValueError("no entry has the number 0")
        return _STATIC[index - 1] if index <= len(_STATIC) else self._entries[index - len(_STATIC) - 1]

    def _literal(self, block: bytes, at: int, mask: int) -> tuple[int, Field]:
        at, index = _integer(block, at, mask)
        if index:
            name = self._entry(index)[0]
        else:
            at, name = _string(block, at)
        at, value = _string(block, at)
        return at, (name, value)

    def _add(self, field: Field) -> None:
        self.changes += 1
        self._entries.appendleft(field)
        self._used += _ENTRY + len(field[0]) + len(field[1])
        if self._used > self.size:
            self._evict()

    def _evict(self) -> None:
        """The oldest go until the others fit; one that is larger than the table empties it (section 4.4)."""
        while self._used > self.size:
            name, value = self._entries.pop()
            self._used -= _ENTRY + len(name) + len(value)

    def _resize(self, block: bytes, at: int) -> int:
        at, size = _integer(block, at, 0x1F)
        if size > TABLE_SIZE:
            raise ValueError("a table above SETTINGS_HEADER_TABLE_SIZE")
        if size != self.size:
            self.changes += 1
            self.size = size
            self._evict()
        return at


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """What follows the integer at `at`, whose first byte has it in the bits of `mask`, and it (section 5.1)."""
    value = block[at] & mask
    at += 1
    if value < mask:
        return at, value
    for shift in range(0, _MOST_BITS, 7):
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return at, value
    raise ValueError("an integer of too many bytes")


def _string(block: bytes, at: int) -> tuple[int, bytes]:
    """What follows the string at `at`, and it (section 5.2)."""
    coded = block[at] & 0x80
    at, size = _integer(block, at, 0x7F)
    stop = at + size
    if stop > len(block):
        raise ValueError("a string that ends after its block")
    text = block[at:stop]
    return stop, _plain(text) if coded else text


class _State(dict[int, tuple["_State", bytes]]):
    """A state of the Huffman code: byte -> the next state, and the bytes that are whole with it.

    What a byte does is worked out when it first comes; there are 256 states of 256 bytes at most.

    Attributes:
        number: which one it is in the library's table.
        may_end: whether a string may end here.
    """

    __slots__ = ("may_end", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.may_end = number in _MAY_END

    def __missing__(self, byte: int) -> tuple["_State", bytes]:
        number, made = self.number, b""
        for nibble in (byte >> 4, byte & 0xF):
            number, flags, whole = HUFFMAN_TABLE[number << 4 | nibble]
            if flags & HUFFMAN_FAIL:
                raise ValueError("a string with a code that is none")
            if flags & HUFFMAN_EMIT_SYMBOL:
                made += b"%c" % whole
        self[byte] = does = _STATES[number], made
        return does


_MAY_END: Final = {state for state, flags, _ in HUFFMAN_TABLE if flags & HUFFMAN_COMPLETE}
_STATES: Final = [_State(number) for number in range(len(HUFFMAN_TABLE) // 16)]


def _plain(coded: bytes) -> bytes:
    """A string decoded by the Huffman code of appendix B."""
    state, made = _STATES[0], []
    for byte in coded:
        state, part = state[byte]
        made.append(part)
    if not state.may_end:
        raise ValueError("a string that ends within a code")
    return b"".join(made)
