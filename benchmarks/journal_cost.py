"""What one placement costs a gateway to tell, and another to apply: CPU time without Redis.

.venv/bin/python -m benchmarks.journal_cost

Three gateways tell a fourth of requests with prompts of about 20 hashes, in batches of 25: each begins, has its
first token and ends. Sessions come back with what they had and more, nearly always to the same replica.
"""

import random
import time
from collections import deque
from itertools import count
from statistics import median

from extproc.core.decide import Decision, bind
from extproc.core.journal import decode, encode
from extproc.core.ledger import Ledger
from extproc.core.outbox import Outbox
from extproc.core.pool import Pool
from extproc.core.prompt import Chain, Prompt
from extproc.core.shared import Shared

_TELLERS = 3
_REPLICAS = 16
_BATCH = 25
_ROUNDS = 400
#: Requests in flight of each gateway.
_OPEN = 200
_SESSIONS = 300
#: Hashes of a session's first prompt, those that each turn adds, and turns.
_FIRST, _ADDED, _TURNS = 10, 3, 7
#: Share of turns that go to another replica than the one before.
_MOVES = 0.1
#: As `feedback.distrust` is by default.
_DISTRUST = 0.5


class Teller:
    """A gateway that decides nothing and tells what it was told to do."""

    def __init__(self, number: int) -> None:
        self.pool, self.ledger = fleet(), Ledger()
        self.outbox = Outbox(f"gw-{number}", number, [self.pool], self.ledger, lambda: None)
        self.ledger.listener = self.outbox
        self.rng, self.keys = random.Random(number), count(number + 1, _TELLERS)
        self.open: deque[int] = deque()
        self.sessions: list[tuple[list[int], int]] = []

    def turn(self) -> tuple[Prompt, int]:
        """The next prompt of some session, and the replica it goes to."""
        rng, new = self.rng, len(self.sessions) < _SESSIONS
        at = len(self.sessions) if new else rng.randrange(_SESSIONS)
        hashes, replica = ([], rng.randrange(_REPLICAS)) if new else self.sessions[at]
        if len(hashes) >= _FIRST + _ADDED * _TURNS:
            hashes = []
        if rng.random() < _MOVES:
            replica = rng.randrange(_REPLICAS)
        hashes = [*hashes, *(rng.getrandbits(60) for _ in range(_ADDED if hashes else _FIRST))]
        self.sessions[at : at + 1] = [(hashes, replica)]
        ends = [1024 * (i + 1) for i in range(len(hashes))]
        return Prompt(dialect="d", kind="generate", chains=[Chain(hashes, ends)], size=ends[-1]), replica

    def tell(self, now: float) -> tuple[bytes, float]:
        """A batch, and the CPU seconds it took to note and make it (without deciding and binding)."""
        made = []
        for _ in range(_BATCH):
            prompt, replica = self.turn()
            decision = Decision(next(self.keys), self.pool, prompt, now)
            decision.tokens, decision.output, decision.work = prompt.size / 4, 256.0, 500.0
            self.ledger.listener = None
            bind(decision, self.pool.replicas[replica], self.ledger)
            self.ledger.listener = self.outbox
            self.open.append(decision.key)
            made.append((decision, self.pool.replicas[replica]))
        over = [self.open.popleft() for _ in range(max(len(self.open) - _OPEN, 0))]
        for key in over:
            self.ledger.release(key, now)
        began = time.process_time()
        for decision, on in made:
            self.outbox.placed(decision, on)
            self.outbox.first_token(decision.key)
        data = encode(self.outbox.batch(now))
        return data, time.process_time() - began


def fleet(distrust: float | None = None) -> Pool:
    """A pool of equal replicas with large caches; what they truly hold is watched where `distrust` is given."""
    pool = Pool("chat", distrust=distrust)
    for number in range(_REPLICAS):
        pool.join(f"10.0.0.{number}:8000", 0.0)
        pool.index.set_capacity(pool.replicas[-1].slot, 2**34)
    return pool


def main() -> None:
    """Print the medians over batches, in us a placement."""
    tellers, listener = [Teller(number) for number in range(_TELLERS)], Shared([fleet(_DISTRUST)], ("me", 99))
    told, read, applied, size = [], [], [], 0
    for step in range(_ROUNDS):
        now = step * 0.02
        for teller in tellers:
            data, took = teller.tell(now)
            began = time.process_time()
            batch = decode(data)
            between = time.process_time()
            listener.hear(batch, (step, teller.outbox.seq), now + 0.01)
            ended = time.process_time()
            if step > _ROUNDS // 4:
                told.append(took)
                read.append(between - began)
                applied.append(ended - between)
                size += len(data)
    scale = 1e6 / _BATCH
    print(
        f"us a placement, its first token and its end: made {median(told) * scale:.1f}; "
        f"read {median(read) * scale:.1f}, applied {median(applied) * scale:.1f}; "
        f"{size / len(told) / _BATCH:.0f} bytes; {listener.requests} in flight, "
        f"{sum(len(pool.index) for pool in listener.pools.values())} pairs"
    )


if __name__ == "__main__":
    main()
