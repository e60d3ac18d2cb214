"""What is concluded of caches that are dropped, or smaller than was told, by gateways that see hits and misses."""

from collections.abc import Callable

import pytest

from extproc.core.announced import ALONE, WATCHER
from extproc.core.prompt import Chain
from extproc.core.truth import Seen, Truth
from tests.unit.cache_world import KIB, Engine, World, chat


def dropped_every_minute(seed: int, kib: int) -> tuple[World, list[float], list[float]]:
    """Replica 1 of four drops its cache every 60 s, at ten requests a second: when, and when it was found."""
    world = World([Engine(kib) for _ in range(4)], 1000, seed=seed)
    drops: list[float] = []
    found: list[float] = []
    plain: Callable[[Chain], Seen | None] = world.send

    def send(prompt: Chain) -> Seen | None:
        if world.now >= 60.0 * (len(drops) + 1):
            world.engines[1].held.clear()
            drops.append(world.now)
        seen = plain(prompt)
        assert world.truth is not None
        if world.truth.view(1).emptied > len(found):
            found.append(world.now)
        return seen

    world.send = send  # type: ignore[assignment]
    chat(world, 3000, sessions=100)
    return world, drops, found


@pytest.mark.parametrize(("seed", "kib"), [(0, 1000), (2, 250)])
def test_a_replica_that_drops_its_cache_every_minute_is_found_within_ten_seconds(seed: int, kib: int) -> None:
    world, drops, found = dropped_every_minute(seed, kib)
    assert world.truth is not None
    assert len(drops) == len(found) == 4
    assert all(0 <= late - at <= 10 for at, late in zip(drops, found, strict=True)), (drops, found)
    assert [world.truth.view(slot).emptied for slot in (0, 2, 3)] == [0, 0, 0]
    assert [world.truth.view(slot).distrusted for slot in range(4)] == [0, 0, 0, 0]
    assert world.precision(since=60) >= 0.9
    for at in drops[:-1]:
        assert world.precision(at + 10, at + 60, slot=1) >= 0.9


@pytest.mark.parametrize(("sessions", "skew"), [(60, 0.5), (120, 1.0), (200, 0.5)])
def test_caches_of_a_quarter_of_the_size_believed_are_predicted_well_within_a_minute(
    sessions: int, skew: float
) -> None:
    with_it = World([Engine(250) for _ in range(4)], 1000)
    without = World([Engine(250) for _ in range(4)], 1000, truth=False)
    for world in (with_it, without):
        chat(world, 1500, sessions=sessions, skew=skew)
    assert with_it.truth is not None
    assert with_it.precision(since=60) >= 0.93
    assert with_it.precision(since=60) > without.precision(since=60)
    assert with_it.warm() >= 0.95 * without.warm()
    for slot in range(4):
        view = with_it.truth.view(slot)
        assert view.emptied == view.distrusted == 0
        assert view.believed > 0.6 * 250 * KIB
    assert min(with_it.truth.view(slot).believed for slot in range(4)) < 1.8 * 250 * KIB


def dropped(seed: int, unjudged: int) -> Truth:
    """Replica 0 of two drops its cache after 600 prompts; nobody judges so many further ones, then 30 are judged."""
    world = World([Engine(600), Engine(600)], 600, seed=seed)
    assert world.truth is not None
    truth, engine, plain = world.truth, world.engines[0], world.send
    sent = 0

    def send(prompt: Chain) -> object:
        nonlocal sent
        sent += 1
        if sent == 600:
            engine.held.clear()
        truth.role = lambda: WATCHER if 600 <= sent < 600 + unjudged else ALONE
        return plain(prompt)

    world.send = send  # type: ignore[assignment, method-assign]
    chat(world, 630 + unjudged, sessions=40)
    return truth


@pytest.mark.parametrize("unjudged", [20, 100])
def test_a_cache_dropped_while_nobody_judges_is_emptied_and_not_small_to_the_next_judge(
    unjudged: int,
) -> None:
    views = [[truth.view(slot) for slot in (0, 1)] for truth in (dropped(s, unjudged) for s in range(1, 11))]
    assert sum(first.emptied for first, _ in views) >= 8, "of ten; who judges all along finds nine"
    assert all(view.believed == view.configured for both in views for view in both)
    assert sum(second.emptied for _, second in views) == 0
