"""kvsteer policy against a real Redis and running gateways: in effect within a second, refused, put back."""

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from extproc.cli import main
from extproc.config import PolicySettings, RedisSettings, ShadowSettings
from extproc.demo.processes import free_port
from extproc.demo.stack import Stack, StackSettings
from extproc.io.policy_store import KEPT, Conflict, VersionStore
from extproc.io.policy_versions import Chosen
from tests.integration.conftest import until
from tests.integration.patience import bar, patient

GATEWAYS = 2


@pytest.fixture(scope="module")
def fleet() -> Iterator[Stack]:
    """A Redis and two gateways over replicas that are not there."""
    stack = Stack(
        StackSettings(
            gateways=GATEWAYS,
            gateway={"redis": {"heartbeat": "200ms"}},
            pool={"policy": {"name": "least_request"}, "metrics": {"enabled": False}},
        )
    )
    try:
        stack.start_redis()
        stack.settings.gateway["redis"]["url"] = stack.redis_url
        stack.replicas = ["127.0.0.1:1", "127.0.0.1:2"]
        stack.gateway_ports = [(free_port(), free_port()) for _ in range(GATEWAYS)]
        for number in range(GATEWAYS):
            stack.start_gateway(number)
        yield stack
    finally:
        stack.close()


@pytest.fixture
def client(fleet: Stack) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(fleet.redis_url, decode_responses=True) as made:
        used = [active(fleet, number)["version"] for number in range(GATEWAYS)]
        if made.exists("kvsteer:policies", "kvsteer:policy:demo") or any(used):
            _begin_anew(fleet, made)
        yield made


def _begin_anew(fleet: Stack, client: redis.Redis) -> None:
    """Gateways that follow their files: those that run write what they use into an emptied Redis."""
    children = [fleet.children[f"gateway-{number}"] for number in range(GATEWAYS)]
    for child in children:
        child.kill()
    client.flushall()
    for child in children:
        child.restart()
    for number, child in enumerate(children):
        fleet.wait_gateway(number, child)


def config(stack: Stack) -> str:
    return str(stack.folder / "kvsteer-0.yaml")


def kvsteer(stack: Stack, *words: str, why: str | None = "a test") -> Result:
    changes = ["--why", why] if why and words[0] != "list" else []
    return CliRunner().invoke(main, ["policy", words[0], "-c", config(stack), *words[1:], *changes])


def done(stack: Stack, *words: str) -> dict[str, Any]:
    """The JSON of a command that went well."""
    result = kvsteer(stack, *words, "--json")
    assert result.exit_code == 0, result.output
    said: dict[str, Any] = json.loads(result.stdout)
    return said


def active(stack: Stack, number: int = 0) -> dict[str, Any]:
    entry: dict[str, Any] = stack.admin("/policies", number)["policies"][0]
    return entry


def test_a_change_is_in_effect_in_every_gateway_within_a_second(fleet: Stack, client: redis.Redis) -> None:
    done(fleet, "set", "random", "--wait", "0")
    began = time.monotonic()
    said = done(fleet, "set", "charged_cost", "gain=4.5")
    assert said["using"] == GATEWAYS
    for number in range(GATEWAYS):
        entry = active(fleet, number)
        assert entry["version"] == said["version"]["version"] == 3
        assert (entry["policy"], entry["source"]) == (
            {"name": "charged_cost", "settings": {"gain": 4.5}},
            "redis",
        )
        assert fleet.admin("/healthz", number)["policy_versions"] == {"demo": 3}
    assert said["seconds"] < bar(1.0)
    assert time.monotonic() - began < bar(2.0)


def test_who_when_and_why_are_kept_in_redis_time(fleet: Stack, client: redis.Redis) -> None:
    before = client.time()[0]
    assert kvsteer(fleet, "set", "random", "--who", "ops@bastion", why="a reason").exit_code == 0
    kept = json.loads(client.hget("kvsteer:policy:demo", "2"))
    assert (kept["who"], kept["why"], kept["restores"]) == ("ops@bastion", "a reason", None)
    assert before <= kept["when"] <= client.time()[0] + 1
    assert client.ttl("kvsteer:policy:demo") == -1
    assert kvsteer(fleet, "set", "round_robin").exit_code == 0
    assert "@" in json.loads(client.hget("kvsteer:policy:demo", "3"))["who"]


