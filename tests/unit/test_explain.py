"""kvsteer explain: the table of a decision that is only considered, live and from a snapshot."""

import io
import json
import math
import random
import socket
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

from extproc.cli import main
from extproc.core.decide import weigh
from extproc.core.dialects import read
from extproc.core.parts import parts_of
from extproc.core.policies import POLICIES
from extproc.core.pool import Pool
from extproc.core.sample import Sample
from extproc.core.shadow import Shadow
from extproc.core.steering import Rules, Steering
from extproc.core.traits import Traits
from extproc.io.explaining import explain
from extproc.io.records import rows_of, state_of
from extproc.io.snapshot import BadSnapshot, restore, take
from tests.examples import QUICK

A, B, C = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"
CHAT = "/v1/chat/completions"
SECRET = "the patient's name is Rumpelstiltskin"
NOW = 100.0


def body(text: str = SECRET, **fields: Any) -> bytes:
    chat = {"model": "m", "messages": [{"role": "user", "content": text * 100}], "max_tokens": 64}
    return orjson.dumps(chat | fields)


def fleet(policy: str = "charged_cost", models: tuple[str, ...] = (), **traits: Any) -> Steering:
    """A has one second of prompt ahead, B is idle, C is at its KV ceiling."""
    pool = Pool("p", models=models, policy=policy, traits=Traits(**traits), now=0.0)
    for address in (A, B, C):
        pool.join(address, 0.0)
    pool.observe(A, Sample(at=NOW - 1, running=3, waiting=1, kv_used=0.9))
    pool.observe(B, Sample(at=NOW - 2, running=0, waiting=0, kv_used=0.0))
    pool.observe(C, Sample(at=NOW - 3, running=9, waiting=0, kv_used=0.99))
    busy = pool.get(A)
    assert busy is not None
    busy.books.send(900, busy.prefill_speed, 50_000, NOW, busy.prefill_speed)
    busy.recount()
    return Steering([pool], Rules(), random.Random(1))


def row(said: dict[str, Any], address: str) -> dict[str, Any]:
    return next(row for row in said["candidates"] if row["replica"] == address)


def test_every_replica_is_in_the_table_with_its_parts_in_seconds_or_why_not() -> None:
    said = explain(fleet(), body(), CHAT, NOW)
    assert (said["choice"], said["fallbacks"], said["reason"]) == (B, [A], "least_cost")
    assert row(said, C) == {"replica": C, "excluded": "kv_ceiling"}
    busy, idle = row(said, A)["charged_cost"], row(said, B)["charged_cost"]
    tokens = said["request"]["prompt_tokens"]
    assert idle == {
        "backlog": 0.0,
        "uncached": pytest.approx(tokens / 8000, abs=1e-6),
        "others": 0.0,
        "decode": 0.0,
        "kv": 0.0,
        "other": 0.0,
        "bias": 0.0,
        "total": pytest.approx(tokens / 8000, abs=1e-6),
    }
    assert busy["backlog"] == pytest.approx(1.0)
    assert busy["kv"] == pytest.approx(1.0, abs=1e-6), "0.9 by telemetry, a tenth sent since: full costs 1 s"
    assert (row(said, B)["rank"], row(said, A)["rank"]) == (1, 2)


@pytest.mark.parametrize("rho", [0.0, 0.5, 2.0])
def test_parts_add_up_to_the_policys_own_score(rho: float) -> None:
    steering = fleet(prefill_doubling=10_000.0)
    pool = steering.pools[0]
    replica = pool.get(A)
    assert replica is not None
    replica.occupancy, replica.crowded = 1.5, True  # sequences wait for a slot: no setting is behind that
    pool.busy.add(rho * 60 * 3, NOW)
    decision = weigh(pool, read(CHAT, body(), steering.rules.limits), random.Random(0), key=1, now=NOW)
    parts = parts_of(decision)
    assert decision.choice is not None
    assert parts["total"] == pytest.approx(list(decision.choice.scores))
    for i in range(2):
        assert sum(parts[name][i] for name in parts if name != "total") == pytest.approx(parts["total"][i])
    assert parts["other"][0] > 0
    assert parts["other"][1] == pytest.approx(0.0, abs=1e-9)
    assert parts["others"][1] > 0, "all running slots of A are taken"


