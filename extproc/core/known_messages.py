"""Messages that came before, at the begin of a long chat: known by their bytes, so that only what is new is parsed.

A conversation is sent whole with each turn, and others begin with the same prompt of a system. Parsing takes most of
what a long chat takes to read, five times as much as a hash of it. So its messages are taken in stretches of `LEAST`
bytes and more, each known by a hash of its bytes and of those before it, and a body goes to the parser without them.
Kept is where a stretch ends and what it came to in a prefix chain (core/prefix.py), no text.

What comes for the second time is learned, as that takes nearly as long as reading it. Only plain messages are.
"""

import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

import msgspec
import orjson
from xxhash import xxh3_64_intdigest as _xxh3

from extproc.core.prefix import CHUNK, State
from extproc.core.prompt import Chain
from extproc.core.script import script_of, text_of

#: Bytes of a stretch at least, and its head, by which it is looked up: how long it is, only what is kept there tells.
#: To look one up costs as much as to read 1 KiB.
LEAST: Final = 4096
#: Most stretches kept of one head, each of which is compared in turn; and most chains of one: each model has its own.
_ALIKE: Final = 4
_CHAINS: Final = 64
#: Most hashes kept, a KiB of text each, and most heads: 64 MiB of text in some 10 MiB of memory.
_MOST_HASHES: Final = 65_536
_MOST_HEADS: Final = 4096
#: How often what begins with a head is learned, and once more for so many times that such was found: texts that
#: begin alike and never come again would be learned each time.
_PATIENCE: Final = 2
_FINDS: Final = 4
#: Where messages begin; looked for in a body's first bytes alone.
_BEGIN: Final = re.compile(rb'"messages"\s{0,4}:\s{0,4}\[')
_NEAR: Final = 1024
#: Bytes between two messages.
_BETWEEN: Final = re.compile(rb"[, \t\r\n]{0,64}")
#: Differs in each process, so that nobody can make messages that others' are taken for.
_OWN: Final = hash("known messages") & (1 << 63) - 1
#: What stands in a body in place of the messages that are known: nothing that a client could guess.
_STAND_IN: Final = b"[%d]" % _OWN


class _Raws(msgspec.Struct):
    """Messages as they stand in a body."""

    messages: list[msgspec.Raw]


_RAWS: Final = msgspec.json.Decoder(_Raws)

#: Characters of a text, and the class of its script.
Script = tuple[int, str]


class OtherChainError(Exception):
    """The messages are known, but not what they come to here: the body has to be parsed whole."""


class Stretch:
    """Messages one behind the other.

    Attributes:
        size: their bytes.
        digest: hash of those, and of all messages before.
        count: how many.
        hashes: of them in a chain.
        first, last: of the first's and of the last's text.
        chains: what they come to, by what the chain had come to before.
    """

    __slots__ = ("chains", "count", "digest", "first", "hashes", "last", "size")

    def __init__(self, size: int, digest: int, texts: Sequence[str], hashes: int) -> None:
        self.size, self.digest, self.count, self.hashes = size, digest, len(texts), hashes
        self.first, self.last = script_told(texts[0]), script_told(texts[-1])
        self.chains: dict[State, Chain] = {}


class _Head:
    """Stretches that begin alike; how often one was found, and learned."""

    __slots__ = ("found", "learned", "stretches")

    def __init__(self) -> None:
        self.stretches: list[Stretch] = []
        self.found = self.learned = 0

    def goes_last(self, stretch: Stretch) -> None:
        """One was found that was not the last."""
        self.stretches.remove(stretch)
        self.stretches.append(stretch)


def script_told(text: str) -> Script:
    """What is kept of a text to tell a chat's script."""
    return len(text), script_of(text)


