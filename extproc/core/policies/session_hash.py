"""session_hash: a conversation stays with a replica, by consistent hashing with bounded load (R16).

The key is the conversation's own beginning (policies/beginnings.py), made of what the engine would cache: no header,
user or session id that a client could choose to steer by. The ring names a home for it. A home that holds
more than `factor` times the mean is passed over; where the conversation went then, it stays, until it is idle for
`ttl` seconds, its replica is gone, or that one is above the bound in its turn.
"""

from dataclasses import dataclass, field

from extproc.core.policies.base import Ask, Choice, Rng, check_range, led_by, lowest
from extproc.core.policies.beginnings import Beginnings
from extproc.core.policies.recent import Recent
from extproc.core.policies.ring import Ring, bound_of, within


@dataclass(slots=True)
class SessionHash:
    """`factor` bounds the load; `least` requests a replica may always hold; `ttl` s and `sessions` bound memory.

    `grain`: part of one replica's fair share that conversations of the same beginning may make up together.
    """

    factor: float = 1.25
    least: float = 2.0
    grain: float = 0.25
    ttl: float = 1800.0
    sessions: float = 65_536
    _homes: Recent[str] = field(init=False, repr=False)
    _beginnings: Beginnings = field(init=False, repr=False)
    _ring: Ring = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_range("session_hash", "factor", self.factor, 1, 1000)
        check_range("session_hash", "least", self.least, 0, 2**30)
        check_range("session_hash", "grain", self.grain, 0.001, 1000)
        check_range("session_hash", "ttl", self.ttl, 0, 2**30)
        check_range("session_hash", "sessions", self.sessions, 1, 2**24)
        self._homes = Recent(self.sessions, self.ttl)
        self._beginnings = Beginnings(self.grain)
        self._ring = Ring()

    def choose(self, ask: Ask, picks: int, rng: Rng) -> Choice:
        """Where the conversation is, else its home on the ring, else the next there below the bound."""
        loads = [replica.requests for replica in ask.replicas]
        if ask.prompt is None or not ask.prompt.chains:
            return Choice(lowest(loads, picks, rng), loads, "no_prompt", {})
        key = self._beginnings.key(ask.prompt, len(loads))
        self._ring.follow(ask.replicas)
        bound = bound_of(loads, self.factor, self.least)
        address = self._homes.get(key, ask.now)
        held = None if address is None else self._ring.place.get(address)
        if held is not None and loads[held] + 1 <= bound:
            return Choice(led_by(held, loads, picks), (), "session", {"requests": loads})
        order = within(self._ring.walk(key), loads, bound, picks)
        self._homes.put(key, ask.replicas[order[0]].address, ask.now)
        reason = "new_session" if address is None else "moved_session"
        return Choice(order, (), reason, {"requests": loads})