@pytest.mark.parametrize(("draw", "factor"), [(0.0, 2.0 * 0.9), (0.99, 2.0)])
def test_a_bias_is_a_part_of_its_own_and_the_parts_still_add_up(draw: float, factor: float) -> None:
    """B costs twice as much, and its cache is empty: in half of the decisions it is favoured by a tenth."""

    class Drawn:
        def random(self) -> float:
            return draw

    steering = fleet(costs={B: 2.0})
    pool = steering.pools[0]
    replica = pool.get(B)
    assert replica is not None
    replica.bias = 2.0 * 0.9
    decision = weigh(pool, read(CHAT, body(), steering.rules.limits), Drawn(), key=1, now=NOW)
    parts = parts_of(decision)
    assert decision.choice is not None
    assert [r.address for r in decision.candidates] == [A, B]
    assert parts["total"] == pytest.approx(list(decision.choice.scores))
    uncached = decision.tokens / 8000
    assert [row["bias"] for row in rows_of(decision, state_of(decision))[:2]] == [1.0, 1.8]
    assert parts["bias"] == [0.0, pytest.approx((factor - 1) * uncached)]
    for i in range(2):
        assert sum(parts[name][i] for name in parts if name != "total") == pytest.approx(parts["total"][i])


def test_parts_of_a_decision_leave_alone_what_the_policy_remembers() -> None:
    steering = fleet()
    decision = weigh(
        steering.pools[0], read(CHAT, body(), steering.rules.limits), random.Random(0), key=1, now=NOW
    )
    assert parts_of(decision) == parts_of(decision)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_any_policy_is_explained_with_charged_cost_beside_its_own_score(policy: str) -> None:
    said = explain(fleet(policy), body(), CHAT, NOW)
    assert said["policy"] == policy
    assert said["choice"] in (A, B)
    assert row(said, A)["charged_cost"]["total"] > row(said, B)["charged_cost"]["total"]


def test_numbers_no_cost_can_be_made_of_leave_the_table_without() -> None:
    steering = fleet("random")
    replica = steering.pools[0].get(A)
    assert replica is not None
    replica.prefill_speed = math.nan
    said = explain(steering, body(), CHAT, NOW)
    assert said["choice"] in (A, B)
    assert len(said["candidates"]) == 3


@pytest.mark.parametrize("policy", ["charged_cost", "round_robin"])
def test_nothing_is_charged_placed_or_counted(policy: str) -> None:
    steering = fleet(policy)
    pool = steering.pools[0]
    own = pool.policy
    steering.decide(None, pool, 7, NOW)  # round_robin draws its first turn; from then on it counts
    steering.ledger.release(7, NOW)
    first = [explain(steering, body(), CHAT, NOW)["choice"] for _ in range(3)]
    assert len(set(first)) == 1, "the same question gets the same answer"
    assert pool.policy is own
    assert (len(steering.ledger), len(pool.index), pool.busy.rho(3, NOW)) == (0, 0, 0.0)
    live = steering.decide(read(CHAT, body(), steering.rules.limits), pool, 1, NOW)
    assert live.replica is not None
    assert live.replica.address == first[0]


def test_a_policy_that_fails_while_it_is_asked_is_put_back_and_said() -> None:
    steering = fleet()
    pool = steering.pools[0]

    class Broken:
        def choose(self, *_: object) -> None:
            raise RuntimeError

    pool.policy = broken = Broken()  # type: ignore[assignment]
    said = explain(steering, body(), CHAT, NOW)
    assert (said["trouble"], said["choice"]) == ("policy_failed", B)
    assert pool.policy is broken


