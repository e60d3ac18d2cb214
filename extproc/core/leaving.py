"""Replicas that said good-bye, though perhaps to one gateway alone: told to all, so that none sends there any more.

Each gateway has a word about a replica: whether it leaves, and when that was said. Words are joined by that moment:
the newest counts, in whatever order and however often they come. A word arises where a replica's own drain
(lifecycle.py, cause `replica`) begins or ends here: by its reporter's report, by a new engine process, by an
operator's undrain. Who hears an older word than its own says its own again; that one leaves is said again and again,
for gateways that have just started, or missed it.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from extproc.core.fleet import Replica
from extproc.core.lifecycle import ITSELF, QUIESCING
from extproc.core.pool import Pool

#: Seconds between two times that it is said that replicas leave.
_AGAIN: Final = 2.0

#: A pool's name and a replica's address.
_Key = tuple[str, str]


class Word(NamedTuple):
    """What was said of a replica, and when (seconds, our clock)."""

    said: float
    leaves: bool


class Leavings:
    """This gateway's words.

    Args:
        pools: of this gateway.

    Attributes:
        obey: given a pool, an address, whether that replica drains by its own word, and the time: makes it so.
    """

    def __init__(self, pools: Iterable[Pool]) -> None:
        self._pools = {pool.name: pool for pool in pools}
        self._words: dict[_Key, Word] = {}
        #: Heard, and hidden by somebody else's drain of that replica.
        self._hidden: set[_Key] = set()
        self._owed: set[_Key] = set()  # to be said again
        self._told = float("-inf")
        self.obey: Callable[[Pool, str, bool, float], None] = _drain

    def look(self, now: float) -> list[tuple[Pool, Replica, Word]]:
        """What is to be told: words that arose here since the last look, and those that are said again."""
        if now - self._told >= _AGAIN:
            self._told = now
            self._forget()
            self._owed |= {key for key, word in self._words.items() if word.leaves}
        for pool in self._pools.values():
            for replica in pool.replicas:
                self._notice(pool, replica, now)
        owed, self._owed = self._owed, set()
        found = [
            (self._pools[name], self._pools[name].get(address), (name, address)) for name, address in owed
        ]
        return [(pool, replica, self._words[key]) for pool, replica, key in found if replica is not None]

    def hear(self, pool: Pool, address: str, word: Word, now: float) -> None:
        """Another gateway's word about a replica that is known here."""
        key = pool.name, address
        mine = self._words.get(key)
        if mine is not None and mine.leaves == word.leaves:
            self._words[key] = max(mine, word)  # an older word that comes later must not undo this one
            return
        if mine is not None and mine.said >= word.said:
            self._owed.add(key)
            return
        replica = pool.get(address)
        if replica is None:
            return
        self._words[key] = word
        if word.leaves and replica.life.state == QUIESCING:
            self._hidden.add(key)  # somebody else drains it
            return
        self._hidden.discard(key)
        if word.leaves or _says_so(replica):
            self.obey(pool, address, word.leaves, now)

    def _notice(self, pool: Pool, replica: Replica, now: float) -> None:
        """Compare what holds here with the word."""
        key, leaves = (pool.name, replica.address), _says_so(replica)
        word = self._words.get(key)
        if (word is not None and word.leaves) == leaves or (not leaves and replica.life.state == QUIESCING):
            return  # where somebody else drains it nothing shows what it says itself
        if key in self._hidden:
            self._hidden.discard(key)
            self.obey(pool, replica.address, True, now)
            return
        self._words[key] = Word(now, leaves)
        self._owed.add(key)

    def _forget(self) -> None:
        """Replicas that are gone are spoken of no more."""
        known = {(pool.name, replica.address) for pool in self._pools.values() for replica in pool.replicas}
        self._words = {key: word for key, word in self._words.items() if key in known}
        self._hidden &= known


def _says_so(replica: Replica) -> bool:
    """Whether it drains by its own word."""
    return replica.life.state == QUIESCING and replica.life.cause == ITSELF


def _drain(pool: Pool, address: str, leaves: bool, now: float) -> None:
    replica = pool.get(address)
    if replica is not None:
        (replica.drain if leaves else replica.undrain)(ITSELF, now)
