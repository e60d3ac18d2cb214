"""Every option of simulate and tune with values that are none, and every kind of broken trace: told with status 2."""

import json
import os
from itertools import product
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from extproc.cli import simulate, tune
from extproc.core.policies import POLICIES
from extproc.sim.bounds import shown, whole, within
from extproc.sim.compare import Plan, settings_of
from extproc.sim.generators import GENERATORS, generated
from extproc.sim.jobs import Row
from extproc.sim.plan import uniform_fleet
from extproc.sim.run import SimSettings, Simulation
from extproc.sim.traces import read_trace
from extproc.sim.tune import changed, star
from extproc.sim.workload import WorkloadError

HOSTILE = ("", "nan", "inf", "-inf", "-1", "1e308", "1" * 400, "word", "\x1b[31m")
SMALL = ["--generate", "mixed:requests=5", "--policies", "random"]
TINY = ["--generate", "mixed:requests=5"]

#: Option -> how a hostile value is put into it.
OF_BOTH = {
    "--replicas": "{}",
    "--engine": "speed={}",
    "--gateways": "{}",
    "--speed": "{}",
    "--limit": "{}",
    "--seeds": "0,{}",
    "--set": "charged_cost.gain={}",
    "--generate": "chat:rate={}",
}
OF_SIMULATE = OF_BOTH | {
    "--policies": "random,{}x",
    "--room": "theta={}",
    "--class": "a:count={}",
    "--slow": "r0={}",
    "--event": "1:slow:r0:{}",
    "--journal": "{}",
    "--telemetry": "{}",
    "--delay": "{}",
    "--quantum": "{}",
    "--slo": "ttft={}",
}
OF_TUNE = OF_BOTH | {"--policy": "{}x", "--try": "gain={}", "--for": "{}"}


def play(command: click.Command, *words: str) -> Result:
    return CliRunner().invoke(command, list(words))


def assert_told(result: Result, *says: str, of: object = "") -> None:
    """Status 2, and what was wrong in words; nothing was raised, played or printed. `of` is told where it was not."""
    assert isinstance(result.exception, SystemExit), (of, result.exception)
    assert result.exit_code == 2, (of, result.output)
    assert result.stdout == "", of
    assert "Traceback" not in result.stderr, of
    assert "\x1b" not in result.stderr, of
    for words in says:
        assert words in result.stderr, of


def hostile(option: str) -> list[str]:
    """Values that are none; a seed may be any whole number."""
    return [value for value in HOSTILE if (option, value) != ("--seeds", "-1")]


@pytest.mark.parametrize("option", OF_SIMULATE)
def test_simulate_tells_of_every_value_that_is_none(option: str) -> None:
    start = ["--policies", "charged_cost"] + ([] if option == "--generate" else TINY)
    for value in hostile(option):
        result = play(simulate.command, *start, option, OF_SIMULATE[option].format(value))
        assert_told(result, option, of=value)


@pytest.mark.parametrize("option", OF_TUNE)
def test_tune_tells_of_every_value_that_is_none(option: str) -> None:
    start = [] if option == "--generate" else TINY
    for value in hostile(option):
        assert_told(play(tune.command, *start, option, OF_TUNE[option].format(value)), of=value)


@pytest.mark.parametrize("name", ["kv", "prefill", "doubling", "chunk", "max_running", "step", "per_context"])
def test_every_setting_of_a_replica_is_bounded(name: str) -> None:
    for value in ("nan", "-1", "1e-320", "x", ""):
        words = f"{name}={value}"
        if (name, value) in {("step", "1e-320"), ("per_context", "1e-320")}:
            words += ",step=1e-320,per_sequence=0,per_context=1e-320".replace(f",{words}", "")
        assert_told(play(simulate.command, *SMALL, "--engine", words), "--engine", of=words)


@pytest.mark.parametrize("name", ["alpha", "cap", "most", "patience", "requests", "tokens", "theta"])
def test_every_setting_of_late_binding_is_bounded(name: str) -> None:
    for value in ("nan", "inf", "-1", "1e308", ""):
        words = [*TINY, "--policies", "charged_cost+late", "--room", f"{name}={value}"]
        assert_told(play(simulate.command, *words), "--room", name, of=value)