def test_the_first_change_keeps_what_the_configuration_said(fleet: Stack, client: redis.Redis) -> None:
    done(fleet, "set", "random")
    done(fleet, "rollback")
    versions = done(fleet, "list")["versions"]
    assert [version["policy"]["name"] for version in versions] == ["least_request", "random", "least_request"]
    assert (versions[0]["restores"], versions[2]["who"]) == (1, "configuration")
    until(lambda: active(fleet)["policy"]["name"] == "least_request", 1, "the configuration's policy is back")


def test_going_back_repeatedly_never_goes_forward_again(fleet: Stack, client: redis.Redis) -> None:
    for name in ("random", "round_robin"):  # versions 2 and 3
        done(fleet, "set", name, "--wait", "0")
    done(fleet, "rollback", "--wait", "0")  # 4 is 2
    done(fleet, "set", "least_tokens", "--wait", "0")  # 5
    assert done(fleet, "rollback", "--wait", "0")["version"]["policy"]["name"] == "random"
    assert done(fleet, "rollback", "--wait", "0")["version"]["policy"]["name"] == "least_request"
    at_the_end = kvsteer(fleet, "rollback", "--wait", "0")
    assert (at_the_end.exit_code, at_the_end.stdout) == (2, "")
    assert "there is nothing to go back to: version 7 has what the first one had" in at_the_end.stderr
    assert done(fleet, "rollback", "--to", "3", "--wait", "0")["version"]["policy"]["name"] == "round_robin"


def test_a_shadow_is_set_stays_over_a_change_and_is_ended(fleet: Stack, client: redis.Redis) -> None:
    done(fleet, "shadow", "cache_aware", "threshold=0.4")
    done(fleet, "set", "random")
    entry = active(fleet)
    assert (entry["policy"]["name"], entry["shadow"]) == (
        "random",
        {"name": "cache_aware", "settings": {"threshold": 0.4}},
    )
    done(fleet, "shadow", "none")
    assert active(fleet)["shadow"] is None


