"""Drains with deadlines, and hang-ups, in real gateways with a real Redis."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import QUICK, until
from tests.integration.patience import patient


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Two gateways on a Redis, and no Envoy: nothing is sent."""
    settings = StackSettings(replicas=2, gateways=2, engine=QUICK, gateway={"redis": {}})
    made = Stack(settings)
    try:
        made.start_redis()
        settings.gateway["redis"] = {"url": made.redis_url, "heartbeat": "250ms", "deadline": "500ms"}
        made.start_engines()
        made.start_gateways()
        yield made
    finally:
        made.close()


def kvsteer(stack: Stack, *arguments: str, number: int = 0) -> "subprocess.CompletedProcess[str]":
    admin = f"http://127.0.0.1:{stack.gateway_ports[number][1]}"
    argv = [sys.executable, "-m", "extproc", *arguments, "--admin", admin]
    return subprocess.run(argv, capture_output=True, text=True, timeout=patient(60))


def state(stack: Stack, replica: str, number: int) -> Any:
    answer = stack.admin("/replicas", number)
    rows = [*answer["replicas"], *answer["removed"]]
    return next((row["state"] for row in rows if row["replica"] == replica), None)


def test_a_replica_removed_by_its_deadline_is_shown_and_undrain_brings_it_back_everywhere(
    stack: Stack,
) -> None:
    target = stack.replicas[0]
    done = kvsteer(stack, "drain", target, "--deadline", "1s", "--no-wait")
    assert done.returncode == 0, done.stderr
    for number in (0, 1):
        until(lambda n=number: state(stack, target, n) == "removed", 8, f"gateway {number} removed it")
    shown = kvsteer(stack, "replicas", number=1).stdout
    assert "removed (deadline)" in shown
    gateway = stack.children["gateway-1"]
    gateway.kill()
    gateway.restart()
    stack.wait_gateway(1, gateway)
    assert state(stack, target, 1) == "removed", (
        "a gateway that starts later keeps it out from the first moment"
    )
    done = kvsteer(stack, "undrain", target)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{target}: warming for every gateway on this Redis" in done.stdout
    until(lambda: state(stack, target, 1) == "warming", 8, "the other gateway lets it join again")
    with redis.Redis.from_url(stack.redis_url) as client:
        assert not client.hexists("kvsteer:operator:demo", target)
        assert client.ttl("kvsteer:operator:demo") > 8 * 86_400
    done = kvsteer(stack, "undrain", target)
    assert done.returncode == 3
    assert f"{target} is not drained, it is warming; nothing was changed" in done.stderr


def test_a_changed_deadline_reaches_the_other_gateway(stack: Stack) -> None:
    target = stack.replicas[1]
    assert kvsteer(stack, "drain", target, "--no-wait").returncode == 0
    until(lambda: state(stack, target, 1) == "quiescing", 8, "the other gateway follows")
    done = kvsteer(stack, "drain", target, "--deadline", "1s", "--no-wait", "--json")
    assert json.loads(done.stdout)["state"] == "quiescing"
    until(lambda: state(stack, target, 1) == "removed", 8, "the other gateway took the deadline over")
    assert kvsteer(stack, "undrain", target).returncode == 0


def test_an_unknown_replica_is_refused_with_the_known_ones(stack: Stack) -> None:
    for command in ("drain", "undrain"):
        done = kvsteer(stack, command, "10.9.9.9:1")
        assert done.returncode == 2
        assert all(replica in done.stderr for replica in stack.replicas)


def test_a_drain_that_redis_does_not_take_says_so_and_is_written_when_redis_is_back(stack: Stack) -> None:
    target, server = stack.replicas[1], stack.children["redis"]
    server.signal(signal.SIGSTOP)
    try:
        done = kvsteer(stack, "drain", target, "--no-wait")
        assert done.returncode == 4, done.stdout
        assert f"{target}: quiescing for this gateway only for now" in done.stdout
    finally:
        server.signal(signal.SIGCONT)
    until(lambda: state(stack, target, 1) == "quiescing", 20, "the other gateway hears of it")
    until(lambda: kvsteer(stack, "undrain", target).returncode == 0, 20, "it is taken back everywhere")
    until(lambda: state(stack, target, 1) != "quiescing", 8, "the other gateway follows")


def test_a_redis_that_comes_back_with_older_orders_ends_no_drain(stack: Stack) -> None:
    target = stack.replicas[0]
    with redis.Redis.from_url(stack.redis_url) as client:
        until(lambda: client.exists("kvsteer:operator:demo"), 8, "a first state stands in Redis")
        older = client.dump("kvsteer:operator:demo")
        assert kvsteer(stack, "drain", target, "--no-wait").returncode == 0
        until(lambda: state(stack, target, 1) == "quiescing", 8, "the other gateway follows")
        client.restore("kvsteer:operator:demo", 0, older, replace=True)  # as an RDB file of before would
        until(lambda: client.hexists("kvsteer:operator:demo", target), 8, "a gateway writes it again")
    assert [state(stack, target, n) for n in (0, 1)] == ["quiescing"] * 2
    told = [stack.children[f"gateway-{n}"].log.read_text() for n in (0, 1)]
    assert any("redis came back with older drains" in text for text in told)
    assert kvsteer(stack, "undrain", target).returncode == 0


@pytest.mark.parametrize("command", ["eval", "get"])
def test_a_command_that_the_user_may_not_call_is_told_as_degraded(stack: Stack, command: str) -> None:
    with redis.Redis.from_url(stack.redis_url) as client:
        client.execute_command("ACL", "SETUSER", "default", f"-{command}")
        try:
            until(lambda: command.upper() in str(stack.admin("/healthz")["shared_why"]), 15, "it is named")
            assert stack.admin("/healthz")["shared"] == "degraded"
        finally:
            client.execute_command("ACL", "SETUSER", "default", f"+{command}")
    until(lambda: stack.admin("/healthz")["shared"] == "ok", 15, "it works again")


def test_a_hang_up_changes_nothing_and_is_told_in_the_log(stack: Stack) -> None:
    gateway = stack.children["gateway-0"]
    for _ in range(2):
        gateway.signal(signal.SIGHUP)
    until(lambda: "SIGHUP changes nothing" in gateway.log.read_text(), 5, "the hang-up is told")
    assert stack.admin_status(0, "/readyz") == 200
    assert gateway.running


def test_a_stopping_gateway_survives_a_hang_up_and_ends_cleanly(stack: Stack) -> None:
    gateway = stack.children["gateway-1"]
    gateway.signal(signal.SIGTERM)
    until(lambda: stack.admin_status(1, "/readyz") == 503, 5, "it drains")
    gateway.signal(signal.SIGHUP)
    until(lambda: not gateway.running, 15, "it ends")
    try:
        assert gateway._process.returncode == 0
    finally:
        gateway.restart()
        stack.wait_gateway(1, gateway)
