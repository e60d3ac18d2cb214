"""What happens to the replicas of a simulation, and when: failures, restarts, joins, leaves, changes of speed."""

from dataclasses import dataclass, field
from typing import Final

from extproc.sim.engine import EngineSettings

FAIL: Final = "fail"
RESTART: Final = "restart"
JOIN: Final = "join"
LEAVE: Final = "leave"
SLOW: Final = "slow"
ACTIONS: Final = (FAIL, RESTART, JOIN, LEAVE, SLOW)


@dataclass(slots=True, frozen=True)
class FleetEvent:
    """One change at `at` seconds. `value`: seconds a restart takes, or the new speed factor of `slow`.

    fail: the engine dies with everything on it and stays dead. restart: it dies and is back, cold, after `value`
    seconds. join: a new replica of the first class. leave: no gateway chooses it any more; what it has it ends.
    """

    at: float
    action: str
    replica: str
    value: float = 0.0

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise ValueError(f"there is no fleet event {self.action!r}; known: {', '.join(ACTIONS)}")
        if self.action == SLOW and not self.value > 0:
            raise ValueError("slow: the speed factor must be above 0")


@dataclass(slots=True, frozen=True, kw_only=True)
class Fleet:
    """Replicas by name with their class, in order, and what happens to them."""

    replicas: dict[str, EngineSettings]
    events: list[FleetEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.replicas:
            raise ValueError("a simulation needs at least one replica")
        known = set(self.replicas)
        for event in sorted(self.events, key=lambda e: e.at):
            if event.action == JOIN:
                known.add(event.replica)
            elif event.replica not in known:
                raise ValueError(f"{event.action}: there is no replica {event.replica!r} at {event.at:g} s")


def uniform_fleet(count: int, settings: EngineSettings | None = None) -> Fleet:
    """`count` equal replicas, r0 and up."""
    return Fleet(replicas={f"r{i}": settings or EngineSettings() for i in range(count)})
