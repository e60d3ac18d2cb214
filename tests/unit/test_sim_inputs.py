"""Traces, generators and the command line: what is read, and what is said when it can't be."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from extproc.cli.simulate import command
from extproc.sim import texts
from extproc.sim.charts import Axis, thinned
from extproc.sim.engine import EngineSettings
from extproc.sim.generators import generated
from extproc.sim.plan import Fleet, FleetEvent
from extproc.sim.summary import Slo, imbalance, quantile
from extproc.sim.traces import read_trace
from extproc.sim.workload import WorkloadError, shaped


def written(path: Path, *records: object) -> Path:
    path.write_text("".join(r if isinstance(r, str) else json.dumps(r) + "\n" for r in records))
    return path


def mooncake(at: int, tokens: int, ids: list[int], **more: object) -> dict[str, object]:
    return {"timestamp": at, "input_length": tokens, "output_length": 7, "hash_ids": ids, **more}


def test_a_mooncake_trace_is_read_in_time_order_with_shared_blocks(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", mooncake(2500, 600, [0, 2]), mooncake(1000, 1024, [0, 1]))
    workload = read_trace(path)
    first, second = workload.rows()
    assert (first.at, first.tokens, first.output) == (1.0, 1024, 7)
    assert second.at == 2.5
    assert first.blocks[0] == second.blocks[0]
    assert first.blocks[1] != second.blocks[1]
    assert workload.facts["requests"] == 2
    assert len(str(workload.facts["sha256"])) == 64


def test_turns_of_an_agents_session_hang_on_each_other(tmp_path: Path) -> None:
    path = written(
        tmp_path / "agents.jsonl",
        mooncake(0, 100, [1], session="a", turn=0),
        mooncake(9000, 100, [2], session="b", turn=0),
        mooncake(0, 200, [3], session="a", turn=1, think_ms=1500),
    )
    workload = read_trace(path)
    for _ in range(2):  # a second reading is not changed by what the first was used for
        first, other = workload.rows()
        assert first.after is not None
        assert (first.after.tokens, first.after.think) == (200, 1.5)
        assert other.after is None
        first.after = None


def test_an_azure_trace_has_times_and_lengths_and_shares_nothing(tmp_path: Path) -> None:
    path = written(
        tmp_path / "azure.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n",
        "2023-11-16 18:15:46.6805900,1000,10\n",
        "2023-11-16 18:15:48.1805900,1000,0\n",
    )
    first, second = read_trace(path).rows()
    assert (first.at, second.at) == (0.0, pytest.approx(1.5))
    assert not set(first.blocks) & set(second.blocks)
    assert second.output == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a trace; write JSON lines"),
        ("hello\n", "not a trace; write JSON lines"),
        ("{}\n", ":1: not a request of a trace"),
        ('{"timestamp":0,"input_length":600,"output_length":1,"hash_ids":[1]}\n', "600 tokens are 2 blocks"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", ":2: not a row of"),
    ],
)
def test_a_faulty_trace_is_refused_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        read_trace(written(tmp_path / "t", text))


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (['"input_length":1,"hash_ids":[1]', '"input_length":1,"hash_ids":[1],"block_tokens":64'],
         ":2: not a request of a trace: block_tokens must be 512 as in the rows before, not 64"),
        (['"input_length":' + "9" * 5000 + ',"hash_ids":[1]'], "input_length must .* a number of 5000 digits"),
        (['"input_length":1,"hash_ids":[-' + "9" * 5000 + "]"], r"hash_ids must .*\[a number of 5000 digits\]"),
    ],
)  # fmt: skip
def test_a_faulty_row_is_refused_with_its_line_and_field(tmp_path: Path, rows: list[str], says: str) -> None:
    text = "".join(f'{{"timestamp":0,"output_length":1,{row}}}\n' for row in rows)
    with pytest.raises(WorkloadError, match=says):
        read_trace(written(tmp_path / "t", text))


def test_a_trace_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="can't be read"):
        read_trace(tmp_path / "none")


def test_arrivals_are_shaped_by_speed_quantum_and_limit(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", *(mooncake(at, 100, [at]) for at in (1000, 2900, 3100, 7000)))
    assert [row.at for row in shaped(read_trace(path).rows(), 2.0, 3.0, 3)] == [0.0, 0.0, 1.5]


def test_generators_refuse_what_they_do_not_know() -> None:
    with pytest.raises(WorkloadError, match="no generator 'x'; known: shared_prompts"):
        generated("x", {})
    with pytest.raises(WorkloadError, match=r"'chat' has no setting 'turn'; it has: .*turns"):
        generated("chat", {"turn": 3})
    with pytest.raises(WorkloadError, match="rate must be a number within"):
        generated("chat", {"rate": 0})


def test_durations_are_read_with_their_units() -> None:
    assert [texts.seconds(t) for t in ("20ms", "1.5s", "2m", "1h", "1d", "3")] == [
        0.02, 1.5, 120.0, 3600.0, 86_400.0, 3.0
    ]  # fmt: skip
    for wrong in ("", "fast", "-1s", "1w", "1 day"):
        with pytest.raises(ValueError, match=r"no duration; write for example 20ms, 1\.5s, 2m, 1h or 1d"):
            texts.seconds(wrong)
    with pytest.raises(ValueError, match="a duration here is from 0s to 24h"):
        texts.seconds("25h")


def test_fleet_words_are_read() -> None:
    assert texts.slo("ttft=1s,tpot=20ms") == Slo(1.0, 0.02)
    assert texts.fleet_event("10m:restart:r0:30s") == FleetEvent(600.0, "restart", "r0", 30.0)
    assert texts.fleet_event("5:join:r9") == FleetEvent(5.0, "join", "r9")
    name, count, settings = texts.replica_class("big:count=2,speed=1.5,kv=6000000")
    assert (name, count) == ("big", 2)
    assert settings == EngineSettings(speed=1.5, kv_tokens=6_000_000)


@pytest.mark.parametrize(
    ("read", "text", "says"),
    [
        (texts.slo, "tfft=1s", "not 'tfft'"),
        (texts.slo, "ttft", "name=value"),
        (texts.fleet_event, "5:explode:r0", "no 'explode'; known: fail"),
        (texts.fleet_event, "5:slow:r0", "needs a value"),
        (texts.fleet_event, "r0", "time:action:replica"),
        (texts.replica_class, "big:color=1", "no setting 'color'"),
        (texts.replica_class, "big:count=0", "count=N"),
        (texts.numbers, "a=b", "must be a number"),
    ],
)
def test_faulty_words_are_refused_with_what_is_known(read: object, text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read(text)  # type: ignore[operator]


def test_events_must_name_replicas_that_are_there() -> None:
    replicas = {"r0": EngineSettings()}
    with pytest.raises(ValueError, match="no replica 'r7' at 5 s"):
        Fleet(replicas=replicas, events=[FleetEvent(5.0, "fail", "r7")])
    Fleet(replicas=replicas, events=[FleetEvent(5.0, "fail", "r7"), FleetEvent(1.0, "join", "r7")])


def test_quantiles_and_imbalance_by_hand() -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert quantile([5.0], 0.99) == 5.0
    assert quantile([], 0.5) is None
    assert imbalance([1.0, 3.0]) == 1.5
    assert imbalance([0.0, 0.0]) is None


def test_axes_have_round_ticks_and_long_lines_are_thinned() -> None:
    assert Axis("s", 0.01, 20.0, log=True).ticks() == [0.01, 0.1, 1.0, 10.0]
    assert Axis("m", 0.0, 60.0).ticks() == [0, 10, 20, 30, 40, 50, 60]
    points = [(float(i), 0.0) for i in range(10_001)]
    assert len(thinned(points)) == 400
    assert thinned(points)[-1] == points[-1]


def test_the_command_prints_a_table_and_writes_json_and_a_page(tmp_path: Path) -> None:
    args = [
        "--generate",
        "chat:requests=60,rate=9",
        "--policies",
        "charged_cost+late,random",
        "--seeds",
        "0,1",
    ]
    files = ["--json", str(tmp_path / "a.json"), "--html", str(tmp_path / "a.html")]
    result = CliRunner().invoke(
        command, [*args, *files, "--replicas", "2", "--slow", "r1=0.5", "--gateways", "2"]
    )
    assert result.exit_code == 0, result.output
    assert "charged_cost+late" in result.stdout
    assert "chat at speed 1, 2 replicas, 2 gateways, journal 20 ms" in result.stdout
    found = json.loads((tmp_path / "a.json").read_text())
    assert [(run["policy"], run["seed"]) for run in found["runs"]] == [
        ("charged_cost+late", 0), ("charged_cost+late", 1), ("random", 0), ("random", 1)
    ]  # fmt: skip
    assert found["inputs"]["workload"] == "chat"
    assert found["inputs"]["requests"] == 60
    assert (tmp_path / "a.html").read_text().count("<svg") == 4


def test_json_on_stdout_is_json_alone() -> None:
    args = ["--generate", "mixed:requests=30", "--policies", "random", "--json", "-"]
    result = CliRunner().invoke(command, args)
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)["runs"]) == 1


def test_a_workload_too_small_for_numbers_is_told_why_there_are_none(tmp_path: Path) -> None:
    words = ["--policies", "random", "--html", str(tmp_path / "a.html")]
    one = CliRunner().invoke(command, [str(written(tmp_path / "t.jsonl", mooncake(0, 100, [1]))), *words])
    assert one.exit_code == 0, one.output
    assert one.stdout.splitlines()[-1].startswith(
        "-: nothing to tell it from. The first 10% of arrivals, at least one,"
    )
    assert "Play more requests" in (tmp_path / "a.html").read_text()
    more = CliRunner().invoke(command, ["--generate", "shared_prompts:requests=20", *words])
    assert "nothing to tell it from" not in more.stdout + (tmp_path / "a.html").read_text()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "either a trace file or --generate"),
        (["--generate", "chat", "--policies", "best"], "there is no policy 'best'; known: cache_aware"),
        (["--generate", "chat", "--policies", "random+late"], "late binding needs the policy charged_cost"),
        (["--generate", "chat", "--seeds", "a"], "write numbers with commas"),
        (["--generate", "chat", "--slow", "r9=2"], "no replica 'r9'; known: r0"),
        (["--generate", "chat", "--set", "gain=4"], "POLICY.SETTING=VALUE"),
        (["--generate", "chat", "--set", "charged_cost.gian=4"], "no setting 'gian'"),
        (["--generate", "chat", "--room", "tehta=1"], "no setting 'tehta'"),
        (["--generate", "chat", "--engine", "speed=0"], "speed must be a number within 0.001..1000, not 0"),
        (["none.jsonl"], "none.jsonl: can't be read"),
        (
            ["--generate", "chat", "--policies", "random,round_robin,random"],
            "random is named twice; write each once",
        ),
        (["--generate", "chat", "--policies", "random", "--room", "theta=1"], "nothing waits"),
        (
            ["--generate", "chat", "--class", "big:count=2", "--replicas", "4"],
            "--replicas and --class: the classes say",
        ),
        (["--generate", "chat", "--class", "big:count=2", "--engine", "kv=9999"], "--engine and --class"),
    ],
)
def test_a_wrong_option_is_told_and_ends_with_2(args: list[str], says: str) -> None:
    result = CliRunner().invoke(command, args)
    assert result.exit_code == 2
    assert says in result.output
