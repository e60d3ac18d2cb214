"""What happens to replicas, in any order: events that overlap, come twice, or meet one that joined anew."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.traits import Traits
from extproc.core.waiting import RoomSettings
from extproc.sim.checks import SimulationFault, check
from extproc.sim.engine import EngineSettings
from extproc.sim.gateway import GatewaySettings
from extproc.sim.jobs import Row, Status, block_hash
from extproc.sim.outcome import Outcome
from extproc.sim.plan import ACTIONS, Fleet, FleetEvent
from extproc.sim.run import SimSettings, Simulation
from tests.examples import examples

TRAITS = Traits(prefill_speed=20_000.0, prefill_doubling=53_000.0, max_running=128, kv_tokens=3_000_000)
NAMES = ("r0", "r1", "r2")


def played(
    events: Iterable[FleetEvent], *, count: int = 150, late: bool = False, room: RoomSettings | None = None
) -> tuple[Simulation, Outcome]:
    """Two replicas under requests every 0.2 s that take some 0.6 s each."""
    fleet = Fleet(replicas={"r0": EngineSettings(), "r1": EngineSettings()}, events=list(events))
    chosen = room or (RoomSettings() if late else None)
    sim = Simulation(SimSettings(fleet=fleet, gateway=GatewaySettings(traits=TRAITS, room=chosen)))
    rows = [
        Row(0.2 * n, 4000, 30, [block_hash(0), *(block_hash(100 * n + i) for i in range(1, 8))])
        for n in range(count)
    ]
    return sim, sim.run(rows)


def event(at: float, action: str, name: str = "r0", value: float = 0.0) -> FleetEvent:
    return FleetEvent(at, action, name, value)


def test_of_two_restarts_that_overlap_the_last_says_when_it_is_back() -> None:
    sim, outcome = played([event(2, "restart", value=10), event(3, "restart", value=2)])
    assert sim._started["r0"] == pytest.approx(1.0e9 + 5.0)
    assert len(outcome.status) == 150


def test_one_that_fails_while_it_restarts_stays_dead() -> None:
    sim, outcome = played([event(2, "restart", value=3), event(3, "fail"), event(4, "fail")])
    assert "r0" in sim._down
    assert sim.engines["r0"].prompts > 0, "its counters began anew, although it never came back"
    assert len(outcome.status) == 150


def test_one_that_failed_comes_back_with_a_restart() -> None:
    sim, _ = played([event(2, "fail"), event(10, "restart", value=1)])
    assert not sim._down
    assert sim._started["r0"] == pytest.approx(1.0e9 + 11.0)


def test_a_name_that_left_can_join_again_and_the_first_ends_what_it_had() -> None:
    sim, outcome = played([event(2.05, "leave"), event(2.1, "join"), event(4, "leave"), event(4, "join")])
    assert set(outcome.status) == {Status.FINISHED}
    assert len(sim._retired) == 2
    assert sim._retired[0].hits + sim._retired[0].computed > 0
    assert sim.engines["r0"].prompts > 0


def test_one_that_left_while_it_restarted_and_joined_anew_is_not_brought_back_twice() -> None:
    sim, outcome = played([event(2, "restart", value=5), event(3, "leave"), event(4, "join")])
    assert sim._started["r0"] == pytest.approx(1.0e9 + 4.0)
    assert not sim._down
    assert list(outcome.status).count(Status.FINISHED) == 140, "the ten of the first 2 s fail"


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([event(1, "join")], "a replica 'r0' already; a dead one comes back with restart at 1 s"),
        ([event(1, "fail"), event(2, "join")], "already"),
        ([event(1, "join", "r2"), event(2, "join", "r2")], "already"),
        ([event(1, "leave"), event(2, "leave")], "'r0' has left already at 2 s"),
        ([event(1, "fail", "r9")], "there is no replica 'r9' at 1 s"),
    ],
)
def test_what_can_not_happen_is_refused_before_the_run(events: list[FleetEvent], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Fleet(replicas={"r0": EngineSettings()}, events=events)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), 1e308])
def test_a_speed_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="slow: the speed factor must be a number within"):
        event(1, "slow", value=value)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 1e308])
def test_a_time_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="restart: its duration in seconds must be a number within"):
        event(1, "restart", value=value)
    with pytest.raises(ValueError, match="fail: its time in seconds must be a number within"):
        event(value, "fail")


def made(drawn: list[tuple[int, str, str, int]]) -> list[FleetEvent]:
    """Events of which those that can't happen are left out."""
    replicas = {"r0": EngineSettings(), "r1": EngineSettings()}
    events: list[FleetEvent] = []
    for at, action, name, value in sorted(drawn):
        one = event(at / 2, action, name, max(value, 1) / 4 if action == "slow" else value / 2)
        try:
            Fleet(replicas=replicas, events=[*events, one])
        except ValueError:
            continue
        events.append(one)
    return events


@examples(20)
@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.sampled_from(ACTIONS), st.sampled_from(NAMES), st.integers(0, 20)),
        max_size=12,
    ),
    st.booleans(),
)
def test_any_schedule_ends_with_every_request_and_token_accounted_for(
    drawn: list[tuple[int, str, str, int]], late: bool
) -> None:
    _, outcome = played(made(drawn), count=60, late=late)
    assert outcome.arrivals == len(outcome.status) == 60
    assert Status.UNFINISHED not in outcome.status


@pytest.mark.parametrize("name", ["theta", "alpha", "cap", "most", "patience", "requests", "tokens"])
def test_late_binding_ends_whatever_setting_is_zero(name: str) -> None:
    _, outcome = played([], count=60, room=RoomSettings(**{name: 0}))  # type: ignore[arg-type]
    assert set(outcome.status) == {Status.FINISHED}


def test_a_run_that_lost_a_token_or_kept_a_charge_is_a_fault() -> None:
    sim, outcome = played([event(2, "restart", value=1)], count=30)
    engines = list(sim._all_engines())
    check(outcome, engines, sim.gateways)
    for name, says in (
        ("computed", "prompt tokens were finished, but replicas counted"),
        ("generated", "tokens were answered, but replicas generated"),
        ("live", "replica r0 did not end empty"),
    ):
        kept = getattr(engines[0], name)
        setattr(engines[0], name, kept + 1)
        with pytest.raises(SimulationFault, match=says):
            check(outcome, engines, sim.gateways)
        setattr(engines[0], name, kept)
    outcome.arrivals += 1
    with pytest.raises(SimulationFault, match="31 requests arrived, but 30 were over"):
        check(outcome, engines, sim.gateways)
    outcome.arrivals -= 1
    replica = sim.gateways[0].pool.get("r1")
    assert replica is not None
    sim.gateways[0].ledger.charge(999, replica, 1.0, 1, 0.0)
    with pytest.raises(SimulationFault, match="ended with 1 charges and 0 requests waiting"):
        check(outcome, engines, sim.gateways)