@pytest.mark.parametrize("generator", sorted(GENERATORS))
def test_every_setting_of_every_generator_is_bounded(generator: str) -> None:
    known = dict(generated(generator, {}).facts)
    for name, value in product(known, ("nan", "inf", "-1", "1e308", "1e-9")):
        if (name, value) in {("seed", "-1"), ("think", "1e-9"), ("share", "1e-9")}:
            continue
        with pytest.raises(WorkloadError, match=f"generator '{generator}': .*{name}"):
            generated(generator, {name: float(value)})


@pytest.mark.parametrize("value", [0.5, 2.5])
def test_a_setting_that_counts_takes_whole_numbers_only(value: float) -> None:
    with pytest.raises(WorkloadError, match="turns must be a whole number"):
        generated("chat", {"turns": value})


def test_settings_that_make_too_much_together_are_refused() -> None:
    with pytest.raises(WorkloadError, match="times their length"):
        generated("shared_prompts", {"groups": 1_000_000, "prompt": 500_000})
    with pytest.raises(WorkloadError, match="turns times the tokens of each"):
        generated("agents", {"turns": 1000, "user": 500_000})


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--set", "nosuch.gain=3"], "there is no policy 'nosuch'; known: cache_aware"),
        (["--set", "charged_cost.nosuch=3"], "no setting 'nosuch'; it has: copy"),
        (["--set", "cache_aware.balance=3"], "cache_aware is not played; played are: charged_cost"),
        (["--set", "charged_cost.gain=3", "--set", "charged_cost.gain=4"], "given twice"),
        (["--set", ""], "POLICY.SETTING=VALUE"),
        (["--set", ".=1"], "there is no policy ''"),
        (["--seeds", "1,1"], "each once"),
        (["--seeds", ",".join(map(str, range(101)))], "at most 100"),
        (["--room", "order=best"], "there is no order 'best'"),
        (["--room", "cap=1,cap=2"], "given twice"),
        (["--class", "a b:count=2"], "is no name"),
        (["--class", "a:count=2.5"], "whole number"),
        (["--class", "a:count=11", "--class", "a1:count=1"], "there is a replica a10 already"),
        (["--slow", ""], "REPLICA=FACTOR"),
        (["--slo", ""], "ttft=2s,tpot=50ms"),
        (["--slo", "ttft=-1s"], "is no duration"),
        (["--engine", "kv=1e6,kv_tokens=1e7"], "kv_tokens is given twice"),
        (["--engine", "step=0,per_sequence=0,per_context=0"], "must take some time"),
        (["--engine", "max_running=1.5"], "whole number"),
        (["--telemetry", "1ms"], "telemetry"),
        (["--gateways", "256", "--replicas", "10000"], "replicas times gateways"),
        (["--event", "1:fail:r0:3"], "fail takes no value"),
        (["--event", "1:restart:r0"], "restart needs a value"),
        (["--event", "9999h:fail:r0"], "--event"),
        (["--event", "1:join:r0"], "there is a replica 'r0' already"),
        (["--event", "1:join:"], "is no name"),
        (["--event", "1:leave:r0", "--event", "2:leave:r0"], "'r0' has left already"),
        (["--event", "nan:fail:r0"], "is no duration"),
    ],
)
def test_what_can_not_be_is_refused_with_what_is_known(words: list[str], says: str) -> None:
    assert_told(play(simulate.command, *TINY, "--policies", "charged_cost", *words), says)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--set", "random.x=1"], "random is not played"),
        (["--try", "gain=1", "--try", "gain=2"], "given twice"),
        (["--try", "room.theta=1"], "need --policy NAME+late"),
        (["--try", "room.order=1", "--policy", "charged_cost+late"], "is a word"),
        (["--try", "room.theta=-1", "--policy", "charged_cost+late"], "theta must be a number within"),
        (["--try", "=1"], "SETTING=VALUE:VALUE"),
        (["--try", "gain=1:"], "SETTING=VALUE:VALUE"),
        (["--policy", ""], "names no policy"),
    ],
)
def test_what_can_not_be_tuned_is_told(words: list[str], says: str) -> None:
    assert_told(play(tune.command, *TINY, *words), says)


