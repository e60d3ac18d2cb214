"""A small world to judge beliefs in: engines with true caches, sessions that grow, and a router that believes."""

import random
from collections import OrderedDict

from extproc.core.index import PrefixIndex
from extproc.core.prompt import Chain
from extproc.core.truth import Seen, Truth

KIB = 1024
#: Bytes a token, in this world.
PER_TOKEN = 4


class Engine:
    """A cache of whole KiB that evicts what was unused longest, a chain's end first."""

    def __init__(self, kib: int) -> None:
        self.kib = kib
        self.held: OrderedDict[int, None] = OrderedDict()
        self.hits = 0.0

    def serve(self, chain: Chain) -> float:
        """Tokens of a prompt that were cached; it is cached as a whole then."""
        found = 0
        for key in chain.hashes:
            if key not in self.held:
                break
            found += 1
        for key in reversed(chain.hashes):
            self.held[key] = None
            self.held.move_to_end(key)
        while len(self.held) > self.kib:
            self.held.popitem(last=False)
        cached = found * KIB / PER_TOKEN
        self.hits += cached
        return cached


class Session:
    """A chat: its prompts begin with those before, and all of one system prompt begin alike."""

    def __init__(self, number: int, system: int, shared: int, length: int) -> None:
        self.hashes = [system * 1000 + i + 1 for i in range(shared)]
        self.number = number
        self.grow(length)

    def grow(self, kib: int) -> None:
        """Its next prompt is longer by so many KiB."""
        own = len(self.hashes)
        self.hashes = self.hashes + [(self.number + 1) * 1_000_000 + own + i for i in range(kib)]

    def chain(self) -> Chain:
        """Its prompt now."""
        return Chain(self.hashes, [KIB * (i + 1) for i in range(len(self.hashes))])


class World:
    """Replicas believed to hold `believed` KiB each, over engines that hold what they hold."""

    def __init__(self, engines: list[Engine], believed: int, *, seed: int = 1, truth: bool = True) -> None:
        self.engines = engines
        self.index = PrefixIndex(1e9)
        self.truth = Truth(self.index) if truth else None
        self.rng = random.Random(seed)
        self.now = 0.0
        self.key = 0
        self.log: list[tuple[float, int, float, float]] = []  # time, replica, predicted, actual
        for _ in engines:
            slot = self.index.add_slot(believed * KIB, 0.0)
            if self.truth:
                self.truth.join(slot, believed * KIB)

    def pick(self, chain: Chain) -> tuple[int, float]:
        """The replica believed to hold most, else any; and the tokens it is believed to hold."""
        scales = self.truth.scales if self.truth else {}
        found = self.index.match(chain.hashes)
        counted = {slot: depth * scales.get(slot, 1.0) for slot, depth in found.items()}
        best = max(counted.values(), default=0.0)
        if best <= 0:
            slot = self.rng.randrange(len(self.engines))
            return slot, 0.0
        slot = next(slot for slot, depth in counted.items() if depth == best)
        return slot, best * KIB / PER_TOKEN

    def send(self, chain: Chain, slot: int | None = None, *, cached: float | None = -1.0) -> Seen | None:
        """Route a prompt, or send it to `slot`, and let it end. `cached` is what usage lies; -1 for the truth."""
        predicted = 0.0
        if slot is None:
            slot, predicted = self.pick(chain)
        self.key += 1
        if self.truth:
            self.truth.expect(self.key, slot, chain, 1 / PER_TOKEN, self.now)
        self.index.place(slot, chain, self.now)
        actual = self.engines[slot].serve(chain)
        self.log.append((self.now, slot, predicted, actual))
        self.now += 0.1
        if self.truth is None:
            return None
        said = actual if cached == -1.0 else cached
        return self.truth.observe(self.key, chain.ends[-1] / PER_TOKEN, said, self.now)

    def precision(self, since: float = 0.0, until: float = 1e18, slot: int | None = None) -> float:
        """Share of the tokens predicted warm that were."""
        told = [(p, a) for at, s, p, a in self.log if since <= at < until and p > 0 and slot in (None, s)]
        return sum(min(p, a) for p, a in told) / max(sum(p for p, _ in told), 1.0)

    def warm(self, since: float = 0.0) -> float:
        """Tokens found cached since a time."""
        return sum(actual for at, _, _, actual in self.log if at >= since)


def chat(world: World, requests: int, *, sessions: int, skew: float = 1.0, lives: int = 20) -> None:
    """Sessions come back, those used lately more often, grow by 1 KiB, and after `lives` turns others take over."""
    rng = world.rng
    alive = [Session(i, i % 4, 4, rng.randrange(4, 12)) for i in range(sessions)]
    turns = [rng.randrange(lives) for _ in alive]
    born = sessions
    for _ in range(requests):
        at = min(int(rng.expovariate(skew) * sessions / 4), sessions - 1)
        session = alive.pop(at)
        turn = turns.pop(at)
        world.send(session.chain())
        session.grow(1)
        if turn + 1 >= lives:
            session, turn, born = Session(born, born % 4, 4, rng.randrange(4, 12)), -1, born + 1
        alive.insert(0, session)
        turns.insert(0, turn + 1)
