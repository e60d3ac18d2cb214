"""The cases of h2spec, each against a connection without a socket."""

import pytest

from extproc.io.transports.h2 import frames
from extproc.io.transports.h2.limits import Limits
from tests.unit.h2_conformance import CASES, PREFACE_ENDS, Case, above
from tests.unit.h2_world import World, settings


def check(case: Case, world: World) -> None:
    """Every step is dealt with before the next; only the last may end the connection."""
    steps, expected = case
    for step in steps[:-1]:
        world.say(step)
        assert not world.connection.closed, f"ended too early: {world.connection.fault}"
    said = world.say(steps[-1])
    assert expected.fits(said), f"{expected} was to come, came: {said}"


@pytest.mark.parametrize("name", CASES)
def test_what_h2spec_asks_of_a_server_is_done(name: str) -> None:
    check(CASES[name], World())


def test_streams_above_the_limit_told_are_refused() -> None:
    check(above(10), World(Limits(streams=10)))


def test_the_beginning_is_answered_and_another_one_ends_the_connection() -> None:
    world = World(greet=False)
    assert (frames.SETTINGS, frames.ACK, 0, b"") in world.say(frames.PREFACE + settings((4, 65_535)))
    assert World(greet=False).goaway(PREFACE_ENDS) is not None
