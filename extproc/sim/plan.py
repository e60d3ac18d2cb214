"""What happens to the replicas of a simulation, and when: failures, restarts, joins, leaves, changes of speed."""

from dataclasses import dataclass, field
from typing import Final

from extproc.sim.bounds import FASTEST, MOST_SECONDS, SLOWEST, whole, within
from extproc.sim.engine import EngineSettings

FAIL: Final = "fail"
RESTART: Final = "restart"
JOIN: Final = "join"
LEAVE: Final = "leave"
SLOW: Final = "slow"
#: Bounds of one simulation.
MOST_REPLICAS: Final = 10_000
MOST_EVENTS: Final = 10_000
ACTIONS: Final = (FAIL, RESTART, JOIN, LEAVE, SLOW)


@dataclass(slots=True, frozen=True)
class FleetEvent:
    """One change at `at` seconds. `value`: seconds a restart takes, or the new speed factor of `slow`.

    fail: the engine dies with everything on it and stays dead. restart: it dies and is back, cold, after `value`
    seconds, also after `fail`; of restarts that overlap the last one counts. join: a new replica of the first class,
    also under the name of one that left. leave: no gateway chooses it any more; what it has it ends.
    """

    at: float
    action: str
    replica: str
    value: float = 0.0

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise ValueError(f"there is no fleet event {self.action!r}; known: {', '.join(ACTIONS)}")
        within(f"{self.action}: its time in seconds", self.at, 0, MOST_SECONDS)
        if self.action == SLOW:
            within("slow: the speed factor", self.value, SLOWEST, FASTEST)
        else:
            within(f"{self.action}: its duration in seconds", self.value, 0, MOST_SECONDS)


@dataclass(slots=True, frozen=True, kw_only=True)
class Fleet:
    """Replicas by name with their class, in order, and what happens to them.

    Raises:
        ValueError: no replica or too many, or an event that can't happen then.
    """

    replicas: dict[str, EngineSettings]
    events: list[FleetEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        whole("the number of replicas", len(self.replicas), 1, MOST_REPLICAS)
        whole("the number of events", len(self.events), 0, MOST_EVENTS)
        seen, there = set(self.replicas), set(self.replicas)
        for event in sorted(self.events, key=lambda e: e.at):
            fault = _fault(event, seen, there)
            if fault:
                raise ValueError(f"{event.action}: {fault} at {event.at:g} s")
            seen.add(event.replica)
            if event.action == JOIN:
                there.add(event.replica)
            elif event.action == LEAVE:
                there.remove(event.replica)
        whole("the number of replicas with those that join", len(seen), 1, MOST_REPLICAS)


def _fault(event: FleetEvent, seen: set[str], there: set[str]) -> str:
    """Why an event can't happen; "" when it can. `seen` ever joined, `there` did not leave since."""
    name = event.replica
    if event.action == JOIN:
        is_there = f"there is a replica {name!r} already; a dead one comes back with restart"
        return is_there if name in there else ""
    if name not in seen:
        return f"there is no replica {name!r}"
    return f"{name!r} has left already" if event.action == LEAVE and name not in there else ""


def uniform_fleet(count: int, settings: EngineSettings | None = None) -> Fleet:
    """`count` equal replicas, r0 and up."""
    return Fleet(replicas={f"r{i}": settings or EngineSettings() for i in range(count)})
