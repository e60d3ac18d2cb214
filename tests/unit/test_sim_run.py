"""Whole simulations: the server's core, several gateways, failures, and the same bytes for the same seed."""

from pathlib import Path

import pytest

from extproc.core.policies import POLICIES
from extproc.core.traits import Traits
from extproc.core.waiting import RoomSettings
from extproc.sim.compare import Plan, compare, traits_of
from extproc.sim.engine import EngineSettings
from extproc.sim.gateway import GatewaySettings
from extproc.sim.generators import GENERATORS, generated
from extproc.sim.jobs import Row, Status, block_hash
from extproc.sim.outcome import Outcome
from extproc.sim.page import page
from extproc.sim.plan import Fleet, FleetEvent, uniform_fleet
from extproc.sim.report import as_json
from extproc.sim.run import SimSettings, Simulation
from extproc.sim.summary import Slo, summarize

TRAITS = Traits(prefill_speed=20_000.0, prefill_doubling=53_000.0, max_running=128, kv_tokens=3_000_000)


def simulation(policy: str = "charged_cost", *, fleet: Fleet | None = None, **more: object) -> Simulation:
    room = RoomSettings() if more.pop("late", False) else None
    gateway = GatewaySettings(policy=policy, traits=TRAITS, room=room)
    return Simulation(SimSettings(fleet=fleet or uniform_fleet(4), gateway=gateway, **more))  # type: ignore[arg-type]


