"""What promtool says of the rules and of a gateway's metrics."""

import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from extproc.app import Gateway
from extproc.config import parse
from tests.integration.patience import patient

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (package prometheus)"
)

RULES = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
_TEXT = """
grpc: {transport: fast}
redis: {url: "redis://127.0.0.1:1"}
admission: {mode: "on", others: {tokens_per_minute: 1000}}
tracing: {endpoint: "http://127.0.0.1:1"}
pools: [{late_binding: on, replicas: ["10.0.0.1:8000", "10.0.0.2:8000"]}]
"""


def promtool(*arguments: str, given: bytes = b"") -> str:
    done = subprocess.run(
        ["promtool", *arguments],
        cwd=RULES,
        input=given,
        capture_output=True,
        timeout=patient(30),
        check=False,
    )
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


def test_promtool_finds_no_fault_in_the_rules() -> None:
    promtool("check", "rules", "kvsteer-alerts.yml")


def test_rules_fire_and_clear_on_series_written_by_hand() -> None:
    promtool("test", "rules", "kvsteer-alerts-test.yml")


def test_promtool_finds_nothing_wrong_with_names_and_helps_of_metrics() -> None:
    exposed = generate_latest(Gateway(parse(_TEXT, "test")).prometheus)
    assert promtool("check", "metrics", given=exposed) == ""
