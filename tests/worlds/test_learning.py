"""Caches of a quarter of the size told, one of them dropped every minute, and 2.7 bytes a token, in virtual time."""

import statistics

import pytest

from benchmarks.feedback import precision
from extproc.demo.workload import Shape, arrivals
from extproc.sim.emulated.settings import EngineSettings
from tests.worlds.feedback_world import World

SETTINGS = EngineSettings(
    model="demo",
    prefill_speed=8000,
    bytes_per_token=2.7,
    kv_tokens=65_536,
    reported_kv_tokens=262_144,
    block_size=64,  # as good as 16, with a quarter of the work
)
SHAPE = Shape(seconds=240.0, sessions_per_second=0.7, turns=(3, 8), think=(4.0, 20.0), seed=8)


@pytest.fixture(scope="module")
def worlds() -> tuple[World, World]:
    """One that learns and one that does not, after the same chats."""
    both = World(SETTINGS, learns=True, every=60.0), World(SETTINGS, learns=False, every=60.0)
    for world in both:
        world.play(arrivals(SHAPE))
    return both


def test_tokens_are_estimated_within_five_per_cent(worlds: tuple[World, World]) -> None:
    late = [told for told in worlds[0].told if told.at > 60]
    errors = sorted(abs(told.tokens / told.true_tokens - 1) for told in late)
    assert errors[int(0.9 * len(errors))] < 0.05


def test_of_the_tokens_predicted_to_be_cached_nearly_nine_in_ten_are(worlds: tuple[World, World]) -> None:
    learning, without = ([told for told in world.told if told.at > 120] for world in worlds)
    assert precision(learning) > 0.88, "with little more than a hundred prompts a replica"
    assert precision(learning) > precision(without) + 0.15


def test_each_replica_is_believed_to_hold_about_what_it_does(worlds: tuple[World, World]) -> None:
    world = worlds[0]
    assert world.pool.feedback is not None
    true = SETTINGS.kv_tokens * 2.7
    for replica in world.pool.replicas:
        view = world.pool.feedback.truth.view(replica.slot)
        assert 0.5 * true < view.believed < 1.6 * true, f"{replica.address} of {true:,.0f} bytes"
        assert view.emptied <= (4 if replica.address == world.names[0] else 1), (
            "no cache was emptied but the first"
        )


def test_the_first_token_comes_sooner_than_without(worlds: tuple[World, World]) -> None:
    learning, without = (statistics.fmean(told.ttft for told in world.told) for world in worlds)
    assert learning < 0.95 * without


@pytest.fixture(scope="module")
def three() -> World:
    """Three gateways after the same chats: one judges for all."""
    world = World(SETTINGS, learns=True, every=60.0, gateways=3)
    world.play(arrivals(SHAPE))
    return world


def test_three_gateways_predict_as_well_as_one(worlds: tuple[World, World], three: World) -> None:
    one, many = (precision(told for told in world.told if told.at > 120) for world in (worlds[0], three))
    assert many > 0.88
    assert many > one - 0.04, "as good, to within what chance does"


def test_three_gateways_hold_the_same_of_every_cache(three: World) -> None:
    truths = [gateway.pool.feedback.truth for gateway in three.gateways if gateway.pool.feedback]
    for place in range(4):
        views = [
            truth.view(g.pool.replicas[place].slot) for truth, g in zip(truths, three.gateways, strict=True)
        ]
        assert len({(view.believed, view.scale, view.emptied, view.distrusted) for view in views}) == 1
        # Of some 200 hashes: an index evicts the rest of an epoch, up to 256 of them, at once.
        held = [g.pool.index.count(g.pool.replicas[place].slot) for g in three.gateways]
        assert max(held) - min(held) <= 64
    assert [truth.open for truth in truths] == [0, 0, 0], "nothing is left of exchanges that ended"


def test_what_the_judge_must_know_costs_the_journal_little(three: World) -> None:
    """An outcome is 7 to 12 bytes; the rest is of rulings, a drop a minute with the prompts that stay."""
    data = three.told_bytes / len(three.told)
    assert 5 <= data <= 40, f"{data} bytes a request"
