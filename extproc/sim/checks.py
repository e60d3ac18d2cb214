"""What every run is held to when it is over: nothing was lost, nothing was counted twice, nothing is left."""

from collections.abc import Sequence
from itertools import compress

from extproc.sim.engine import Engine
from extproc.sim.gateway import Gateway
from extproc.sim.jobs import Status
from extproc.sim.outcome import Outcome


class SimulationFault(Exception):
    """The simulation contradicts itself: tokens were lost, or a replica or a ledger did not end empty."""


def check(outcome: Outcome, engines: Sequence[Engine], gateways: Sequence[Gateway]) -> None:
    """Hold a run that left no request unfinished to its books.

    Args:
        outcome: of every request.
        engines: every one there ever was.
        gateways: all of the run.

    Raises:
        SimulationFault: something was lost or is left.
    """
    for engine in engines:
        if not engine.is_empty:
            raise SimulationFault(f"replica {engine.name} did not end empty")
    for gateway in gateways:
        charges, waiting = len(gateway.ledger), len(gateway.waiting)
        if charges or waiting:
            raise SimulationFault(
                f"gateway {gateway.number} ended with {charges} charges and {waiting} requests waiting"
            )
    if len(outcome.status) != outcome.arrivals:
        raise SimulationFault(f"{outcome.arrivals} requests arrived, but {len(outcome.status)} were over")
    _tokens(outcome, engines)


def _tokens(outcome: Outcome, engines: Sequence[Engine]) -> None:
    """Every prompt token of what finished was computed or found, and every token of an answer generated, once."""
    done = sum(compress(outcome.tokens, (status == Status.FINISHED for status in outcome.status)))
    seen = sum(engine.hits + engine.computed for engine in engines)
    if seen != done:
        raise SimulationFault(f"{done} prompt tokens were finished, but replicas counted {seen}")
    answered = sum(outcome.output)
    made = sum(engine.generated + engine.settled for engine in engines)
    if made != answered:
        raise SimulationFault(f"{answered} tokens were answered, but replicas generated {made}")
