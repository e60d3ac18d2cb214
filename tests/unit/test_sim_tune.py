"""kvsteer tune: who stays in the race, what is called noise, and what is said."""

import json
import math
from itertools import pairwise

import pytest
from click.testing import CliRunner

from extproc.cli.tune import command
from extproc.sim.compare import Plan
from extproc.sim.generators import generated
from extproc.sim.plan import uniform_fleet
from extproc.sim.run import SimSettings
from extproc.sim.tune import Found, Trial, changed, grid, schedule, search, star


def plan(policy: str = "charged_cost", seeds: tuple[int, ...] = (0, 1), requests: int = 200) -> Plan:
    workload = generated("documents", {"requests": requests, "rate": 9})
    return Plan(workload=workload, policies=[policy], seeds=seeds, sim=SimSettings(fleet=uniform_fleet(2)))


def test_a_grid_is_every_combination() -> None:
    assert grid({"a": [1, 2], "b": [3]}) == [{"a": 1, "b": 3}, {"a": 2, "b": 3}]
    with pytest.raises(ValueError, match="1000 combinations are too many"):
        grid({"a": range(10), "b": range(10), "c": range(10)})


def test_a_star_changes_one_setting_at_a_time() -> None:
    tried = star("charged_cost+late")
    assert {"gain": 1.5} in tried
    assert {"gain": 6.0} in tried
    assert all(len(changes) == 1 for changes in tried)


def test_rounds_play_more_with_fewer_candidates_and_the_last_plays_all() -> None:
    assert schedule(20, 9000, 3) == [(20, 1000, 1), (9, 3000, 1), (3, 9000, 3)]
    assert schedule(2, 9000, 3) == [(2, 9000, 3)]
    assert schedule(30, 600, 2)[0] == (30, 500, 1)
    for before, after in pairwise(schedule(400, 100_000, 3)):
        assert before[0] > after[0]
        assert before[1] <= after[1]


def test_the_settings_as_they_are_stay_to_the_end_and_every_seed_is_played() -> None:
    told: list[tuple[int, int]] = []
    found = search(
        plan(requests=60), [{"gain": g} for g in (0.0, 1.0, 6.0, 9.0)], "ttft_mean", lambda *x: told.append(x)
    )
    assert found.present in found.trials
    assert all(len(trial.values) == 2 for trial in found.trials)
    assert found.trials == sorted(found.trials, key=lambda trial: trial.value)
    assert found.best.value <= found.present.value
    assert told[-1][0] == told[-1][1]


def test_a_gain_within_what_seeds_explain_is_not_clear() -> None:
    present = Trial({}, [1.00, 1.10, 0.90])
    noisy = Found([Trial({"gain": 4.0}, [0.90, 1.12, 0.88]), present], present, is_more_better=False)
    assert noisy.gain == pytest.approx(0.1 / 3)
    assert not noisy.is_clear
    clear = Found([Trial({"gain": 4.0}, [0.80, 0.89, 0.71]), present], present, is_more_better=False)
    assert clear.gain == pytest.approx(0.2)
    assert clear.is_clear
    alone = Found([Trial({"gain": 4.0}, [0.1]), Trial({}, [1.0])], Trial({}, [1.0]), is_more_better=False)
    assert alone.noise == math.inf
    assert not alone.is_clear


def test_more_can_be_better() -> None:
    present = Trial({}, [0.50, 0.50])
    found = Found([Trial({"gain": 4.0}, [0.60, 0.60]), present], present, is_more_better=True)
    assert found.gain == pytest.approx(0.2)
    assert found.is_clear


def test_settings_of_the_waiting_room_are_told_by_their_name() -> None:
    got = changed(plan("charged_cost+late"), {"room.theta": 0.4, "gain": 2.0})
    assert got.room.theta == 0.4
    assert got.policy_settings == {"charged_cost": {"gain": 2.0}}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--try", "gian=1:2"], "has no setting 'gian'"),
        (["--policy", "charged_cost+late", "--try", "room.tetha=1"], "late binding has no setting 'tetha'"),
        (
            ["--policy", "charged_cost+late", "--try", "room.order=fcfs"],
            "compare the two with kvsteer simulate --room",
        ),
        (["--try", "gain"], "write SETTING=VALUE:VALUE"),
        (["--try", "gain=a"], "write SETTING=VALUE:VALUE"),
        (["--policy", "random"], "random has no settings to try"),
        (["--policy", "random,round_robin"], "one policy is tuned at a time"),
    ],
)
def test_what_can_not_be_tuned_is_refused_with_what_to_write(words: list[str], said: str) -> None:
    result = CliRunner().invoke(command, ["--generate", "chat:requests=50", *words])
    assert result.exit_code == 2
    assert said in result.output


def test_the_report_warns_of_one_seed_and_applies_nothing() -> None:
    words = ["--generate", "documents:requests=80,rate=9", "--try", "gain=0:9", "--seeds", "0"]
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 0
    assert "as it is" in result.output
    assert "Nothing to change" in result.output or "one seed can't tell" in result.output
    made = json.loads(CliRunner().invoke(command, [*words, "--json"]).output)
    assert made["clear"] is False
    assert len(made["trials"]) == 3
