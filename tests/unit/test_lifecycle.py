"""The life of a replica: the table, the warm-up, drains and their deadlines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core import lifecycle as life
from extproc.core.lifecycle import Lifecycle, WarmUp

WARM_UP = WarmUp(hold=30.0, full=60.0)


def healthy() -> Lifecycle:
    return Lifecycle(WARM_UP, 100.0)


@pytest.mark.parametrize(
    ("age", "share"), [(0.0, 0.0), (29.9, 0.0), (30.0, 0.5), (45.0, 0.75), (60.0, 1.0), (1e6, 1.0)]
)
def test_the_warm_up_holds_then_grows_from_half_to_all(age: float, share: float) -> None:
    assert WARM_UP.share(age) == pytest.approx(share)


def test_a_gateway_that_starts_takes_what_it_finds_for_warm() -> None:
    assert healthy().state == life.HEALTHY


def test_a_new_engine_warms_up_and_is_healthy_after_it() -> None:
    replica = Lifecycle(WARM_UP, 100.0, started=100.0)
    assert (replica.state, replica.share(100.0)) == (life.WARMING, 0.0)
    assert replica.share(145.0) == pytest.approx(0.75)
    assert not replica.tick(159.0)
    assert replica.tick(160.0)
    assert (replica.state, replica.share(160.0)) == (life.HEALTHY, 1.0)


def test_a_drained_replica_takes_nothing_and_comes_back_by_undrain() -> None:
    replica = healthy()
    assert replica.drain("operator", 101.0, deadline=700.0)
    assert (replica.state, replica.share(101.0), replica.cause) == (life.QUIESCING, 0.0, "operator")
    assert replica.apply(life.UNDRAIN, "operator", 102.0)
    assert (replica.state, replica.deadline) == (life.HEALTHY, None)


def test_a_drain_ends_at_its_deadline_and_not_before() -> None:
    replica = healthy()
    replica.drain("operator", 101.0, deadline=110.0)
    assert not replica.tick(109.9)
    assert replica.tick(110.0)
    assert (replica.state, replica.cause) == (life.GONE, "deadline")


def test_recovery_does_not_end_a_drain() -> None:
    replica = healthy()
    replica.drain("operator", 101.0)
    for event in (life.RECOVERED, life.SAMPLE, life.WARM, life.TRIPPED, life.MISSED, life.RESTARTED):
        assert not replica.apply(event, "metrics", 102.0)
    assert replica.state == life.QUIESCING


def test_a_back_off_ends_when_its_time_is_over() -> None:
    replica = healthy()
    replica.back_off("itself", 100.0, 5.0)
    assert replica.share(104.0) == 0.0
    assert not replica.tick(104.9)
    assert replica.tick(105.0)
    assert replica.state == life.HEALTHY


def test_a_restarted_engine_is_heard_before_it_warms_up() -> None:
    replica = healthy()
    assert replica.apply(life.RESTARTED, "metrics", 101.0)
    assert (replica.state, replica.share(101.0)) == (life.REREGISTERING, 0.0)
    assert replica.apply(life.SAMPLE, "metrics", 102.0)
    assert replica.state == life.WARMING


def test_back_from_backoff_a_young_incarnation_goes_on_warming() -> None:
    replica = Lifecycle(WARM_UP, 100.0, started=100.0)
    replica.apply(life.TRIPPED, "breaker", 110.0)
    replica.apply(life.RECOVERED, "breaker", 120.0)
    assert replica.state == life.WARMING
    replica.apply(life.TRIPPED, "breaker", 130.0)
    replica.apply(life.RECOVERED, "breaker", 200.0)
    assert replica.state == life.HEALTHY


@given(
    st.lists(
        st.tuples(st.sampled_from([*life.EVENTS, "tick", "back_off", "drain"]), st.floats(0, 100)),
        max_size=40,
    )
)
def test_any_sequence_of_events_leaves_a_legal_state_and_gone_is_final(
    steps: list[tuple[str, float]],
) -> None:
    replica, now, was_gone = Lifecycle(WARM_UP, 0.0, started=0.0), 0.0, False
    for event, passed in steps:
        now += passed
        if event == "tick":
            replica.tick(now)
        elif event == "back_off":
            replica.back_off("itself", now, passed)
        elif event == "drain":
            replica.drain("operator", now, now + passed)
        else:
            replica.apply(event, "test", now)
        assert replica.state in life.STATES
        assert 0.0 <= replica.share(now) <= 1.0
        if replica.state in (life.BACKOFF, life.QUIESCING, life.REREGISTERING, life.GONE):
            assert replica.share(now) == 0.0
        assert not was_gone or replica.state == life.GONE
        was_gone = replica.state == life.GONE