class Skipped:
    """Stands in a parsed body for the messages that it begins with.

    Attributes:
        stretches: at least one.
        count: how many messages there are.
    """

    __slots__ = ("count", "stretches")

    def __init__(self, stretches: list[Stretch]) -> None:
        self.stretches = stretches
        self.count = sum([stretch.count for stretch in stretches])

    def write(self, state: State, hashes: list[int], ends: list[int]) -> State:
        """Write them to a chain that has come to `state`. Raises OtherChainError where that is not known."""
        for stretch in self.stretches:
            chain = stretch.chains.get(state)
            if chain is None:
                raise OtherChainError
            hashes += chain.hashes
            ends += chain.ends
            state = hashes[-1], ends[-1]
        return state

    def script(self, behind: Sequence[Any]) -> str:
        """The script of a chat that goes on with these messages, as `script.script_of_chat` tells it."""
        first, last = self.stretches[0].first, self.stretches[-1].last
        if behind:
            last = script_told(text_of(behind[-1]))
        return first[1] if first[0] > last[0] else last[1]


class Found:
    """A body's messages, as far as they are known.

    Attributes:
        body: all of it.
        begin: where they begin.
        stop: where what is known of them ends.
        context: hash of all that is known.
        stretches: the known ones.
        again: whether what follows has come before, so that it is worth learning.
    """

    __slots__ = ("again", "begin", "body", "context", "stop", "stretches")

    def __init__(
        self, body: memoryview, begin: int, stop: int, context: int, stretches: list[Stretch], *, again: bool
    ) -> None:
        self.body, self.begin, self.stop = body, begin, stop
        self.context, self.stretches, self.again = context, stretches, again

    def parsed(self) -> dict[str, Any] | None:
        """The body with a stand-in for the known messages, parsed; None where it can't be read so."""
        try:
            parsed = orjson.loads(self._short())
            messages = parsed["messages"]
            if messages[0] != [_OWN]:  # the name stands there twice, or elsewhere too
                return None
            messages[0] = Skipped(self.stretches)
        except (ValueError, TypeError, LookupError):
            return None
        return parsed  # type: ignore[no-any-return]  # what has "messages" is an object

    def _short(self) -> bytes:
        """The body with a stand-in, if there is anything that it could stand for."""
        if not self.stretches:
            return bytes(self.body)
        return b"".join((self.body[: self.begin], _STAND_IN, self.body[self.stop :]))

    def ends(self, count: int) -> Iterator[int]:
        """Where each of the first `count` messages behind the known ones ends, as far as that can be told."""
        short, first, at = self._short(), 0, self.begin
        if self.stretches:
            first, at = 1, at + len(_STAND_IN)
        shift = self.stop - at
        try:
            raws = _RAWS.decode(short).messages
        except msgspec.DecodeError:  # it takes a little less than orjson
            return
        for raw in raws[first : first + count]:
            data = bytes(raw)
            between = _BETWEEN.match(short, at)
            at = between.end() if between is not None else at
            if not short.startswith(data, at):
                return
            at += len(data)
            yield at + shift


