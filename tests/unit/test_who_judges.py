"""Who takes a pool's `collector` lease, and judges its caches: who learns from outcomes, where any does."""

import random

import pytest

from extproc.config import RedisSettings
from extproc.core.journal import Batch
from extproc.core.pool import Pool
from extproc.core.steering import Rules, Steering
from extproc.io.sharing import Sharing


def sharing(distrust: float | None) -> Sharing:
    steering = Steering([Pool("chat", now=0.0, distrust=distrust)], Rules(), random.Random(1))
    return Sharing(RedisSettings(url="redis://127.0.0.1:1"), steering, "me")


def is_willing(gateway: Sharing) -> bool:
    return gateway.leases.of("collector:chat").willing()


def test_who_learns_nothing_leaves_judging_to_who_does_for_as_long_as_that_is_heard() -> None:
    gateway = sharing(None)
    assert is_willing(gateway), "somebody must scrape"
    gateway.shared.hear(Batch("a", 1, 0, tells=False), (1, 0), 1.0)
    assert is_willing(gateway), "the other can't judge either"
    gateway.shared.hear(Batch("b", 2, 0, tells=True), (2, 0), 1.0)
    assert not is_willing(gateway)
    gateway.shared.expire(9.0)
    assert is_willing(gateway)


def test_one_that_says_it_stops_is_no_judge_to_come() -> None:
    gateway = sharing(None)
    gateway.shared.hear(Batch("b", 2, 0, tells=True), (1, 0), 1.0)
    gateway.shared.hear(Batch("b", 2, 1, tells=True, leaves=True), (2, 0), 1.1)
    assert is_willing(gateway)


@pytest.mark.parametrize("tells", [True, False])
def test_who_learns_takes_the_lease_whoever_else_is_there(tells: bool) -> None:
    gateway = sharing(0.5)
    gateway.shared.hear(Batch("b", 2, 0, tells=tells), (1, 0), 1.0)
    assert is_willing(gateway)