@pytest.mark.parametrize("words", [["--generate", "chat:rate=0.0001"], ["--speed", "0.001"]])
@pytest.mark.parametrize("command", [simulate.command, tune.command])
def test_arrivals_that_would_take_years_are_refused_before_the_run(
    command: click.Command, words: list[str]
) -> None:
    start = [] if words[0] == "--generate" else ["--generate", "chat:rate=0.001"]
    assert_told(play(command, *start, *words), "arrivals would take", "s; take fewer requests")


def test_sessions_that_would_think_for_years_are_refused_before_the_run(tmp_path: Path) -> None:
    words = ["--generate", "agents:requests=1000,turns=1000,think=86400,user=1,output=1"]
    assert_told(play(simulate.command, *words), "arrivals would take 86313850 s")  # 250 + 999 * 86400
    trace = tmp_path / "t.jsonl"
    row = GOOD | {"session": 1, "think_ms": 86_400_000}
    trace.write_text("".join(json.dumps(row | {"turn": turn}) + "\n" for turn in range(32)))
    assert_told(play(simulate.command, str(trace)), "arrivals would take 2678400 s", "shorter pauses")


def test_a_run_whose_sessions_go_on_too_long_ends_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extproc.sim.run.MOST_SECONDS", 3000.0)  # the real thirty days take a second to play
    first, second, third = (Row(0.0, 512, 1, [number], think=2000.0) for number in range(3))
    first.after, second.after = second, third
    run = Simulation(SimSettings(fleet=uniform_fleet(1), telemetry=0.0))
    with pytest.raises(WorkloadError, match=r"would arrive 4000\S* s after the start.* may last 3000 s"):
        run.run([first])


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_what_tune_tries_by_itself_every_policy_takes(policy: str) -> None:
    sim = SimSettings(fleet=uniform_fleet(1))
    plan = Plan(workload=generated("mixed", {"requests": 5}), policies=[policy], seeds=[0], sim=sim)
    for changes in star(policy):
        Simulation(settings_of(changed(plan, changes), policy, 0))


def test_a_tuning_in_which_nothing_is_answered_says_so_in_json() -> None:
    words = [
        "--generate",
        "mixed:requests=5,short=2000,long=2000",
        "--engine",
        "kv=512",
        "--try",
        "gain=1:2",
        "--seeds",
        "0,1",
        "--json",
    ]
    result = play(tune.command, *words)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert (found["gain"], found["clear"], found["trials"][0]["values"]) == (None, False, [None, None])


# -- outputs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_an_output_that_can_not_be_written_is_found_before_the_run(
    tmp_path: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulate, "compare", lambda *_: pytest.fail("the run began"))
    (tmp_path / "file").write_text("x")
    for place in (tmp_path, tmp_path / "none" / "a", tmp_path / "file" / "a", Path("")):
        assert_told(play(simulate.command, *SMALL, option, str(place)), option, "can't be written")
    if os.geteuid():
        tmp_path.chmod(0o500)
        assert_told(play(simulate.command, *SMALL, option, str(tmp_path / "a")), "can't be written")
        tmp_path.chmod(0o700)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file"]


def test_an_output_is_not_written_over_the_trace_nor_over_the_other(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[1]}\n')
    assert_told(play(simulate.command, str(trace), "--json", str(trace)), "would overwrite")
    both = str(tmp_path / "out")
    assert_told(play(simulate.command, str(trace), "--json", both, "--html", both), "what --json writes")


def test_links_are_followed_and_left_and_names_no_folder_takes_are_told(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "lost").symlink_to(tmp_path / "none" / "a")
    (tmp_path / "link").symlink_to(tmp_path / "new")
    for name in ("loop", "lost", "x" * 300):
        assert_told(play(simulate.command, *SMALL, "--json", str(tmp_path / name)), "can't be written")
    assert play(simulate.command, *SMALL, "--json", str(tmp_path / "link")).exit_code == 0
    assert (tmp_path / "link").is_symlink()
    assert len(json.loads((tmp_path / "new").read_text())["runs"]) == 1


