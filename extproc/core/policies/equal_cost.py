"""equal_cost: the least expected total time, from arrival to the last token (R13).

cost(r) = (queue(r) + prefill(r) + decode(r) + kv(r) + slow(r)) * bias(r)      in seconds

bias(r) is below 1 for a replica whose cache is still to be filled, above it for one that costs more (core/bias.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from extproc.core.fleet import KV_FREE, Replica
from extproc.core.policies.base import Ask, Choice, Rng, biased, check_range, lowest
from extproc.core.policies.charged_cost import backlogs_of


@dataclass(slots=True)
class EqualCost:
    """`kv`: seconds charged at full KV; `slow`: weight of the slow penalty; near ties within `near` seconds."""

    kv: float = 1.0
    slow: float = 1.0
    near: float = 0.002

    def __post_init__(self) -> None:
        for name in ("kv", "slow", "near"):
            check_range("equal_cost", name, getattr(self, name), 0, 1000)

    def choose(self, ask: Ask, picks: int, rng: Rng) -> Choice:
        """The candidates with the least expected time."""
        replicas, output, tokens, half = ask.replicas, ask.output, ask.tokens, ask.per_doubling
        queue = backlogs_of(replicas, ask.now)
        for i, replica in enumerate(replicas):
            if replica.occupancy >= 1:
                queue[i] += _slot_wait(replica, output)
        prefill = [  # a token further in costs more (core/cost.py)
            (tokens - cached) * (1.0 + (tokens + cached) * half) / replica.prefill_speed
            for cached, replica in zip(ask.cached, replicas, strict=True)
        ]
        decode = [  # those that run share the decode speed alike
            output * min(r.occupancy * r.max_running + 1.0, r.max_running) / r.decode_speed for r in replicas
        ]
        kv = [self._pressed(r.kv_load) if r.crowded else 0.0 for r in replicas]
        slow = self._slowed(replicas, decode)
        parts: dict[str, Sequence[float]] = {
            "queue": queue,
            "prefill": prefill,
            "decode": decode,
            "kv": kv,
            "slow": slow,
        }
        times = [sum(column) for column in zip(*parts.values(), strict=True)]
        if ask.extra is not None:
            parts["adapter"] = ask.extra
        scores = biased(times, ask, rng)
        return Choice(lowest(scores, picks, rng, self.near), scores, "least_time", parts)

    def _pressed(self, load: float) -> float:
        """None up to 80 % KV use, then a straight line to `kv` at 100 %."""
        return self.kv * (load - KV_FREE) / (1 - KV_FREE) if load > KV_FREE else 0.0

    def _slowed(self, replicas: Sequence[Replica], decode: Sequence[float]) -> list[float]:
        """One slower with prompts than the fleet's median is held to decode as slowly, where that is not seen yet."""
        speeds = [replica.prefill_speed for replica in replicas]
        if max(speeds) == min(speeds):
            return [0.0] * len(speeds)
        usual = sorted(speeds)[len(speeds) // 2]
        outputs = [replica.decode_speed for replica in replicas]
        usual_output = sorted(outputs)[len(outputs) // 2]
        return [
            self.slow * max(usual / speed / max(usual_output / output, 1.0) - 1.0, 0.0) * seconds
            for speed, output, seconds in zip(speeds, outputs, decode, strict=True)
        ]


def _slot_wait(replica: Replica, output: float) -> float:
    """Seconds until a running slot is free when all are taken: for each request over, as long as this one takes
    of the whole decode speed."""
    return (replica.requests + 1 - replica.max_running) * output / replica.decode_speed
