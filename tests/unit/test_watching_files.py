"""Alert rules and dashboards as files: checked, up to date, and leading to pages that exist."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

from tests.unit.yamls import read_yaml

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "kvsteer-alerts.yml"
GRAFANA = ROOT / "deploy" / "grafana"


def rules() -> list[dict[str, object]]:
    return [rule for group in read_yaml(RULES.read_text())["groups"] for rule in group["rules"]]


def test_each_alert_has_its_own_name_a_severity_and_a_runbook_that_speaks_of_it() -> None:
    pages: dict[str, str] = {}
    for rule in rules():
        page, _, anchor = rule["annotations"]["runbook"].partition("#")  # type: ignore[index]
        text = pages.setdefault(page, (ROOT / page).read_text())
        heads = {re.sub(r"[^a-z0-9 ]", "", head.lower()).replace(" ", "-"): head
                 for head in re.findall(r"^## (.*)$", text, re.MULTILINE)}  # fmt: skip
        assert anchor in heads, rule["alert"]
        section = text.partition(f"## {heads[anchor]}\n")[2].partition("\n## ")[0]
        assert f"`{rule['alert']}`" in section, f"{rule['alert']} is not in {heads[anchor]}"
        assert rule["labels"]["severity"] in ("warning", "critical")  # type: ignore[index]
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))


def test_runbooks_speak_of_no_alert_that_is_not_there() -> None:
    named = set(re.findall(r"`(Kvsteer\w+)`", (ROOT / "docs" / "runbooks.md").read_text()))
    assert named == {rule["alert"] for rule in rules()}


def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make", GRAFANA / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_dashboards_are_what_their_maker_writes() -> None:
    make = maker()
    written = {path.stem: path.read_text() for path in GRAFANA.glob("*.json")}
    assert written == {name: make.text(name) for name in make.DASHBOARDS}


AUTOSCALING = ROOT / "deploy" / "autoscaling"


def metrics_named(text: str) -> set[str]:
    return set(re.findall(r"kvsteer_[a-z_]+", text))


def test_autoscalers_follow_metrics_that_are_documented_and_that_the_tests_see_exposed() -> None:
    documented = set(
        re.findall(r"^\| `(kvsteer_\w+)` \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
    )
    files = sorted(AUTOSCALING.glob("*.yaml"))
    assert [path.name for path in files] == ["hpa.yaml", "keda.yaml", "prometheus-adapter.yaml"]
    for path in files:
        named = metrics_named(path.read_text())
        assert named
        assert named <= documented, path.name


def test_the_hpa_asks_for_the_metric_that_the_adapter_serves_and_both_scalers_agree() -> None:
    hpa = read_yaml((AUTOSCALING / "hpa.yaml").read_text())["spec"]
    keda = read_yaml((AUTOSCALING / "keda.yaml").read_text())["spec"]
    rule = read_yaml((AUTOSCALING / "prometheus-adapter.yaml").read_text())["rules"]["external"][0]
    external = hpa["metrics"][0]["external"]
    assert external["metric"]["name"] == rule["name"]["as"]
    assert rule["seriesQuery"].startswith(rule["name"]["as"])
    assert external["target"] == {
        "type": "AverageValue",
        "averageValue": keda["triggers"][0]["metadata"]["threshold"],
    }
    assert keda["triggers"][0]["metricType"] == "AverageValue"
    assert keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == hpa["behavior"]
    assert (keda["minReplicaCount"], keda["maxReplicaCount"]) == (hpa["minReplicas"], hpa["maxReplicas"])
    assert keda["scaleTargetRef"]["name"] == hpa["scaleTargetRef"]["name"]
