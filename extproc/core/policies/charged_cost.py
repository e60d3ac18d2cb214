"""charged_cost, the default: the least expected time, with uncached work charged for what it takes from others.

cost(r) = backlog(r) + (1 + w) * uncached(r) / prefill_speed(r) + decode(r) + kv(r)      in seconds
w       = gain * rho / (1 - rho), at most `most`

backlog is prompt work already sent and not yet computed. `w` is why this beats the greedy "least time to
first token": a prompt sent where its prefix is not cached costs everybody behind it too, and the busier the
pool (rho), the more are behind. In an idle pool w is 0 and the rule is greedy; in overload it keeps long
prefixes where they are. gain 3 and cap 20 came out best on public traces (docs/policies.md).
decode is charged for the context that is on a replica already; each of its steps reads all of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from extproc.core.fleet import KV_FREE, Replica
from extproc.core.policies.base import Ask, Choice, Rng, lowest


@dataclass(slots=True)
class ChargedCost:
    """Settings: gain and most shape w; decode and kv are seconds charged at full; near ties within `near` s.

    `decode` is for a replica whose sequences hold as many tokens as its KV cache, in a pool with no prompts to
    compute: each step reads all of them, so everything on it goes slower. Without it, a hot prefix that is cheap
    to follow would draw all its sessions to the one replica that had it first.
    """

    gain: float = 3.0
    most: float = 20.0
    decode: float = 10.0
    kv: float = 1.0
    near: float = 0.002

    def __post_init__(self) -> None:
        for name in ("gain", "most", "decode", "kv", "near"):
            if not 0 <= getattr(self, name) <= 1000:
                raise ValueError(f"charged_cost: {name} must be within 0..1000")

    def choose(self, ask: Ask, picks: int, rng: Rng) -> Choice:
        """The candidates with the least charged cost."""
        charge = 1.0 + self.weight(ask.rho)
        now, tokens, half = ask.now, ask.tokens, ask.per_doubling
        backlogs = backlogs_of(ask.replicas, now)
        decode, pressed, output = self.decode_weight(ask.rho), self._pressed, ask.output
        scores = [
            waits
            + decode * replica.context
            + charge * (tokens - cached) * (1.0 + (tokens + cached) * half) / replica.prefill_speed
            + (pressed(replica, output) if replica.crowded else 0.0)
            for waits, cached, replica in zip(backlogs, ask.cached, ask.replicas, strict=True)
        ]
        return Choice(lowest(scores, picks, rng, self.near), scores, "least_cost", {"backlog": backlogs})

    def pressures(self, replicas: Sequence[Replica], output: float, rho: float) -> list[float]:
        """Seconds charged for the sequences and the KV that are on each replica already."""
        decode, pressed = self.decode_weight(rho), self._pressed
        return [
            decode * replica.context + (pressed(replica, output) if replica.crowded else 0.0)
            for replica in replicas
        ]

    def decode_weight(self, rho: float) -> float:
        """Seconds charged for a replica whose sequences fill its KV cache: none where prompts take all time.

        The square was fitted: with the plain difference, late binding lets replicas stand idle at rho 0.9.
        """
        return self.decode * max(1.0 - rho, 0.0) ** 2

    def weight(self, rho: float) -> float:
        """w for a pool that spends the share `rho` of its time on prompts."""
        return self.most if rho >= 1 else min(self.most, self.gain * rho / (1 - rho))

    def _pressed(self, replica: Replica, output: float) -> float:
        """Seconds charged where sequences must wait for a running slot, and for KV above 80 %."""
        cost = 0.0
        if replica.occupancy >= 1:  # the next one waits for a slot: the longer, the more are over
            over = replica.requests + 1 - replica.max_running
            cost = over * output / replica.decode_speed
        if replica.kv_load > KV_FREE:
            cost += self.kv * (replica.kv_load - KV_FREE) / (1 - KV_FREE)
        return cost


def backlogs_of(replicas: Sequence[Replica], now: float) -> list[float]:
    """Seconds of prompt work still ahead on each replica, by own books."""
    return [
        replica.books.backlog(now, replica.prefill_speed) if replica.books.pending else 0.0
        for replica in replicas
    ]