def test_what_would_be_refused_or_passed_is_said_as_the_exchange_says_it() -> None:
    steering = fleet(models=("m",))
    assert explain(steering, body(model="other"), CHAT, NOW)["outcome"] == "unknown_model"
    assert explain(steering, b"not JSON", CHAT, NOW)["outcome"] == "unreadable"
    assert explain(steering, b"", CHAT, NOW)["outcome"] == "no_body"
    assert explain(steering, body(), "/elsewhere", NOW)["why"] == "no_dialect"
    strict = Steering(steering.pools, Rules(unreadable_passes=False, body=5000), random.Random(0))
    assert explain(strict, b"not JSON", CHAT, NOW) == {
        "outcome": "bad_request",
        "why": "not_json",
        "choice": None,
        "candidates": [],
    }
    assert explain(strict, b"x" * 6000, CHAT, NOW)["outcome"] == "too_large"
    for address in (A, B):
        steering.pools[0].leave(address)
    said = explain(steering, body(), CHAT, NOW)
    assert (said["outcome"], said["choice"], row(said, C)["excluded"]) == ("no_candidate", None, "kv_ceiling")


def test_the_shadow_is_asked_too() -> None:
    steering = fleet()
    steering.pools[0].adopt("charged_cost", {}, Shadow("least_request", {}, random.Random(0)))
    assert explain(steering, body(), CHAT, NOW)["shadow"]["policy"] == "least_request"


# -- snapshots -------------------------------------------------------------------------------------------


def saved(steering: Steering) -> Any:
    """A snapshot that went through a file."""
    return orjson.loads(orjson.dumps(take(steering, "gw-0", 1.0e9, NOW)))


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_snapshot_decides_as_the_gateway_did_where_nothing_is_cached(policy: str) -> None:
    live = fleet(policy, output_tokens=300)
    live.pools[0].busy.add(20.0, NOW)
    made = restore(saved(live))
    ours, theirs = explain(live, body(), CHAT, NOW), explain(made, body(), CHAT, 0.0)
    assert theirs.keys() == ours.keys()
    for name in ("choice", "fallbacks", "reason", "rho", "request"):
        assert theirs[name] == ours[name], name
    for mine in ours["candidates"]:
        other = row(theirs, mine["replica"])
        assert other.keys() == mine.keys()
        assert other.get("charged_cost") == (
            pytest.approx(mine["charged_cost"], abs=1e-5) if "charged_cost" in mine else None
        )
        assert (other.get("sample_age"), other["excluded"]) == (mine.get("sample_age"), mine["excluded"])


def test_what_is_endless_survives_a_snapshot() -> None:
    live = fleet(stale_after=math.inf)
    replica = restore(saved(live)).pools[0].get(A)
    assert replica is not None
    assert replica.fresh_until == math.inf
    assert replica.traits.prefill_doubling == math.inf


def test_a_snapshot_holds_counts_of_the_index_and_no_more() -> None:
    steering = fleet()
    before = len(orjson.dumps(take(steering, "gw-0", 1.0e9, NOW)))
    for i in range(2000):
        steering.decide(read(CHAT, body(f"{SECRET} {i} "), steering.rules.limits), steering.pools[0], i, NOW)
    said = take(steering, "gw-0", 1.0e9, NOW)
    text = orjson.dumps(said)
    assert said["pools"][0]["index_entries"] > 2000
    assert len(text) < before + 500
    assert b"Rumpelstiltskin" not in text


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("snapshot",), 99),
        (("pools",), []),
        (("pools",), None),
        (("rules",), {}),
        (("pools", 0, "policy", "name"), "of_tomorrow"),
        (("pools", 0, "replicas", 0, "prefill_speed"), 0),
        (("pools", 0, "replicas", 0, "kv_tokens"), "many"),
        (("pools", 0, "replicas", 0, "sample"), 3),
        (("pools", 0, "traits"), None),
    ],
)
def test_a_garbled_snapshot_is_told(path: tuple[str | int, ...], value: Any) -> None:
    said = saved(fleet())
    place = said
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(BadSnapshot):
        restore(said)


