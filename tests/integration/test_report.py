"""kvsteer report beside real emulated engines: gateways that scrape nothing, over HTTP with a token, and by Redis."""

import json
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import redis

from extproc.demo.processes import Child, free_port
from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import until
from tests.integration.patience import patient

TOKEN = "s3cret-of-reports"
STALE = 3.0
#: Slow enough that an answer of some hundred tokens is still running when it is looked for.
ENGINE = ["--reported-kv-tokens", "2000000", "--kv-tokens", "2000000", "--step-ms", "20"]
_NUMBERS = count()


class Reported(Stack):
    """A stack whose gateways want a token with each report."""

    def configuration(self, number: int) -> dict[str, Any]:
        made = super().configuration(number)
        made["admin"]["report_token_file"] = str(self.token_file(TOKEN))
        if self.settings.pool.get("discovery"):
            made["envoy"]["eds_dir"] = str(self.folder)
        return made

    def token_file(self, token: str) -> Path:
        path = self.folder / f"token-{len(token)}"
        path.write_text(token + "\n")
        return path

    def reporter(self, replica: str, *options: str) -> Child:
        """kvsteer report beside a replica; it ends with the stack at the latest."""
        argv = [sys.executable, "-m", "extproc", "report", replica, "--interval", "100ms", *options]
        return self._child(f"report-{next(_NUMBERS)}", argv)

    def to_gateway(self, token: str = TOKEN) -> list[str]:
        url = f"http://127.0.0.1:{self.gateway_ports[0][1]}"
        return ["--gateway", url, "--gateway-token-file", str(self.token_file(token))]

    def row(self, replica: str) -> dict[str, Any]:
        """What the gateway believes of a replica; empty when it has none."""
        rows = self.admin("/replicas")["replicas"]
        return next((row for row in rows if row["replica"] == replica), {})

    def is_fresh(self, replica: str) -> bool:
        age = self.row(replica).get("sample_age")
        return age is not None and age < 0.6

    def wait_reports(self, child: Child, replica: str) -> None:
        """Wait until a reporter's own reports are there: the last one's are fresh for a while after its end."""
        try:
            until(lambda: "reports arrive" in child.log.read_text(), 20, f"{child.name} reports")
        except pytest.fail.Exception:
            pytest.fail(f"{child.name} does not report; running: {child.running}; it said:\n{child.said()}")
        until(lambda: self.is_fresh(replica), 10, f"reports of {replica} arrive")

    def counted(self, way: str, result: str) -> float:
        """kvsteer_reports_total of the gateway."""
        url = f"http://127.0.0.1:{self.gateway_ports[0][1]}/metrics"
        wanted = f'kvsteer_reports_total{{result="{result}",way="{way}"}} '
        with urllib.request.urlopen(url, timeout=patient(5)) as answer:
            lines = answer.read().decode().splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(wanted)), 0.0)


def ask(url: str, tokens: int = 2) -> str:
    """A chat; the replica that answered it."""
    body = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": tokens}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=patient(30)) as answer:
        answer.read()
        return str(answer.headers.get("x-kvsteer-replica"))