def test_a_full_disk_is_told() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    result = play(simulate.command, *SMALL, "--json", "/dev/full")
    assert result.exit_code == 2
    assert "--json /dev/full: can't be written: No space left on device" in result.stderr


def test_what_a_file_held_before_is_kept_when_an_option_is_wrong(tmp_path: Path) -> None:
    kept = tmp_path / "a.json"
    kept.write_text("before")
    assert_told(play(simulate.command, *SMALL, "--json", str(kept), "--html", str(tmp_path)))
    assert kept.read_text() == "before"


# -- traces ----------------------------------------------------------------------------------------------

GOOD = {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}
CSV = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"


def jsonl(**changes: object) -> bytes:
    """A good row, and one that is changed."""
    row = {key: value for key, value in (GOOD | changes).items() if value is not ...}
    return (json.dumps(GOOD) + "\n" + json.dumps(row) + "\n").encode()


NO_NUMBERS: list[Any] = ["5", -1, float("nan"), float("inf"), 1e308, 10**400, True, None, [], {}]
NO_NAMES: list[Any] = [[], {}, 1.5, True]
BROKEN: list[tuple[bytes, str]] = [
    *((jsonl(**{name: ...}), f":2: not a request of a trace: {name} is missing") for name in
      ("input_length", "output_length", "hash_ids")),
    *((jsonl(**{name: value}), f":2: not a request of a trace: {name}")
      for name in ("timestamp", "input_length", "output_length", "think_ms")
      for value in NO_NUMBERS),
    *((jsonl(hash_ids=value), ":2: not a request of a trace") for value in
      ("12", [1], [1, 2, 3], [1, "2"], [1, 2.5], [1, None], {"1": 2}, None, 7, [True, False])),
    *((jsonl(session=value), ":2: not a request of a trace: session") for value in NO_NAMES),
    *((jsonl(session="a", turn=value), ":2: not a request of a trace: turn") for value in ("x", None, 1e308, [1])),
    (jsonl(timestamp=...), ":2: .*timestamp .*is missing"),
    (jsonl(session="a"), ":2: .*turn is missing"),
    (jsonl(turn=1), ":2: .*session is missing, which turn is for"),
    (jsonl(think_ms=1), ":2: .*session is missing, which think_ms is for"),
    (jsonl(session="a", turn=0, think_ms=1, timestamp=...), ":2: .*timestamp is missing, by which the first turn"),
    (jsonl(session="a", turn=0) + jsonl(session="a", turn=1), ":4: .*think_ms is missing, by which the turn after"),
    (jsonl(session="a", turn=0) + jsonl(session="a", turn=0), ":4: .*turn 0 of this session is in line 2 already"),
    *((json.dumps(GOOD).encode() + b"\n" + line, ":2: not a request of a trace") for line in
      (b"[1]\n", b"null\n", b'"x"\n', b"7\n", b'{"input_length": 6', b"[" * 100_000, b'{"a": ' + b"9" * 5000)),
    (json.dumps(GOOD).encode() + b"\n\xff\xfe\n", ":2: not UTF-8"),
    (b"\x1f\x8b\x08\x00", ":1: not UTF-8"),
    (b"\x00" * 100, "not a trace"),
    (CSV + b"2023-11-16 18:15:46,1\n", ":2: not a row of .*GeneratedTokens is missing"),
    (CSV + b"2023-11-16 18:15:46,-1,1\n", ":2: .*ContextTokens must be a whole number within 0..10000000"),
    (CSV + b"2023-11-16 18:15:46,1,1e308\n", "GeneratedTokens must be a whole number"),
    (CSV + b"2023-11-16 18:15:46,1," + b"9" * 5000 + b"\n", "GeneratedTokens must be a whole number"),
    (CSV + b"2023-11-16 18:15:46,nan,1\n", "ContextTokens must be a whole number"),
    (CSV + b"2023-11-16 18:15:46,1,1\n\n0001-01-01 00:00:00,1,1\n", "."),
    (CSV + b"2023-11-16 18:15:46,1,1\n2024-11-16 18:15:46,1,1\n", "covers more than"),
    (CSV + b'"' + b"x" * 200_000 + b'",1,1\n', "not a row of"),
    (b"TIMESTAMP,Other\n2023-11-16 18:15:46,1\n", "ContextTokens is missing"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_a_broken_trace_is_told_with_file_line_and_field(tmp_path: Path, number: int) -> None:
    data, says = BROKEN[number]
    path = tmp_path / "t"
    path.write_bytes(data)
    with pytest.raises(WorkloadError, match=says) as told:
        read_trace(path)
    assert str(told.value).startswith(f"{path}:")
    assert len(str(told.value)) < 600
    assert_told(play(simulate.command, str(path)))


def test_a_folder_and_names_no_file_has_are_told(tmp_path: Path) -> None:
    assert_told(play(simulate.command, str(tmp_path)), "can't be read: Is a directory")
    assert_told(play(tune.command, str(tmp_path)), "can't be read: Is a directory")
    assert_told(play(simulate.command, ""), "can't be read")
    with pytest.raises(WorkloadError, match="can't be read"):
        read_trace(Path("a\0b"))


def test_a_pipe_is_refused_at_once_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for command in (simulate.command, tune.command):
        assert_told(
            play(command, str(tmp_path / "pipe")), "pipe: is no regular file; write what comes out of it"
        )


def test_a_csv_may_have_its_cells_in_quotes(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        '"TIMESTAMP","ContextTokens","GeneratedTokens"\n'
        '"2023-11-16 18:15:46","5","1"\n"2023-11-16 18:15:48","7","1"\n'
    )
    assert [(row.at, row.tokens) for row in read_trace(path).rows()] == [(0.0, 5), (2.0, 7)]


def test_a_turn_needs_only_the_time_by_which_it_arrives(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    later = {key: value for key, value in GOOD.items() if key != "timestamp"} | {
        "session": 1,
        "turn": 4,
        "think_ms": 500,
    }
    path.write_text(
        json.dumps(later) + "\n" + json.dumps(GOOD | {"timestamp": 2000, "session": 1, "turn": 3}) + "\n"
    )
    (first,) = read_trace(path).rows()
    assert (first.at, first.after and first.after.think) == (2.0, 0.5)


def test_a_byte_order_mark_blank_lines_and_rows_out_of_order_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"\xef\xbb\xbf\n" + json.dumps(GOOD).encode() + b"\n\n")
    assert [row.tokens for row in read_trace(path).rows()] == [600]
    path.write_bytes(CSV + b"2023-11-16 18:15:48,5,1\n2023-11-16 18:15:46,7,1\n")
    assert [(row.at, row.tokens) for row in read_trace(path).rows()] == [(0.0, 7), (2.0, 5)]


def test_a_name_is_not_taken_for_markup(tmp_path: Path) -> None:
    path = tmp_path / "a[bold][z].jsonl"
    path.write_bytes(jsonl())
    result = play(simulate.command, str(path), "--policies", "random")
    assert result.exit_code == 0, result.output
    assert "a[bold][z].jsonl at speed 1" in result.stdout


# -- bounds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), True, None, "3", 4.0, -1, 10**400])
def test_a_bound_takes_numbers_within_it_only(value: object) -> None:
    with pytest.raises(ValueError, match=r"x must be a number within 0..3, not "):
        within("x", value, 0, 3)
    with pytest.raises(ValueError, match=r"x must be a whole number within 0..3, not "):
        whole("x", value, 0, 3)


def test_a_whole_number_may_be_written_with_a_point_but_not_with_a_fraction() -> None:
    assert whole("x", 3.0, 0, 3) == 3
    with pytest.raises(ValueError, match=r"not 2\.5"):
        whole("x", 2.5, 0, 3)


def test_what_messages_quote_is_short_and_plain() -> None:
    assert shown("\x1b[31m") == r"'\x1b[31m'"
    assert len(shown("x" * 10_000)) == 60
    assert shown(10**5000) == "a number of more than 16 digits"
