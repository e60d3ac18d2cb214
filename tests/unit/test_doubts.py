"""What settings say in vain is told as a warning, and is no fault."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from extproc.cli.check_config import command
from extproc.config import parse
from extproc.core.policies import POLICIES
from extproc.doubts import WEIGHING, doubts
from extproc.faults import path_of

ONE = 'replicas: ["10.0.0.1:8000"]'
OTHER = 'replicas: ["10.0.0.2:8000"]'


def said(*groups: str, more: str = "") -> dict[str, str]:
    text = "pools:\n" + "\n".join(f"  - {{{group}}}" for group in groups) + f"\n{more}\n"
    return {path_of(loc): sentence for loc, sentence in doubts(parse(text, "x"))}


def test_an_ordinary_configuration_leaves_no_doubt() -> None:
    assert said(ONE) == {}
    assert said(f"retries: {{share: 0.2}}, {ONE}") == {}
    assert said("name: a, replicas: [{address: '10.0.0.1:8000', cost: 2}]") == {}
    assert said(f"engine: vllm, factor: {{metric: x}}, {ONE}") == {}


def test_a_bound_on_retries_that_are_never_made() -> None:
    assert said(f"retries: {{share: 0.2}}, {ONE}", more="envoy: {retries: 0}") == {
        "pools[0].retries": "bounds tries that Envoy never makes, as envoy.retries is 0; raise that, or remove this"
    }
    assert said(f"retries: {{domain_label: zone}}, {ONE}", more="envoy: {retries: 0}") == {}


def test_retries_of_which_nobody_says_where_they_go() -> None:
    none = "requests: {fallbacks: 0}"
    drained = (
        "names one replica, so Envoy sends retries to any, replicas that drain among them; raise it, or set "
        "envoy.retries to 0, or set envoy.eds_dir"
    )
    assert said(ONE, more=none) == {"requests.fallbacks": drained}
    assert said(ONE, more=f"{none}\nenvoy: {{retries: 0}}") == {}
    assert said(ONE, more=f"{none}\nenvoy: {{steering: original_dst}}") == {}
    assert said(ONE, more="requests: {fallbacks: 1}") == {}
    assert said(ONE, more=f"{none}\nenvoy: {{eds_dir: /eds}}") == {}


def test_retries_that_may_carry_a_rank_to_whoever_lacks_it() -> None:
    pool, none = f"ranks: {{enabled: true}}, {ONE}", "requests: {fallbacks: 0}"
    lacking = "replicas that lack the rank in ranks.header among them; raise it, or set envoy.retries to 0"
    assert said(pool, more=f"{none}\nenvoy: {{eds_dir: /eds}}") == {
        "requests.fallbacks": f"names one replica, so Envoy sends retries to any, {lacking}"
    }
    both = said(pool, more=none)["requests.fallbacks"]
    assert both.endswith(f"any, replicas that drain and {lacking}")


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_costs_that_the_policy_does_not_weigh(policy: str) -> None:
    """Seen in each policy's source: which read a replica's cost or bias."""
    pool = f"engine: vllm, factor: {{metric: x}}, policy: {policy}, replicas: [{{address: '10.0.0.1:1', cost: 2}}]"
    told = said(pool)
    if policy in WEIGHING:
        assert told == {}
    else:
        assert told.keys() == {"pools[0].factor", "pools[0].replicas[0].cost"}
        assert told["pools[0].factor"].startswith(
            f"changes nothing, as the policy {policy} weighs no costs; write"
        )


def test_a_factor_where_no_metrics_are_read() -> None:
    told = said(f"engine: vllm, factor: {{metric: x}}, metrics: {{enabled: false}}, {ONE}")
    assert told.keys() == {"pools[0].factor.metric"}


def test_a_factor_that_is_always_one() -> None:
    told = said(f"engine: vllm, factor: {{metric: x, low: 1, high: 1}}, {ONE}")
    assert told == {
        "pools[0].factor": "is always 1, as low and high are; lower low, raise high, or remove it"
    }


V1 = "name: a, models: [x], version: v1, mirror: {pool: b, share: 0.5}"
V2 = f"name: b, models: [x], version: v2, weight: 0, {OTHER}"


def test_a_mirror_to_engines_that_know_the_model_by_another_name() -> None:
    assert said(f"{V1}, {ONE}", V2) == {}
    told = said(f"{V1}, served_as: {{x: l1}}, {ONE}", f"{V2}, served_as: {{x: l2}}")
    assert told["pools[0].mirror.pool"] == (
        "requests for 'x' go to 'b' as 'l1' too, as Envoy copies them, and its engines are said to know 'l2'; "
        "let them answer to 'l1' as well"
    )


def test_a_mirror_of_kinds_that_the_other_pool_does_not_take() -> None:
    told = said(f"{V1}, {ONE}", f"{V2}, kinds: [generate]")
    assert told["pools[0].mirror.pool"].startswith("'b' gets embed and rerank requests too")


def test_a_mirror_that_is_off_leaves_no_doubt() -> None:
    off = V1.replace("0.5", "0")
    assert said(f"{off}, served_as: {{x: l1}}, {ONE}", f"{V2}, served_as: {{x: l2}}") == {}


@pytest.mark.parametrize("redis", ["", "redis://127.0.0.1:6379/0"])
def test_loading_adapters_where_gateways_would_not_know_of_each_other(redis: str) -> None:
    loading = "adapters: {enabled: true, loading: {enabled: true, paths: {sql: /lora/sql}}}"
    found = said(f"engine: vllm, {loading}, {ONE}", more=f"redis: {{url: '{redis}'}}" if redis else "")
    assert list(found) == ([] if redis else ["pools[0].adapters.loading"])


def test_check_config_warns_and_calls_it_good(tmp_path: Path) -> None:
    path = tmp_path / "k.yaml"
    path.write_text(f"pools:\n  - retries: {{share: 0.2}}\n    {ONE}\nenvoy: {{retries: 0}}\n")
    told = CliRunner().invoke(command, [str(path)])
    assert told.exit_code == 0
    assert told.stdout == f"{path}: good; pools: default (1 replica)\n"
    assert told.stderr.startswith(f"warning: {path}:2: pools[0].retries: bounds tries that Envoy never makes")
    record = json.loads(CliRunner().invoke(command, [str(path), "--json"]).stdout)
    assert (record["good"], record["faults"]) == (True, [])
    (warning,) = record["warnings"]
    assert warning["line"] == 2
    assert warning["warning"].startswith("pools[0].retries: bounds tries")