def rows(count: int, *, gap: float, tokens: int = 4000, output: int = 20, shared: int = 0) -> list[Row]:
    """Equal prompts a set time apart; the first `shared` blocks are the same for all."""
    made, need = [], -(-tokens // 512)
    for number in range(count):
        own = [block_hash(1000 * (number + 1) + i) for i in range(need - shared)]
        made.append(Row(number * gap, tokens, output, [*(block_hash(i) for i in range(shared)), *own]))
    return made


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_ends_with_nothing_lost(policy: str) -> None:
    outcome = simulation(policy).run(rows(60, gap=0.1, shared=2))
    assert outcome.arrivals == len(outcome.status) == 60
    assert set(outcome.status) == {Status.FINISHED}
    assert not outcome.troubles


@pytest.mark.parametrize("gateways", [2, 4])
@pytest.mark.parametrize("journal", [0.02, None])
@pytest.mark.parametrize("late", [True, False])
def test_several_gateways_end_with_nothing_lost(gateways: int, journal: float | None, late: bool) -> None:
    outcome = simulation(gateways=gateways, journal=journal, late=late).run(rows(60, gap=0.05, shared=3))
    assert set(outcome.status) == {Status.FINISHED}


def test_a_lone_request_is_not_held_and_takes_what_the_model_says() -> None:
    outcome = simulation(late=True).run([Row(1.0, 512, 2, [block_hash(1)])])
    work = 512 * (1 + 256 / 53_000) / 20_000
    assert outcome.ttft[0] == pytest.approx(work + 0.010 + 50e-6)


def test_serial_traffic_spreads_over_all_replicas() -> None:
    sim = simulation(fleet=uniform_fleet(8))
    outcome = sim.run(rows(400, gap=1.0))  # each is answered before the next comes
    busy = [sum(series) for series in outcome.busy.values()]
    assert max(busy) / sum(busy) <= 0.25


def test_a_burst_with_one_shared_prompt_warms_more_than_one_replica_and_stays_even() -> None:
    fleet = uniform_fleet(8, EngineSettings(kv_tokens=3_000_000))
    sim = simulation(fleet=fleet)
    sim.run(rows(1000, gap=0.0, tokens=2600, shared=4))
    prompts = [engine.prompts for engine in sim.engines.values()]
    assert max(prompts) / (sum(prompts) / len(prompts)) <= 1.6
    assert min(prompts) > 0


def test_what_was_on_a_replica_that_dies_fails_and_the_rest_goes_elsewhere() -> None:
    fleet = Fleet(
        replicas={"r0": EngineSettings(), "r1": EngineSettings()}, events=[FleetEvent(5.0, "fail", "r0")]
    )
    outcome = simulation(fleet=fleet).run(rows(200, gap=0.1))
    failed = [n for n, s in zip(outcome.number, outcome.status, strict=True) if s == Status.FAILED]
    assert failed
    assert max(failed) < 51, "a request that came after the failure did not reach the other replica"
    assert list(outcome.status).count(Status.FINISHED) == 200 - len(failed)


def test_a_restarted_replica_is_used_again_with_a_cold_cache() -> None:
    events = [FleetEvent(5.0, "restart", "r0", 3.0)]
    fleet = Fleet(replicas={"r0": EngineSettings(), "r1": EngineSettings()}, events=events)
    sim = simulation(fleet=fleet)
    sim.run(rows(900, gap=0.1, shared=4))  # 90 s: the warm-up after the restart takes 60
    assert sim.engines["r0"].prompts > 0
    replica = sim.gateways[0].pool.get("r0")
    assert replica is not None
    assert replica.incarnation == 2
    assert replica.barred is None


def test_a_replica_that_joins_is_used_and_one_that_leaves_is_not() -> None:
    events = [FleetEvent(5.0, "join", "r9"), FleetEvent(10.0, "leave", "r0")]
    sim = simulation(fleet=Fleet(replicas={"r0": EngineSettings(), "r1": EngineSettings()}, events=events))
    outcome = sim.run(rows(300, gap=0.1))
    assert set(outcome.status) == {Status.FINISHED}
    assert sim.engines["r9"].prompts > 0
    assert [replica.address for replica in sim.gateways[0].pool.replicas] == ["r1", "r9"]


def test_a_request_that_fits_no_replica_fails_at_once() -> None:
    fleet = uniform_fleet(2, EngineSettings(kv_tokens=2048))
    outcome = simulation(fleet=fleet).run(rows(3, gap=1.0, tokens=4000))
    assert set(outcome.status) == {Status.FAILED}


def test_what_is_left_when_time_is_up_is_unfinished() -> None:
    outcome = simulation(fleet=uniform_fleet(1), drain=2.0).run(rows(50, gap=0.0, tokens=50_000))
    assert list(outcome.status).count(Status.UNFINISHED) > 30
    assert len(outcome.status) == 50


def test_the_next_turn_of_a_session_comes_after_the_answer_and_the_pause() -> None:
    first, second = rows(2, gap=0.0)
    first.after, second.think = second, 4.0
    outcome = simulation().run([first])
    assert outcome.arrivals == 2
    finished = outcome.ttft[0] + outcome.tpot[0] * 19
    assert outcome.arrived[1] == pytest.approx(finished + 4.0)


def test_a_replica_at_half_speed_nobody_told_of_is_found_out() -> None:
    fleet = uniform_fleet(2)
    fleet.replicas["r0"] = EngineSettings(speed=0.5)
    sim = simulation(fleet=fleet)
    sim.run(rows(400, gap=0.35, tokens=8000))
    slow, fast = (sim.gateways[0].pool.get(name) for name in ("r0", "r1"))
    assert slow is not None
    assert fast is not None
    assert slow.prefill_speed < 0.65 * fast.prefill_speed


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not() -> None:
    workload = generated("chat", {"requests": 60, "rate": 12})
    plan = Plan(
        workload=workload,
        policies=["charged_cost+late", "random"],
        seeds=[1],
        sim=SimSettings(fleet=uniform_fleet(3), gateways=2),
    )
    made = [compare(plan) for _ in range(2)]
    texts = [as_json(results, {}, [1]) for results in made]
    pages = [page(results, {}, "t") for results in made]
    assert texts[0] == texts[1]
    assert pages[0] == pages[1]
    assert "<script" not in pages[0]
    assert "http" not in pages[0]
    workload = generated("chat", {"requests": 60, "rate": 12, "seed": 2})
    assert (
        as_json(compare(Plan(workload=workload, policies=["random"], seeds=[1], sim=plan.sim)), {}, [1])
        != texts[0]
    )


def test_a_policy_that_raises_is_counted_and_its_requests_go_on() -> None:
    class Broken:
        def choose(self, *_: object) -> None:
            raise RuntimeError("broken")

    sim = simulation("random")
    sim.gateways[0].pool.policy = Broken()  # type: ignore[assignment]
    outcome = sim.run(rows(20, gap=0.1))
    assert outcome.troubles == {"policy_failed": 20}
    assert set(outcome.status) == {Status.FINISHED}


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_generators_make_ordered_rows_whose_blocks_cover_them(name: str) -> None:
    made = list(generated(name, {"requests": 400, "rate": 5}).rows())
    times = [row.at for row in made]
    assert times == sorted(times)
    turns = 0
    for row in made:
        turn: Row | None = row
        while turn is not None:
            turns += 1
            assert len(turn.blocks) == -(-turn.tokens // 512)
            assert turn.output >= 1
            turn = turn.after
    assert turns == 400


def test_agents_reuse_nearly_all_of_their_prompts() -> None:
    plan = Plan(
        workload=generated("agents", {"requests": 600, "rate": 5}),
        policies=["charged_cost"],
        seeds=[0],
        sim=SimSettings(fleet=uniform_fleet(2)),
    )
    assert (compare(plan)[0].runs[0]["hit_share"] or 0) > 0.85


def test_a_summary_leaves_the_first_tenth_out_and_counts_failures_apart() -> None:
    fleet = Fleet(replicas={"r0": EngineSettings()}, events=[FleetEvent(30.0, "fail", "r0")])
    outcome = simulation(fleet=fleet).run(rows(100, gap=0.5))
    found = summarize(outcome, Slo(ttft=2.0, tpot=0.05))
    assert found["rejected"] is not None
    assert found["failed"] is not None
    assert found["failed"] + found["rejected"] >= 38
    good = list(outcome.status).count(Status.FINISHED) - 10
    assert found["good_share"] == pytest.approx(good / 90)


def test_a_gateway_is_told_of_the_class_not_of_each_replicas_speed() -> None:
    fleet = uniform_fleet(2, EngineSettings(speed=0.5, kv_tokens=10_240))
    assert traits_of(fleet, 1.0).prefill_speed == 20_000
    assert traits_of(fleet, 0.0).stale_after == float("inf")
    assert traits_of(fleet, 1.0).kv_tokens == 10_240


def test_paths_do_not_reach_reports(tmp_path: Path) -> None:
    workload = generated("mixed", {"requests": 40})
    plan = Plan(workload=workload, policies=["random"], seeds=[0], sim=SimSettings(fleet=uniform_fleet(1)))
    assert str(tmp_path.parent) not in as_json(compare(plan), dict(workload.facts), [0])


def test_replicas_are_sampled_while_a_session_thinks_and_nothing_else_is_there() -> None:
    first, second = rows(2, gap=0.0)
    first.after, second.think = second, 40.0
    outcome = simulation(late=True).run([first])
    assert outcome.ttft[1] < 1.0, "the turn after a long pause waited, since all telemetry had gone stale"
    assert not outcome.troubles


def test_a_gateway_learns_how_long_answers_are_from_its_own_finished_ones_only() -> None:
    sim = simulation(gateways=2)
    sim.run(rows(300, gap=0.2, output=40))
    for gateway in sim.gateways:
        predicted = gateway.pool.output.predict("", "trace", 4000)
        # TRAITS expect 256; some 150 answers of 40 tokens pull that near 40, the prior of 8 answers keeps it above.
        assert 40 < predicted < 60
    assert rows(1, gap=0.0)[0].prompt().dialect == "trace"


def test_answers_that_failed_or_are_not_measured_teach_nothing() -> None:
    fleet = Fleet(replicas={"r0": EngineSettings()}, events=[FleetEvent(0.5, "fail", "r0")])
    sim = simulation(fleet=fleet)
    sim.run(rows(1, gap=0.0, output=400))
    assert len(sim.gateways[0].pool.output) == 0
    gateway = GatewaySettings(traits=TRAITS, measured=False)
    blind = Simulation(SimSettings(fleet=uniform_fleet(1), gateway=gateway))
    blind.run(rows(5, gap=0.2))
    assert blind.gateways[0].pool.output.predict("", "trace", 4000) == 256


def test_goodput_is_never_above_what_arrived_in_the_time_that_it_took() -> None:
    outcome = Outcome()
    for number in range(100):  # one a second, each answered well after half a second
        outcome.number.append(number)
        outcome.arrived.append(float(number))
        outcome.ttft.append(0.2)
        outcome.tpot.append(0.01)
        outcome.tokens.append(100)
        outcome.hit.append(0)
        outcome.output.append(31)
        outcome.status.append(Status.FINISHED)
    outcome.arrivals, outcome.duration = 100, 99.5
    # The first ten are left out; 90 answers between 10 s and 99.5 s.
    assert summarize(outcome, Slo())["goodput"] == pytest.approx(90 / 89.5)