HOSTILE: list[Any] = [None, "x", -1, 1e308, 10**19, True, [], {}, [[]], {"a": 1}, "\x1b[31m", 0, 2.5]


def places(said: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place in a JSON value but the value itself; of a list, its first."""
    inside = said.items() if isinstance(said, dict) else enumerate(said[:1]) if isinstance(said, list) else ()
    found = []
    for key, value in inside:
        found += [(*path, key), *places(value, (*path, key))]
    return found


def put(said: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """A copy with another value at a place; without the place for ..."""
    copy = json.loads(json.dumps(said))
    inside = copy
    for key in path[:-1]:
        inside = inside[key]
    if value is ...:
        del inside[path[-1]]
    else:
        inside[path[-1]] = value
    return copy


@pytest.mark.parametrize("policy", ["charged_cost", "tiered_affinity"])
def test_whatever_stands_anywhere_in_a_snapshot_it_is_explained_or_told(policy: str) -> None:
    from extproc.cli.explain_form import fault_of

    steering = fleet(policy)
    steering.pools[0].adopt(policy, {}, Shadow("least_request", {}, random.Random(0)))
    good = saved(steering)
    told = 0
    for number, path in enumerate(places(good)):
        # Every other value at each place, the others at the next, unless all examples are tried.
        for value in (*HOSTILE, ...)[number % 2 :: 2] if QUICK else (*HOSTILE, ...):
            try:
                restored = restore(put(good, path, value))
            except BadSnapshot:
                told += 1
                continue
            said = explain(restored, body(), CHAT, 0.0)
            assert fault_of(json.loads(json.dumps(said))) == "", (path, value)
    assert told > (200 if QUICK else 400), "most of these can't be taken for a snapshot"


def test_a_snapshot_says_where_it_is_wrong() -> None:
    good = saved(fleet())
    for path, value, says in [
        (
            ("pools", 0, "replicas", 0, "kv_tokens"),
            "many",
            "pools.0.replicas.0.kv_tokens: Input should be a valid",
        ),
        (("pools", 0, "replicas", 0, "prefill_speed"), 0, "prefill_speed: Input should be greater"),
        (("pools", 0, "replicas", 0, "books"), [], "pools.0.replicas.0.books: Input should be"),
        (("rules", "limits"), ..., "rules.limits: Field required"),
        (("pools", 0, "replicas", 1, "replica"), A, "pool 'p' has a replica twice"),
        (("pools", 0, "policy", "name"), "of_tomorrow", "there is no policy 'of_tomorrow'"),
    ]:
        with pytest.raises(BadSnapshot) as error:
            restore(put(good, path, value))
        assert says in str(error.value)


def test_what_leans_and_biases_survives_a_snapshot_and_may_be_missing() -> None:
    live = fleet()
    replica = live.pools[0].get(A)
    assert replica is not None
    replica.lean, replica.bias = 0.25, 0.5
    made = restore(saved(live)).pools[0].get(A)
    assert made is not None
    assert (made.lean, made.bias) == (0.25, 0.5)
    older = put(
        put(saved(live), ("pools", 0, "replicas", 0, "lean"), ...), ("pools", 0, "replicas", 0, "bias"), ...
    )
    made = restore(older).pools[0].get(A)
    assert made is not None
    assert (made.lean, made.bias) == (0.0, 1.0)


# -- the command -----------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """A request and a snapshot."""
    request, snapshot = tmp_path / "request.json", tmp_path / "fleet.json"
    request.write_bytes(body())
    snapshot.write_bytes(orjson.dumps(take(fleet(), "gw-0", 1.0e9, NOW)))
    return str(request), str(snapshot)


def test_the_command_shows_the_table_and_no_text_of_the_request(files: tuple[str, str]) -> None:
    request, snapshot = files
    result = CliRunner().invoke(main, ["explain", request, "--snapshot", snapshot])
    assert result.exit_code == 0, result.output
    assert f"goes to {B}: least_cost (steered)" in result.stdout
    assert "excluded: kv_ceiling" in result.stdout
    assert "cold" in result.stdout
    assert "Rumpelstiltskin" not in result.output


def test_the_command_reads_standard_input_and_says_json(files: tuple[str, str]) -> None:
    arguments = ["explain", "--snapshot", files[1], "--json"]
    result = CliRunner().invoke(main, arguments, input=body())
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert (said["choice"], said["source"]["gateway"]) == (B, "gw-0")
    assert "Rumpelstiltskin" not in result.output


def test_a_policy_with_its_own_score_shows_it(tmp_path: Path, files: tuple[str, str]) -> None:
    snapshot = tmp_path / "other.json"
    snapshot.write_bytes(orjson.dumps(take(fleet("least_request"), "gw-0", 1.0e9, NOW)))
    result = CliRunner().invoke(main, ["explain", files[0], "--snapshot", str(snapshot)])
    assert result.exit_code == 0, result.output
    assert "score" in result.stdout
    assert "cost s is what charged_cost would say" in result.stdout


def test_a_refusal_is_an_explanation_too(tmp_path: Path, files: tuple[str, str]) -> None:
    snapshot = tmp_path / "models.json"
    snapshot.write_bytes(orjson.dumps(take(fleet(models=("else",)), "gw-0", 1.0e9, NOW)))
    result = CliRunner().invoke(main, ["explain", files[0], "--snapshot", str(snapshot)])
    assert (result.exit_code, "no decision: unknown_model" in result.stdout) == (0, True)


def test_wrong_inputs_are_told_with_status_2(tmp_path: Path, files: tuple[str, str]) -> None:
    request, snapshot = files
    (tmp_path / "empty").write_bytes(b" ")
    for arguments, words in [
        (["nothing.json", "--snapshot", snapshot], "nothing.json can't be read: No such file"),
        ([request, "--snapshot", "nothing.json"], "nothing.json can't be read: No such file"),
        ([request, "--snapshot", request], "is no snapshot of this kvsteer; make one with"),
        ([str(tmp_path / "empty"), "--snapshot", snapshot], "is empty; give the JSON body"),
        ([request, "--snapshot", snapshot, "--admin", "http://a"], "both given"),
        ([request, "--admin", "localhost:9095"], "is no URL"),
        ([request, "--admin", "http://127.0.0.1:1", "--path", "/a\nb"], "no path has"),
    ]:
        result = CliRunner().invoke(main, ["explain", *arguments])
        assert result.exit_code == 2, arguments
        assert words in result.stderr
        assert result.stdout == ""


def test_no_gateway_is_told_with_status_1(files: tuple[str, str]) -> None:
    result = CliRunner().invoke(main, ["explain", files[0], "--admin", "http://127.0.0.1:1"])
    assert result.exit_code == 1
    assert "no gateway answers at http://127.0.0.1:1" in result.stderr


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"snapshot": 1',
        b"NaN",
        b"[]",
        b'"x"',
        b"null",
        b"9" * 5000,
        b"\x00" * 9,
    ],
)
def test_a_file_that_is_no_snapshot_is_told(tmp_path: Path, files: tuple[str, str], text: bytes) -> None:
    file = tmp_path / "odd.json"
    file.write_bytes(text)
    assert_told(CliRunner().invoke(main, ["explain", files[0], "--snapshot", str(file)]), 2, str(file))


def assert_told(result: Any, status: int, *words: str) -> None:
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert (result.exit_code, result.stdout) == (status, "")
    assert result.stderr.count("\n") == 1
    assert "\x1b" not in result.stderr
    for part in words:
        assert part in result.stderr


def test_a_folder_in_place_of_a_file_is_told(tmp_path: Path, files: tuple[str, str]) -> None:
    for arguments in ([str(tmp_path), "--snapshot", files[1]], [files[0], "--snapshot", str(tmp_path)]):
        assert_told(CliRunner().invoke(main, ["explain", *arguments]), 2, "can't be read: Is a directory")


@pytest.mark.parametrize(
    "url",
    [
        "", "http://[::1", "http://", "http://:9095", "http://a:b", "http://a:99999", "http://a:-1", "ftp://a", "//a",
        "a:9095", "http://a b", "http://a\n", "http://\u00e9", "file:///etc/passwd", "http://a:0", "http://[::1]]:1",
        "http://a?x=1", "http://a#b", "http://ops:s3cret@a:9095", "\x1b[31m",
    ],
)  # fmt: skip
def test_a_url_that_is_none_is_told_with_an_example_and_no_password(files: tuple[str, str], url: str) -> None:
    result = CliRunner().invoke(main, ["explain", files[0], "--admin", url])
    assert_told(result, 2, "write for example http://127.0.0.1:9095")
    assert "s3cret" not in result.stderr


EXPLAINED = {
    "outcome": "steered", "why": None, "pool": "p", "policy": "random", "policy_version": 0, "choice": A,
    "reason": "random", "trouble": None, "rho": 0.5, "shadow": {"policy": "random", "choice": None},
    "request": {"prompt_tokens": 5, "output_tokens_expected": 6, "dialect": "d", "model": "m"},
    "candidates": [
        {"replica": A, "excluded": None, "rank": 1, "score": 1.0, "charged_cost": {"total": 1.0}, "in_flight": 1},
        {"replica": B, "excluded": "stale"},
    ],
}  # fmt: skip


def answered(monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    """A gateway's admin port that answers this."""
    monkeypatch.setattr("extproc.cli.explain.open_url", lambda *_, **__: io.BytesIO(said))


def test_whatever_an_admin_port_answers_it_is_shown_or_told(
    files: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = 0
    for number, path in enumerate([(), *places(EXPLAINED)]):
        # Every other value at each place, the others at the next; of the whole answer, all.
        for value in (*HOSTILE, ...)[number % 2 :: 2] if path else HOSTILE:
            answered(monkeypatch, json.dumps(put(EXPLAINED, path, value) if path else value).encode())
            result = CliRunner().invoke(main, ["explain", files[0]])
            assert result.exception is None or isinstance(result.exception, SystemExit), (path, value)
            assert "\x1b" not in result.output, (path, value)
            told += result.exit_code == 1
    assert told > 100, "most of these are no explanation"


@pytest.mark.parametrize(
    "said",
    [b"", b"<html>", b"\xff", b"[" * 100_000, b"NaN", b'{"rho": NaN}', b'{"outcome": "x"}', b"9" * 5000],
)
def test_an_admin_port_that_answers_garbage_is_told(
    files: tuple[str, str], monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    answered(monkeypatch, said)
    assert_told(CliRunner().invoke(main, ["explain", files[0]]), 1, "is it a gateway's admin port")


def serve_once(answer: bytes, pieces: int = 1) -> str:
    """A port that answers one connection with these bytes, in pieces, and closes it. Returns its URL."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, listener.accept()[0] as connection:
            connection.recv(65_536)
            for _ in range(pieces):
                connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-x\r\n",
        b"\x00\xff\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 999 \r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://[::1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\na: " + b"x" * 70_000 + b"\r\n\r\n",
    ],
)
def test_a_port_that_speaks_no_http_is_told(files: tuple[str, str], answer: bytes) -> None:
    result = CliRunner().invoke(main, ["explain", files[0], "--admin", serve_once(answer)])
    assert_told(result, 1, "admin port")


def test_an_answer_that_does_not_end_is_given_up_at_the_deadline(
    files: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Endless(io.BytesIO):
        def read1(self, _size: int | None = -1, /) -> bytes:
            return b" "

    monkeypatch.setattr("extproc.cli.explain.open_url", lambda *_, **__: Endless())
    monkeypatch.setattr("extproc.cli.explain._DEADLINE", 0.05)
    assert_told(CliRunner().invoke(main, ["explain", files[0]]), 1, "the answer does not end")