class KnownMessages:
    """Those of one process; those that were not asked for longest go first.

    Args:
        roles: of plain messages.
        most_hashes, most_heads: what is kept at most.
    """

    def __init__(
        self, roles: Mapping[str, int], most_hashes: int = _MOST_HASHES, most_heads: int = _MOST_HEADS
    ) -> None:
        self._roles = roles
        self._kept: OrderedDict[int, _Head] = OrderedDict()
        #: Heads seen once.
        self._noted: OrderedDict[int, None] = OrderedDict()
        self._most_hashes, self._most_heads = most_hashes, most_heads
        #: Hashes kept.
        self.size = 0

    def find(self, body: bytes | memoryview) -> Found | None:
        """The messages that a body begins with; None where none is known, and what comes is not worth learning."""
        begun = _BEGIN.search(body, 0, _NEAR)
        if begun is None:
            return None
        view, kept = memoryview(body), self._kept
        begin = at = begun.end()
        context, last, again = _OWN, len(view) - LEAST, False
        stretches: list[Stretch] = []
        while at <= last:
            behind = at + LEAST
            key = _xxh3(view[at:behind], context)
            head = kept.get(key)
            for stretch in head.stretches if head is not None else ():
                stop = at + stretch.size
                if _xxh3(view[behind:stop], key) == stretch.digest and stop <= len(view):
                    break
            else:
                again = self._again(key, head)
                break
            assert head is not None, "it has the stretch"
            head.found += 1
            if stretch is not head.stretches[-1]:
                head.goes_last(stretch)
            kept.move_to_end(key)
            stretches.append(stretch)
            at, context = stop, stretch.digest
        return Found(view, begin, at, context, stretches, again=again) if stretches or again else None

    def _again(self, key: int, head: _Head | None) -> bool:
        """Whether what has this head, and was not found, is worth learning."""
        if head is not None:
            return head.learned < head.found // _FINDS + _PATIENCE
        if key in self._noted:
            del self._noted[key]
            return True
        self._noted[key] = None
        if len(self._noted) > self._most_heads:
            self._noted.popitem(last=False)
        return False

    def learn(self, found: Found, messages: Sequence[Any], start: State, chain: Chain) -> None:
        """Keep what is not known yet of a body's plain messages.

        Args:
            found: what is.
            messages: all of the body, or those behind the known ones.
            start: what the chain had come to before the first message.
            chain: of the messages, the known ones too.
        """
        at, context = found.stop, found.context
        done = upto = sum([stretch.hashes for stretch in found.stretches])
        texts: list[str] = []
        plain = [*takewhile(self._is_plain, messages)]
        for message, stop in zip(plain, found.ends(len(plain)), strict=False):
            texts.append(message["content"])
            try:
                upto += max(1, -(-len(texts[-1].encode()) // CHUNK))
            except UnicodeEncodeError:  # half of a surrogate pair
                return
            if stop - at < LEAST:
                continue
            key = _xxh3(found.body[at : at + LEAST], context)
            stretch = Stretch(stop - at, _xxh3(found.body[at + LEAST : stop], key), texts, upto - done)
            stretch.chains[_state(chain, done, start)] = _part(chain, done, upto)
            self._keep(key, stretch)
            at, context, texts, done = stop, stretch.digest, [], upto

    def learn_other(self, found: Found, start: State, chain: Chain) -> None:
        """Keep what messages that are known come to in another chain: `start` and `chain` as for `learn`."""
        done = 0
        for stretch in found.stretches:
            state, upto = _state(chain, done, start), done + stretch.hashes
            if state not in stretch.chains:
                if len(stretch.chains) >= _CHAINS:
                    return
                stretch.chains[state] = _part(chain, done, upto)
                self.size += stretch.hashes
            done = upto
        self._forget()

    def _is_plain(self, message: Any) -> bool:
        """As `prefix.write_plain` means it, if its text is any in UTF-8."""
        if type(message) is not dict or len(message) != 2 or type(message.get("content")) is not str:
            return False
        role = message.get("role")
        return type(role) is str and role in self._roles

    def _keep(self, key: int, stretch: Stretch) -> None:
        head = self._kept.setdefault(key, _Head())
        self._kept.move_to_end(key)
        head.learned += 1
        alike = [it for it in head.stretches if it.digest != stretch.digest][1 - _ALIKE :]
        gone = [it for it in head.stretches if it not in alike]
        head.stretches = [*alike, stretch]
        self.size += stretch.hashes - sum(map(_kept_of, gone))
        self._forget()

    def _forget(self) -> None:
        while self.size > self._most_hashes or len(self._kept) > self._most_heads:
            self.size -= sum(map(_kept_of, self._kept.popitem(last=False)[1].stretches))


def _kept_of(stretch: Stretch) -> int:
    return stretch.hashes * len(stretch.chains)


def _state(chain: Chain, done: int, start: State) -> State:
    """What a chain that begins at `start` has come to with its first `done` hashes."""
    return (chain.hashes[done - 1], chain.ends[done - 1]) if done else start


def _part(chain: Chain, begin: int, stop: int) -> Chain:
    return Chain(chain.hashes[begin:stop], chain.ends[begin:stop])
