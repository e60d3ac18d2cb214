"""Real stacks for the tests: Envoy, Redis, gateways, emulated replicas. A module shares one."""

import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from extproc.demo.processes import Child
from extproc.demo.stack import Stack, StackSettings
from tests.integration.hurried import TIMES
from tests.integration.last_words import LastWords
from tests.integration.patience import bar, patient
from tests.integration.patience import until as until
from tests.integration.patience import until_async as until_async
from tests.integration.redis_server import PROGRAMS

#: Fast replicas with few, large chunks: what is tested is the gateway, not two cores' patience.
#: A body of 30 MiB is a prompt that fits.
_OPTIONS = """--prefill-speed 1000000 --max-model-len 10000000 --kv-tokens 20000000
    --reported-kv-tokens 2000000 --tokens-per-chunk 4 --max-running 4096"""
QUICK = _OPTIONS.split()

#: Files that take longest. They come first: none of several workers shall be left with one when the others are done.
_LONGEST = (
    "replica_lives",
    "policy_command",
    "feedback",
    "report",
    "workers_envoy",
    "soak",
    "transport_envoy",
)
_words = LastWords()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, each in whatever order it has; and what is found unclosed is told, but fails nothing.

    Who is cut off in the middle of a call, as many are here, leaves sockets to the garbage collector at times, which
    finds them in whatever test is running then.
    """
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("default::ResourceWarning"), append=False)
    names = [f"test_{name}" for name in _LONGEST]
    items.sort(key=lambda item: names.index(item.path.stem) if item.path.stem in names else len(names))


@pytest.fixture(scope="session", autouse=True)
def patient_stacks() -> Iterator[None]:
    """Envoys wait for gateways, and gateways for Redis, as long as tests are patient; Envoy asks from the beginning.

    A stack whose test says how long a message may take keeps that; one whose gateways Envoy shall not ask has `asked`
    set to False.
    """
    start, configure, wait = Stack.start_envoy, Stack.configuration, Stack.wait_gateway

    def configured(stack: Stack, number: int) -> dict[str, Any]:
        tree = configure(stack, number)
        if "redis" in tree:
            tree["redis"] = {"deadline": f"{bar(0.25):g}s", **tree["redis"]}
        return tree

    def patiently(stack: Stack) -> None:
        stack.settings.envoy.setdefault("message_timeout", f"{patient(1.0):g}s")
        start(stack)
        if getattr(stack, "asked", True):
            until(lambda: finds_gateways_well(stack), 10, "Envoy finds every gateway well")

    def waited(stack: Stack, number: int, child: Child) -> None:
        wait(stack, number, child)
        envoy = stack.children.get("envoy")
        if envoy is not None and envoy.running and len(stack.gateway_ports) == 1:
            until(
                lambda: finds_gateways_well(stack), 10, "Envoy finds the gateway well that was started again"
            )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stack, "start_envoy", patiently)
        patch.setattr(Stack, "configuration", configured)
        patch.setattr(Stack, "wait_gateway", waited)
        yield


def finds_gateways_well(stack: Stack) -> bool:
    """Whether each gateway has passed Envoy's health check, before which it is asked nothing."""
    url = f"http://127.0.0.1:{stack.envoy_admin}/stats?filter=^cluster.kvsteer_gateways.*membership_(healthy|total)$"
    with urllib.request.urlopen(url, timeout=patient(5)) as told:
        found = dict(line.split(": ") for line in told.read().decode().splitlines())
    totals = {name: count for name, count in found.items() if name.endswith("total")}
    return all(found[name.removesuffix("total") + "healthy"] == count for name, count in totals.items())


@pytest.fixture(scope="session", autouse=True)
def last_words() -> Iterator[None]:
    """What processes say is kept for the tests that fail."""
    with _words.kept():
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What ended before a test is none of its business."""
    _words.begin()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failed test tells what the processes that it used last said."""
    report = yield
    if report.failed:
        report.sections += _words.told().items()
    return report


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(StackSettings(engine=[*QUICK, "--echo-headers"], redis_url="")) as running:
        yield running


@pytest.fixture(scope="module", params=PROGRAMS)
def server(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """A stack of nothing but a Redis, of each kind that there is."""
    stack = Stack(StackSettings())
    try:
        with pytest.MonkeyPatch.context() as patch:
            if request.param:
                patch.setattr("extproc.demo.stack.redis_program", lambda: request.param)
            stack.start_redis()
        yield stack
    finally:
        stack.close()


@pytest.fixture(params=[TIMES, pytest.param(1, marks=pytest.mark.long)], ids=["hurried", "as_it_is"])
def pace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many times as fast a replica's minutes pass in the stacks that the test starts (hurried.py)."""
    times: int = request.param
    if times > 1:
        command = [sys.executable, str(Path(__file__).with_name("hurried.py"))]
        monkeypatch.setattr("extproc.demo.stack._kvsteer", lambda: command)
    return times


def ledger_tokens(stack: Stack, number: int = 0) -> float:
    """Tokens a gateway holds charged, by its metrics."""
    url = f"http://127.0.0.1:{stack.gateway_ports[number][1]}/metrics"
    with urllib.request.urlopen(url, timeout=5) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("kvsteer_ledger_tokens "):
                return float(line.split()[1])
    raise AssertionError("kvsteer_ledger_tokens is not exposed")
