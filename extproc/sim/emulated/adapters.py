"""The adapters of an emulated engine: which it serves, and which of them are in its slots.

As in vLLM: what is served is registered at the start or by `POST /v1/load_lora_adapter`; a batch computes with at
most `max_loras` of them. One that is not in a slot is loaded by the step that admits its first sequence, which takes
that much longer for all; the one used longest ago makes room. Registering one at run time puts it into a slot. While
every slot computes, sequences of other adapters wait, and those behind them go on.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator


class Registry:
    """Adapters that requests may name, in the order in which they came, and where their weights are said to lie."""

    def __init__(self, names: Iterable[str]) -> None:
        self._paths: dict[str, str] = {name: name for name in names}

    def __contains__(self, name: object) -> bool:
        return name in self._paths

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def path(self, name: str) -> str:
        """Where the weights of one that is served lie."""
        return self._paths[name]

    def add(self, name: str, path: str = "") -> bool:
        """Serve an adapter; False when it is served already."""
        if name in self._paths:
            return False
        self._paths[name] = path or name
        return True

    def remove(self, name: str) -> bool:
        """Serve it no more; False when it was not served."""
        return self._paths.pop(name, None) is not None


class Slots:
    """What is in the slots.

    Args:
        count: adapters at once.

    Attributes:
        loads: how often one was loaded.
        hits: sequences that were admitted and found theirs.
    """

    __slots__ = ("_count", "_resident", "_users", "hits", "loads")

    def __init__(self, count: int) -> None:
        self._count = count
        self._resident: OrderedDict[str, None] = OrderedDict()  # in the order of use
        self._users: Counter[str] = Counter()  # running sequences
        self.loads = self.hits = 0

    @property
    def resident(self) -> list[str]:
        """Adapters in slots, the one used longest ago first."""
        return list(self._resident)

    def has_room(self, name: str) -> bool:
        """Whether a sequence of this adapter can run: it is there, or a slot is free or idle."""
        if name in self._resident or len(self._resident) < self._count:
            return True
        return any(not self._users[one] for one in self._resident)

    def take(self, name: str) -> bool:
        """A sequence begins; True when its adapter has to be loaded for it. Only after `has_room`."""
        self._users[name] += 1
        if name in self._resident:
            self._resident.move_to_end(name)
            self.hits += 1
            return False
        if len(self._resident) >= self._count:
            del self._resident[next(one for one in self._resident if not self._users[one])]
        self._resident[name] = None
        self.loads += 1
        return True

    def put(self, name: str) -> None:
        """An adapter was registered at run time, which loads it, too, where a slot is free or idle."""
        if self.has_room(name):
            self.take(name)
            self.give_back(name)

    def give_back(self, name: str) -> None:
        """A sequence ended."""
        self._users[name] -= 1
        if not self._users[name]:
            del self._users[name]

    def drop(self, name: str) -> None:
        """An adapter was unloaded: its slot is free. Sequences that run with it go on."""
        self._resident.pop(name, None)
