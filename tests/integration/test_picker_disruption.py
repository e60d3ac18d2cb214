"""Replicas that die and come back, and a picker that dies with requests on it, in both body modes.

The cases of the router of llm-d's disruption tests. Their failover of a leader has no counterpart, since every
gateway decides: that one of two dies under load is in test_workers_envoy.py.
"""

import concurrent.futures
import signal
import time
from collections.abc import Iterator

import pytest

from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import until
from tests.integration.patience import bar, patient
from tests.integration.witness import Answer, Witnesses, WitnessStack, http2, witnesses

BODY = b'{"model": "demo", "messages": [{"role": "user", "content": "hello"}]}'


@pytest.fixture(scope="module", params=["buffered", "full_duplex"])
def running(request: pytest.FixtureRequest) -> Iterator[tuple[Stack, Witnesses]]:
    envoy = {"request_body_mode": request.param, "retries": 0}
    with witnesses(2) as replicas, WitnessStack(replicas, StackSettings(envoy=envoy)) as stack:
        until(lambda: stack.admin_status(0, "/readyz") == 200 and ask(stack).status == 200, 10, "ready")
        yield stack, replicas


def ask(stack: Stack, path: str = "/v1/chat/completions") -> Answer:
    return http2(stack.port, path, BODY)


def all_well(stack: Stack) -> bool:
    return {ask(stack).status for _ in range(10)} == {200}


def test_a_replica_that_dies_in_the_middle_of_answers_hangs_nobody_and_survivors_serve(
    running: tuple[Stack, Witnesses],
) -> None:
    stack, replicas = running
    before = len(replicas.seen)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, stack, "/slow/events") for _ in range(8)]
        until(lambda: len(replicas.seen) == before + 8, 10, "the answers are on their way")
        victim = replicas.seen[-1].at
        replicas.kill(victim)
        began = time.monotonic()
        answers = [each.result(timeout=patient(10)) for each in asked]
    assert time.monotonic() - began < bar(10)
    assert any(answer.status == 200 for answer in answers)
    until(lambda: all_well(stack), 20, "requests go to the survivor alone")
    replicas.revive(victim)


def test_with_no_replica_left_requests_are_503_as_json_and_come_back_with_them(
    running: tuple[Stack, Witnesses],
) -> None:
    stack, replicas = running
    for address in replicas.addresses:
        replicas.kill(address)
    for _ in range(5):
        answer = ask(stack)
        assert answer.status == 503
        assert b'"code":' in answer.body
    for address in replicas.addresses:
        replicas.revive(address)
    until(lambda: all_well(stack), 30, "replicas that are back serve")


def test_a_picker_killed_with_answers_on_their_way_costs_none_of_them_but_in_full_duplex(
    running: tuple[Stack, Witnesses],
) -> None:
    """There Envoy 1.40 may cut them, `failure_mode_allow` or not: it fails open until a body was handed over."""
    stack, replicas = running
    until(lambda: all_well(stack), 30, "all is well")
    gateway, before = stack.children["gateway-0"], len(replicas.seen)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, stack, "/slow/events") for _ in range(4)]
        until(lambda: len(replicas.seen) == before + 4, 10, "the answers are on their way")
        gateway.kill()
        answers = [each.result(timeout=patient(10)) for each in asked]
    assert [answer.status for answer in answers] == [200] * 4
    if stack.settings.envoy["request_body_mode"] == "buffered":
        assert {answer.body.count(b"data: ") for answer in answers} == {20}
    gateway.restart()
    stack.wait_gateway(0, gateway)
    until(lambda: all_well(stack), 10, "requests are answered")


def test_a_picker_that_stops_in_order_cuts_no_answer(running: tuple[Stack, Witnesses]) -> None:
    stack, replicas = running
    until(lambda: all_well(stack), 30, "all is well")
    gateway, before = stack.children["gateway-0"], len(replicas.seen)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, stack, "/slow/events") for _ in range(4)]
        until(lambda: len(replicas.seen) == before + 4, 10, "the answers are on their way")
        gateway.signal(signal.SIGTERM)
        answers = [each.result(timeout=patient(10)) for each in asked]
    assert [(answer.status, answer.body.count(b"data: ")) for answer in answers] == [(200, 20)] * 4
    until(lambda: not gateway.running, 10, "the gateway ends")
    gateway.restart()
    stack.wait_gateway(0, gateway)