class TestWithNothingChanged:
    """They change nothing, and a class's tests run one after the other: gateways begin anew once for all of them."""

    @pytest.mark.parametrize(
        ("words", "reason"),
        [
            (("set", "best"), "there is no policy 'best'; known: "),
            (("set", "charged_cost", "gian=4"), "policy 'charged_cost' has no setting 'gian'"),
            (("set", "charged_cost", "gain=-1"), "gain must be within"),
            (("set", "charged_cost", "gain=nan"), "settings.gain"),
            (("set", "charged_cost", "gain"), "write KEY=VALUE"),
            (("set", "charged_cost", "gain=x"), "'x' is no number"),
            (("set", "charged_cost", "gain=1", "gain=2"), "given twice"),
            (("shadow", "best"), "there is no policy 'best'"),
            (("shadow", "none", "gain=1"), "none takes no settings"),
            (("set", "random", "--who", "a\nb"), "--who has a line break or a control character"),
            (("set", "random", "--pool", "chat"), "there is no pool 'chat'; the configuration has: demo"),
            (("rollback",), "there is nothing to go back to: its policy was never changed"),
            (("shadow", "least_request"), "the pool chooses by least_request already"),
        ],
    )
    def test_what_can_not_be_is_refused_with_the_reason_and_changes_nothing(
        self, fleet: Stack, client: redis.Redis, words: tuple[str, ...], reason: str
    ) -> None:
        result = kvsteer(fleet, *words)
        assert (result.exit_code, result.stdout) == (2, "")
        assert reason in result.stderr
        assert client.exists("kvsteer:policies", "kvsteer:policy:demo") == 0

    def test_a_change_needs_a_reason(self, fleet: Stack, client: redis.Redis) -> None:
        missing = kvsteer(fleet, "set", "random", why=None)
        assert (missing.exit_code, "--why" in missing.output) == (2, True)
        assert kvsteer(fleet, "set", "random", why=" ").exit_code == 2
        assert client.exists("kvsteer:policies") == 0

    @pytest.mark.parametrize("wait", ["nan", "inf", "-1", "61", "", "soon"])
    def test_a_wait_that_is_none_is_refused(self, fleet: Stack, client: redis.Redis, wait: str) -> None:
        result = kvsteer(fleet, "set", "random", "--wait", wait)
        assert (result.exit_code, "--wait" in result.output) == (2, True)
        assert client.exists("kvsteer:policies", "kvsteer:policy:demo") == 0

    def test_a_reader_that_went_away_is_no_fault_of_redis(
        self, fleet: Stack, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def gone(*_: object) -> None:
            raise BrokenPipeError

        monkeypatch.setattr("extproc.cli.policy.gateway_lines", gone)
        said = kvsteer(fleet, "list")
        assert isinstance(said.exception, BrokenPipeError | SystemExit)
        assert "Redis" not in said.stderr


def test_what_is_so_already_is_no_new_version(fleet: Stack, client: redis.Redis) -> None:
    done(fleet, "set", "random")
    assert done(fleet, "set", "random")["changed"] is False
    assert client.hget("kvsteer:policy:demo", "newest") == "2"


def test_the_list_shows_versions_and_gateways_and_no_markup(fleet: Stack, client: redis.Redis) -> None:
    empty = kvsteer(fleet, "list")
    assert empty.exit_code == 0
    assert (
        "pool demo: no versions; each gateway chooses as its own file says (here: least_request)"
        in empty.stdout
    )
    assert kvsteer(fleet, "set", "charged_cost", "gain=4", why="[red]noon[/red]").exit_code == 0
    shown = kvsteer(fleet, "list").stdout
    assert "charged_cost gain=4" in shown
    assert "[red]noon[/red]" in shown
    assert "gw-0 uses version 2" in shown
    assert "gw-1 uses version 2" in shown


def broken_version(client: redis.Redis, number: int, text: str) -> None:
    with client.pipeline(transaction=True) as pipe:
        pipe.hset("kvsteer:policy:demo", mapping={"newest": str(number), str(number): text})
        pipe.set("kvsteer:policies", f"demo:{number}@{time.time()}")
        pipe.execute()


def future(policy: dict[str, Any]) -> str:
    """Version 9 as another kvsteer might write it."""
    return json.dumps({"version": 9, "policy": policy, "who": "a", "when": 1, "why": "b", "scope": "all"})


@pytest.mark.parametrize(
    "text",
    [
        future({"name": "of_tomorrow", "settings": {}}),
        future({"name": "charged_cost", "settings": {"later": 1}}),
        future({"name": "charged_cost", "settings": {"gain": "x"}}),
        "not JSON",
    ],
)
def test_a_gateway_that_can_not_use_a_version_keeps_its_own_says_so_once_and_counts(
    fleet: Stack, client: redis.Redis, text: str
) -> None:
    done(fleet, "set", "random")
    log = fleet.children["gateway-0"].log
    told = log.read_text().count("policy version not usable")
    broken_version(client, 9, text)
    until(lambda: active(fleet)["refused"], 1.5, "the version is refused")
    assert (active(fleet)["version"], active(fleet)["policy"]["name"]) == (2, "random")
    client.set("kvsteer:policies", "demo:9@again")  # read again, and refused again
    report = until(
        lambda: json.loads(client.hget("kvsteer:gateway:gw-0", "policies"))["demo"]["refused"],
        2,
        "it is reported",
    )
    assert report["reason"]
    assert log.read_text().count("policy version not usable") == told + 1
    listed = kvsteer(fleet, "list")
    assert "gw-0 uses version 2; can't use version" in listed.stdout
    client.delete("kvsteer:policy:demo")
    done(fleet, "set", "least_tokens")
    assert active(fleet)["refused"] is None


def test_a_version_that_was_deleted_or_evicted_alone_is_written_again(
    fleet: Stack, client: redis.Redis
) -> None:
    done(fleet, "set", "random")
    for write_over in (
        lambda: client.delete("kvsteer:policy:demo"),
        lambda: client.hset("kvsteer:policy:demo", "2", "{"),
        lambda: client.hset("kvsteer:policy:demo", "newest", "1"),
    ):
        write_over()
        until(
            lambda: (
                client.hget("kvsteer:policy:demo", "newest") == "2"
                and '"random"' in client.hget("kvsteer:policy:demo", "2")
            ),
            3,
            "a gateway that uses it writes it again",
        )
    assert done(fleet, "set", "least_tokens")["version"]["version"] == 3


@pytest.fixture
def scribbled(fleet: Stack, client: redis.Redis) -> Iterator[redis.Redis]:
    """Redis after somebody wrote into every key of kvsteer's; taken away afterwards."""
    done(fleet, "set", "random")
    reports: dict[bytes, str | bytes] = {
        b"kvsteer:gateway:gw-list": "[3]",
        b"kvsteer:gateway:gw-text": b"\xff\xfe",
        b"kvsteer:gateway:gw-\xff": json.dumps({"demo": {"version": 1, "when": 1, "refused": None}}),
        b"kvsteer:gateway:gw-\n": json.dumps({"demo": {"version": 1, "when": 1, "refused": None}}),
        **{
            f"kvsteer:gateway:gw-{name}".encode(): json.dumps({"demo": said})
            for name, said in {
                "version": {"version": "abc", "when": 1, "refused": None},
                "when": {"version": 1, "when": "soon", "refused": None},
                "refused": {"version": 1, "when": 1, "refused": "no"},
                "reason": {"version": 1, "when": 1, "refused": {"version": 1, "when": 1, "reason": 3}},
                "none": None,
            }.items()
        },
    }
    for key, text in reports.items():
        client.hset(key, "policies", text)
    client.set("kvsteer:gateway:gw-string", "x")
    yield client
    client.delete(*reports, "kvsteer:gateway:gw-string")


@pytest.mark.parametrize("pointer", ["newest", "abc", "-1", "9" * 30, b"\xff"])
def test_what_somebody_wrote_into_redis_by_hand_breaks_nothing(
    fleet: Stack, scribbled: redis.Redis, pointer: str | bytes
) -> None:
    key = "kvsteer:policy:demo"
    for field, when in (("7", '"soon"'), ("8", "1e400"), ("9", "1e18"), ("10", "NaN")):
        text = '{"version": %s, "policy": {"name": "random"}, "who": "a", "when": %s, "why": "b"}'
        scribbled.hset(key, field, text % (field, when))
    scribbled.hset(key, mapping={b"\xff": b"\xff", "newest": pointer})
    scribbled.set("kvsteer:policies", b"\xff")
    listed = kvsteer(fleet, "list")
    assert listed.exit_code == 0, listed.output
    assert listed.stderr.count("skipped in Redis: ") == 6 + 10, listed.stderr
    assert "skipped in Redis: the number of the newest version: " in listed.stderr
    assert "gw-0 uses version 2" in listed.stdout
    assert "gw-list" not in listed.stdout
    said = done(fleet, "set", "least_tokens")
    assert (said["using"], said["behind"]) == (GATEWAYS, [])
    assert said["version"]["version"] == 11, "the number after the highest that is taken, by whomever"
    assert done(fleet, "rollback")["version"]["policy"]["name"] == "random"
    assert "background task failed" not in fleet.children["gateway-0"].log.read_text()


def test_a_key_that_is_no_hash_is_told_with_how_to_mend_it(fleet: Stack, client: redis.Redis) -> None:
    client.set("kvsteer:policy:demo", "x")
    listed = kvsteer(fleet, "list")
    assert (listed.exit_code, "key kvsteer:policy:demo holds no hash" in listed.stderr) == (0, True)
    refused = kvsteer(fleet, "set", "random")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "redis-cli RENAME kvsteer:policy:demo" in refused.stderr
    assert client.get("kvsteer:policy:demo") == "x"


def test_a_newest_version_of_another_kvsteer_is_passed_over_and_followed(
    fleet: Stack, client: redis.Redis
) -> None:
    done(fleet, "set", "random")
    broken_version(client, 9, future({"name": "random", "settings": {"gain": "x"}}))
    result = kvsteer(fleet, "rollback")
    assert result.exit_code == 0, result.output
    assert "skipped in Redis: version '9': it can't be read" in result.stderr
    kept = json.loads(client.hget("kvsteer:policy:demo", "10"))
    assert (kept["policy"]["name"], kept["restores"]) == ("random", 2)
    assert kvsteer(fleet, "rollback", "--to", "9").exit_code == 2


def test_a_change_that_is_superseded_says_so_at_once(fleet: Stack, client: redis.Redis) -> None:
    """A gateway that never follows keeps the first command waiting, until another records a newer version."""
    client.hset(
        "kvsteer:gateway:gw-still", "policies", '{"demo": {"version": 1, "when": 1, "refused": null}}'
    )
    ended: list[tuple[Result, float]] = []

    def first() -> None:
        began = time.monotonic()
        result = kvsteer(fleet, "set", "random", "--wait", "30")
        ended.append((result, time.monotonic() - began))

    try:
        # CliRunner swaps the process's streams, so that the newer version is written without a command.
        writer = threading.Thread(target=_record_once_there, args=(client, 3))
        writer.start()
        first()
        writer.join()
    finally:
        client.delete("kvsteer:gateway:gw-still")
    result, took = ended[0]
    assert result.exit_code == 0, result.output
    assert "superseded: somebody else recorded version 3 after it" in result.stderr
    assert took < bar(5)


def _record_once_there(client: redis.Redis, number: int) -> None:
    until(lambda: client.hget("kvsteer:policy:demo", "newest") == "2", 10, "the first version is recorded")
    text = json.dumps({"version": number, "policy": {"name": "random"}, "who": "a", "when": 1, "why": "b"})
    broken_version(client, number, text)


def test_a_version_to_go_back_to_that_is_none_is_refused(fleet: Stack, client: redis.Redis) -> None:
    done(fleet, "set", "random", "--wait", "0")
    for to in ("0", "-1", "nan", "1" * 30, ""):
        assert kvsteer(fleet, "rollback", "--to", to).exit_code == 2, to
    assert kvsteer(fleet, "set", "least_tokens", "--who", "").exit_code == 2
    assert client.hget("kvsteer:policy:demo", "newest") == "2"


def test_a_gateway_that_starts_later_takes_the_newest_over_its_file(
    fleet: Stack, client: redis.Redis
) -> None:
    done(fleet, "set", "random")
    child = fleet.children["gateway-1"]
    child.stop()
    done(fleet, "set", "power_of_two")
    child.restart()
    fleet.wait_gateway(1, child)
    entry = active(fleet, 1)  # at the first look: before it was ready
    assert (entry["version"], entry["policy"]["name"]) == (3, "power_of_two")
    assert '"policy taken from redis"' in child.log.read_text() or "policy taken from redis" in child.said(50)


def test_an_emptied_redis_gets_the_version_in_use_again_and_the_next_change_counts_on(
    fleet: Stack, client: redis.Redis
) -> None:
    number = done(fleet, "set", "random")["version"]["version"]
    client.delete("kvsteer:policies", "kvsteer:policy:demo")
    until(lambda: client.hget("kvsteer:policy:demo", "newest") == str(number), 3, "a gateway writes it again")
    assert client.hlen("kvsteer:policy:demo") == 2, "the newest version, and which that is"
    assert active(fleet)["policy"]["name"] == "random"
    assert done(fleet, "set", "least_tokens")["version"]["version"] == number + 1
    assert active(fleet)["policy"]["name"] == "least_tokens"


def test_the_active_version_is_a_metric(fleet: Stack, client: redis.Redis) -> None:
    import urllib.request

    done(fleet, "set", "random")
    url = f"http://127.0.0.1:{fleet.gateway_ports[0][1]}/metrics"
    with urllib.request.urlopen(url, timeout=patient(5)) as answer:
        lines = answer.read().decode().splitlines()
    assert [line for line in lines if line.startswith("kvsteer_policy_version{")] == [
        'kvsteer_policy_version{policy="random",pool="demo"} 2.0'
    ]


def test_without_redis_the_command_says_so_and_how(fleet: Stack, tmp_path: Path) -> None:
    file = tmp_path / "alone.yaml"
    file.write_text('pools: [{replicas: ["10.0.0.1:8000"]}]\n')
    result = CliRunner().invoke(main, ["policy", "list", "-c", str(file)])
    assert result.exit_code == 2
    assert "redis.url is empty" in result.stderr
    assert "pools[].policy" in result.stderr


def test_a_dead_redis_is_told_with_status_1_and_no_credentials(tmp_path: Path) -> None:
    file = tmp_path / "dead.yaml"
    file.write_text(
        'pools: [{replicas: ["10.0.0.1:8000"]}]\nredis: {url: "redis://:s3cret@127.0.0.1:1/0", deadline: 100ms}\n'
    )
    result = CliRunner().invoke(main, ["policy", "list", "-c", str(file)])
    assert result.exit_code == 1
    assert "Redis does not answer" in result.stderr
    assert "s3cret" not in result.output


def store(fleet: Stack) -> VersionStore:
    return VersionStore(RedisSettings(url=fleet.redis_url, deadline=4.0))


def by(name: str, **settings: float) -> Chosen:
    return Chosen(PolicySettings(name=name, settings=settings), ShadowSettings())


async def test_the_last_hundred_versions_are_kept(fleet: Stack, client: redis.Redis) -> None:
    made = store(fleet)
    for number in range(KEPT + 20):
        await made.add("other", [(by("charged_cost", gain=float(number)), "a", "b")], after=number)
    history = await made.history("other")
    assert [version.number for version in history] == list(range(KEPT + 20, 20, -1))
    assert history[0].chosen.policy.settings == {"gain": KEPT + 19.0}
    assert client.hlen("kvsteer:policy:other") == KEPT + 1
    client.delete("kvsteer:policy:other")
    await made.close()


async def test_of_two_changes_at_once_one_is_refused(fleet: Stack, client: redis.Redis) -> None:
    first, second = store(fleet), store(fleet)
    await first.add("other", [(by("random"), "a", "b")], after=0)
    with pytest.raises(Conflict):
        await second.add("other", [(by("least_request"), "c", "d")], after=0)
    assert [version.who for version in await second.history("other")] == ["a"]
    client.delete("kvsteer:policy:other")
    await first.close()
    await second.close()


def test_a_gateway_keeps_its_policy_while_redis_is_gone_and_follows_again() -> None:
    stack = Stack(
        StackSettings(gateway={"redis": {"heartbeat": "200ms"}}, pool={"metrics": {"enabled": False}})
    )
    try:
        stack.start_redis()
        stack.settings.gateway["redis"]["url"] = stack.redis_url
        stack.replicas, stack.gateway_ports = ["127.0.0.1:1"], [(free_port(), free_port())]
        stack.start_gateway(0)
        done(stack, "set", "random")
        stack.children["redis"].kill()
        until(lambda: stack.admin("/healthz")["shared"] == "degraded", 5, "the loss of Redis is told")
        assert active(stack)["policy"]["name"] == "random"
        stack.children["gateway-0"].stop()
        stack.children["gateway-0"].restart()
        stack.wait_gateway(0, stack.children["gateway-0"])
        assert (active(stack)["version"], active(stack)["policy"]["name"]) == (0, "charged_cost")
        assert "redis does not answer; starting with the policies" in stack.children["gateway-0"].said(50)
        stack.children["redis"].restart()
        until(lambda: kvsteer(stack, "list").exit_code == 0, 10, "Redis answers")
        done(stack, "set", "least_tokens", "--wait", "10")
        until(lambda: active(stack)["policy"]["name"] == "least_tokens", 2, "the next change is followed")
    finally:
        stack.close()


def test_who_changed_it_is_known_without_a_user_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    from extproc.cli import inputs

    def nobody() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(inputs.getpass, "getuser", nobody)
    assert inputs.me().startswith(f"uid-{os.getuid()}@")