@contextmanager
def running_there(replica: str) -> Iterator[None]:
    """A streamed answer that the gateway knows nothing of; it is left when the block ends."""
    messages = [{"role": "user", "content": "a long one"}]
    body = {"model": "demo", "messages": messages, "max_tokens": 4000, "stream": True}
    request = urllib.request.Request(
        f"http://{replica}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=patient(30)) as answer:
        assert answer.readline().startswith(b"data:")
        yield


def explained(stack: Reported) -> dict[str, Any]:
    """Where a request would go."""
    url = f"http://127.0.0.1:{stack.gateway_ports[0][1]}/explain"
    body = {"model": "demo", "messages": [{"role": "user", "content": "hello"}]}
    with urllib.request.urlopen(
        urllib.request.Request(url, json.dumps(body).encode()), timeout=patient(5)
    ) as answer:
        return dict(json.loads(answer.read()))


def requests_of(stack: Reported, replica: str) -> float:
    """What least_request goes by: its score of a replica."""
    rows = explained(stack)["candidates"]
    return next(float(row.get("score", 0)) for row in rows if row["replica"] == replica)


def ended(child: Child) -> Callable[[], bool]:
    return lambda: not child.running


# -- over HTTP -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pushed() -> Iterator[Reported]:
    """Envoy, and a gateway that scrapes nothing."""
    pool = {"telemetry": "push", "metrics": {"stale_after": f"{STALE}s"}}
    with Reported(
        StackSettings(replicas=2, engine=ENGINE, redis_url="", policy="least_request", pool=pool)
    ) as made:
        yield made


@pytest.fixture
def reporters(pushed: Reported) -> Iterator[list[Child]]:
    """One beside each replica, with a gateway that is down in the list too."""
    down = ["--gateway", f"http://127.0.0.1:{free_port()}"]
    made = [pushed.reporter(replica, *down, *pushed.to_gateway()) for replica in pushed.replicas]
    try:
        for child, replica in zip(made, pushed.replicas, strict=True):
            pushed.wait_reports(child, replica)
        yield made
    finally:
        for child in made:
            if child.running:
                child.kill()


def test_a_gateway_that_scrapes_nothing_steers_by_reports(pushed: Reported, reporters: list[Child]) -> None:
    busy, idle = pushed.replicas
    # Three, because a report of the idle one may still tell of the last request asked here while the next is placed.
    with ExitStack() as others:
        for _ in range(3):
            others.enter_context(running_there(busy))
        until(lambda: requests_of(pushed, busy) >= 3, 10, "the gateway hears of the others' requests")
        assert pushed.row(busy)["running"] == 3
        assert {ask(pushed.url) for _ in range(5)} == {idle}
    row = pushed.row(idle)
    assert (row["excluded"], row["kv_tokens"], row["waiting"]) == (None, 2_000_000, 0)
    assert row["parts"]["kv"] is not None
    assert pushed.counted("http", "taken") > 0
    told = reporters[0].log.read_text()
    assert '"reason": "connect"' in told or "reason=connect" in told, "the gateway that is down is told of"
    assert TOKEN not in told


def test_a_killed_reporter_makes_its_replica_stale_after_the_limit_and_no_other(
    pushed: Reported, reporters: list[Child]
) -> None:
    lost, other = pushed.replicas
    reporters[0].kill()
    killed = time.monotonic()
    until(lambda: pushed.row(lost)["excluded"] == "stale", STALE + 5, "it is stale")
    assert time.monotonic() - killed > STALE - 0.6
    until(lambda: pushed.is_fresh(other), 5, "the other reports on")
    assert {ask(pushed.url) for _ in range(5)} == {other}
    reporters[0].restart()
    until(lambda: pushed.row(lost)["excluded"] is None, 15, "it is back with its reporter")


def test_reports_resume_after_the_gateway_was_killed(pushed: Reported, reporters: list[Child]) -> None:
    gateway = pushed.children["gateway-0"]
    gateway.kill()
    gateway.restart()
    pushed.wait_gateway(0, gateway)
    for replica in pushed.replicas:
        until(lambda r=replica: pushed.is_fresh(r), 10, f"reports of {replica} resume")  # type: ignore[misc]
    assert all(child.running for child in reporters)


def test_a_stopped_reporter_drains_its_replica_until_another_reports(
    pushed: Reported, reporters: list[Child]
) -> None:
    leaving, other = pushed.replicas
    reporters[0].signal(signal.SIGTERM)
    until(lambda: pushed.row(leaving)["state"] == "quiescing", 5, "the drain is known")
    assert pushed.row(leaving)["state_cause"] == "replica"
    assert {ask(pushed.url) for _ in range(5)} == {other}
    until(ended(reporters[0]), 15, "the reporter ends, as the engine has nothing to do")
    assert reporters[0]._process.returncode == 0
    reporters[0].restart()
    until(lambda: pushed.row(leaving)["state"] == "healthy", 15, "a new reporter ends the drain")


def test_a_wrong_token_is_refused_and_the_reporter_says_so(pushed: Reported) -> None:
    before = pushed.counted("http", "denied")
    wrong = "quite-another-token"
    child = pushed.reporter(pushed.replicas[0], *pushed.to_gateway(wrong))
    try:
        until(lambda: pushed.counted("http", "denied") > before, 15, "it is refused and counted")
        until(lambda: "status_401" in child.log.read_text(), 5, "the reporter says so")
    finally:
        child.kill()
    told = child.log.read_text()
    assert "--gateway-token-file" in told
    assert wrong not in told


def test_a_replica_nobody_knows_is_refused_and_the_reporter_says_so(pushed: Reported) -> None:
    engine = f"http://{pushed.replicas[0]}/metrics"
    child = pushed.reporter("192.0.2.1:8000", "--url", engine, *pushed.to_gateway())
    try:
        until(lambda: pushed.counted("http", "unknown_replica") > 0, 15, "it is refused and counted")
        until(lambda: "status_404" in child.log.read_text(), 5, "the reporter says so")
    finally:
        child.kill()
    assert not pushed.row("192.0.2.1:8000")


def test_with_both_ways_the_gateway_goes_on_by_itself_when_the_reporter_is_gone() -> None:
    pool = {"telemetry": "both", "metrics": {"stale_after": f"{STALE}s"}}
    stack = Reported(StackSettings(replicas=1, engine=ENGINE, redis_url="", pool=pool))
    try:
        stack.start_engines()
        stack.start_gateways()
        replica = stack.replicas[0]
        child = stack.reporter(replica, *stack.to_gateway())
        stack.wait_reports(child, replica)
        until(lambda: stack.counted("http", "taken") >= 3, 10, "its reports are taken")
        child.kill()
        killed = time.monotonic()
        while time.monotonic() - killed < STALE + 0.5:
            assert stack.row(replica)["excluded"] is None
            time.sleep(0.05)
        assert stack.row(replica)["sample_age"] < STALE
    finally:
        stack.close()


# -- by Redis ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def discovered() -> Iterator[Reported]:
    """A real Redis and a gateway that knows no replica until one registers."""
    pool = {
        "telemetry": "push",
        "replicas": [],
        "discovery": {"redis": {"enabled": True}, "grace": "1s"},
        "metrics": {"stale_after": f"{STALE}s"},
    }
    stack = Reported(StackSettings(replicas=2, engine=ENGINE, pool=pool))
    try:
        stack.start_redis()
        stack.start_engines()
        stack.start_gateways()
        yield stack
    finally:
        stack.close()


@pytest.fixture
def registered(discovered: Reported) -> Reported:
    """The same, once what a test before it registered is gone."""
    until(lambda: not discovered.admin("/replicas")["replicas"], 15, "the pool is empty")
    return discovered


def by_redis(stack: Reported) -> list[str]:
    return ["--redis", stack.redis_url, "--pool", "demo", "--register", "--ttl", "2s"]


def test_a_replica_registers_reports_drains_and_leaves_through_redis(registered: Reported) -> None:
    stays, leaves = registered.replicas
    children = [registered.reporter(replica, *by_redis(registered)) for replica in (stays, leaves)]
    try:
        for child, replica in zip(children, (stays, leaves), strict=True):
            registered.wait_reports(child, replica)
        assert registered.counted("redis", "taken") > 0
        assert explained(registered)["choice"] in (stays, leaves)
        with running_there(leaves):
            children[1].signal(signal.SIGTERM)
            until(lambda: registered.row(leaves)["state"] == "quiescing", 5, "the drain is known")
            assert explained(registered)["choice"] == stays
            time_of_drain = time.monotonic()
            until(
                lambda: time.monotonic() - time_of_drain > 4, 10, "longer than an idle engine is waited for"
            )
            assert children[1].running, "its engine still works"
        until(ended(children[1]), 15, "the reporter ends when the engine is idle")
        until(lambda: not registered.row(leaves), 10, "the replica left the pool")
        until(lambda: registered.is_fresh(stays), 5, "the other reports on")
    finally:
        for child in children:
            child.kill()


def test_reports_resume_after_redis_was_gone(registered: Reported) -> None:
    replica = registered.replicas[0]
    child = registered.reporter(replica, *by_redis(registered))
    server = registered.children["redis"]
    try:
        registered.wait_reports(child, replica)
        server.kill()
        until(lambda: registered.row(replica)["sample_age"] > STALE, STALE + 5, "no report comes")
        assert explained(registered)["choice"] == replica, "the last known set serves"
        server.restart()
        until(lambda: registered.is_fresh(replica), 20, "reports resume")
    finally:
        if not server.running:
            server.restart()
        child.kill()


def test_the_documented_rights_of_a_reporters_user_are_all_it_needs(registered: Reported) -> None:
    rights = Path("docs/telemetry.md").read_text().partition("ACL SETUSER reporter ")[2].partition("\n")[0]
    with redis.Redis.from_url(registered.redis_url) as root:
        root.execute_command("ACL", "SETUSER", "reporter", *rights.replace("PASSWORD", TOKEN).split())
    options = ["--redis-username", "reporter", "--redis-password-file", str(registered.token_file(TOKEN))]
    replica = registered.replicas[0]
    child = registered.reporter(replica, *by_redis(registered), *options)
    try:
        registered.wait_reports(child, replica)
        until(lambda: "registered" in child.log.read_text(), 10, "it registers")
        child.signal(signal.SIGTERM)
        until(ended(child), 15, "it ends")
        assert "can't" not in child.log.read_text(), "nothing was refused, leaving included"
        assert TOKEN not in child.log.read_text()
    finally:
        child.kill()


def test_a_replica_whose_reporter_is_killed_leaves_when_its_registration_expires(
    registered: Reported,
) -> None:
    replica = registered.replicas[1]
    child = registered.reporter(replica, *by_redis(registered))
    other = registered.reporter(registered.replicas[0], *by_redis(registered))
    try:
        registered.wait_reports(child, replica)
        registered.wait_reports(other, registered.replicas[0])
        child.kill()
        until(lambda: not registered.row(replica), 10, "its registration expired")
    finally:
        child.kill()
        other.kill()
