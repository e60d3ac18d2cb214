"""Explanations and the shadow policy in a running gateway behind a real Envoy."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from extproc.cli import main
from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import QUICK, ledger_tokens, until
from tests.integration.patience import patient

SECRET = "Rumpelstiltskin "


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    settings = StackSettings(
        replicas=3,
        engine=QUICK,
        redis_url="",
        pool={"shadow": {"name": "least_request"}},
        gateway={"limits": {"body": "64KiB", "expanded_body": "64KiB"}},
    )
    with Stack(settings) as running:
        yield running


def chat(number: int = 0) -> bytes:
    text = f"{number} {SECRET * 600}"
    return json.dumps(
        {"model": "demo", "messages": [{"role": "user", "content": text}], "max_tokens": 2}
    ).encode()


def send(stack: Stack, body: bytes) -> str:
    """Send a request through Envoy; returns the replica that answered."""
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{stack.url}/v1/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=patient(30)) as answer:
        answer.read()
        replica: str = answer.headers["x-kvsteer-replica"]
    return replica


def admin(stack: Stack) -> str:
    return f"http://127.0.0.1:{stack.gateway_ports[0][1]}"


def explained(stack: Stack, body: bytes, *more: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["explain", "--admin", admin(stack), "--json", *more], input=body)
    assert result.exit_code == 0, result.output
    assert SECRET.strip() not in result.output
    said: dict[str, Any] = json.loads(result.stdout)
    return said


def test_an_explanation_names_where_the_request_then_goes_and_charges_nothing(stack: Stack) -> None:
    first = send(stack, chat(1))
    until(lambda: ledger_tokens(stack) == 0, 5, "the request is over")
    before = stack.admin("/snapshot")["pools"][0]["index_entries"]
    for _ in range(3):
        said = explained(stack, chat(1))
        assert said["choice"] == first, "its prefix is warm there"
        cached = {row["replica"]: row["cached_tokens"] for row in said["candidates"]}
        assert cached[first] > 1000
        assert sum(tokens > 0 for tokens in cached.values()) == 1
    assert ledger_tokens(stack) == 0
    assert stack.admin("/snapshot")["pools"][0]["index_entries"] == before
    assert send(stack, chat(1)) == first


def test_a_snapshot_of_the_gateway_explains_offline(stack: Stack) -> None:
    with urllib.request.urlopen(f"{admin(stack)}/snapshot", timeout=patient(5)) as answer:
        text = answer.read()
    assert SECRET.strip().encode() not in text
    file = stack.folder / "fleet.json"
    file.write_bytes(text)
    result = CliRunner().invoke(main, ["explain", "--snapshot", str(file)], input=chat(1))
    assert result.exit_code == 0, result.output
    assert "cold, since a snapshot does not hold the prefix index" in result.stdout
    assert all(address in result.stdout for address in stack.replicas)


def test_a_request_over_the_limit_is_told_as_the_gateway_would_answer_it(stack: Stack) -> None:
    result = CliRunner().invoke(main, ["explain", "--admin", admin(stack)], input=b"x" * 70_000)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "larger than limits.body" in result.stderr


def test_the_path_says_how_the_body_is_read(stack: Stack) -> None:
    body = json.dumps({"model": "demo", "prompt": SECRET}).encode()
    assert explained(stack, body, "--path", "/v1/completions")["request"]["dialect"] == "openai_completions"
    assert explained(stack, body)["outcome"] == "unreadable"


def metrics(stack: Stack, name: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{admin(stack)}/metrics", timeout=patient(5)) as answer:
        lines = answer.read().decode().splitlines()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)
    }


def test_a_shadow_is_counted_priced_and_recorded_and_routes_nothing(stack: Stack) -> None:
    before = sum(metrics(stack, "kvsteer_shadow_decisions_total").values())
    home = send(stack, chat(7))
    for _ in range(11):
        assert send(stack, chat(7)) == home, (
            "charged_cost keeps to the warm replica, whatever its shadow says"
        )
    counted = metrics(stack, "kvsteer_shadow_decisions_total")
    assert sum(counted.values()) == before + 12
    assert all('policy="least_request"' in series and 'pool="demo"' in series for series in counted)
    seconds = metrics(stack, "kvsteer_shadow_predicted_seconds_total")
    shadow, chosen = (
        sum(value for series, value in seconds.items() if f'choice="{choice}"' in series)
        for choice in ("shadow", "chosen")
    )
    assert shadow >= chosen > 0, "the policy minimizes what both are priced by"
    record = stack.admin("/decisions?last=1")["decisions"][0]
    assert (record["policy"], record["policy_version"]) == ("charged_cost", 0)
    assert record["shadow"]["policy"] == "least_request"
    assert record["shadow"]["choice"] in stack.replicas


def test_no_text_of_a_request_is_in_the_gateways_log(stack: Stack) -> None:
    explained(stack, chat(3))
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{admin(stack)}/explain", chat(3) * 100, timeout=patient(5))
    refused.value.close()
    assert SECRET.strip() not in stack.children["gateway-0"].log.read_text()
