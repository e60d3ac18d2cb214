"""What an operator asks first, answered by the commands of docs/quickstart.md as they stand there.

Why did that request go there; take a replica out; back to plain balancing; Redis is down. Which one is slow is told
by tests/integration/test_prometheus.py, as it takes load to find.
"""

import json
import re
import shlex
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from extproc.cli import main
from extproc.demo.stack import Stack, StackSettings
from tests.integration.patience import patient, until

QUICKSTART = (Path(__file__).resolve().parents[2] / "docs" / "quickstart.md").read_text()


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(StackSettings(replicas=4, engine=["--prefill-speed", "200000", "--step-ms", "2"])) as made:
        yield made


def commands(row: str) -> list[str]:
    """The commands in a row of the table "Before it matters"."""
    found = re.search(rf"^\| {row} \| (.*) \|$", QUICKSTART, re.MULTILINE)
    assert found, f"docs/quickstart.md has no row {row!r}"
    return re.findall(r"`(kvsteer [^`]*)`", found[1])


def typed(stack: Stack, line: str, *more: str) -> Result:
    """Run a line of the page, with the addresses and the file of this stack."""
    placed = line.replace("10.0.0.2:8000", stack.replicas[1])
    placed = placed.replace("kvsteer.yaml", str(stack.folder / "kvsteer-0.yaml"))
    _, *words = shlex.split(placed)
    if "-c" not in words:
        more = (*more, "--admin", f"http://127.0.0.1:{stack.gateway_ports[0][1]}")
    return CliRunner().invoke(main, [*words, *more])


def asked(stack: Stack, text: str = "hello") -> Any:
    """Headers of the answer to one chat."""
    body = {"model": stack.settings.model, "messages": [{"role": "user", "content": text}], "max_tokens": 4}
    request = urllib.request.Request(
        f"{stack.url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=patient(10)) as answer:
        answer.read()
        return answer.headers


def decision(stack: Stack) -> dict[str, Any]:
    found: dict[str, Any] = stack.admin("/decisions?last=1")["decisions"][0]
    return found


def test_why_a_request_went_where_it_went_is_found_by_its_id(stack: Stack) -> None:
    def steered() -> Any:  # Envoy asks a gateway once it has found it well
        headers = asked(stack)
        found = stack.admin("/decisions?last=20")["decisions"]
        mine = [one for one in found if one["request_id"] == headers["x-request-id"]]
        return (headers, mine[0]) if mine and mine[0]["outcome"] == "steered" else None

    headers, mine = until(steered, 20, "a steered request is found by its id")
    assert mine["choice"] == headers["x-kvsteer-replica"]
    assert {one["replica"] for one in mine["candidates"]} == set(stack.replicas)


def test_a_replica_is_taken_out_and_put_back(stack: Stack) -> None:
    drain, undrain = commands("take a replica out, put it back")
    until(lambda: typed(stack, drain).exit_code == 0, 20, "drained, on the Redis too")
    assert stack.replicas[1] not in {
        asked(stack, f"other {number}")["x-kvsteer-replica"] for number in range(8)
    }
    assert "quiescing (operator)" in typed(stack, "kvsteer replicas").stdout
    assert typed(stack, undrain).exit_code == 0
    assert "quiescing" not in typed(stack, "kvsteer replicas").stdout


def test_plain_balancing_is_a_command_away_and_so_is_the_way_back(stack: Stack) -> None:
    (plain,) = commands("go back to plain balancing")
    assert typed(stack, plain).exit_code == 0

    def chooses_by(policy: str) -> bool:
        asked(stack)
        return bool(decision(stack)["policy"] == policy)

    until(lambda: chooses_by("round_robin"), 20, "plain balancing")
    assert typed(stack, 'kvsteer policy rollback -c kvsteer.yaml --why "well again"').exit_code == 0
    until(lambda: chooses_by("charged_cost"), 20, "as it was")


def test_redis_down_is_told_with_its_reason_and_costs_no_request(stack: Stack) -> None:
    assert commands("Redis is down") == [], "nothing is to be done at once"
    stack.children["redis"].kill()
    until(lambda: stack.admin("/healthz")["shared"] == "degraded", 20, "it is told")
    assert stack.admin("/healthz")["shared_why"]
    assert asked(stack)["x-kvsteer-replica"] in stack.replicas
    assert decision(stack)["outcome"] == "steered"
    stack.children["redis"].restart()
    until(lambda: stack.admin("/healthz")["shared"] == "ok", 20, "it is over")
