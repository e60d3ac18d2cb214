"""Writes the dashboards beside this file: `python deploy/grafana/make.py`. A test keeps them up to date.

Each panel is a line below: title, unit (Grafana's name), and queries with their legends. `$job`, `$pool` and `$span`
are variables of the dashboard.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_Panel = tuple[str, str, dict[str, str]]

_KV = 'job=~"$job"'
_POOL = 'job=~"$job", pool=~"$pool"'


def _rate(name: str, by: str, where: str = _KV) -> str:
    return f"sum by ({by}) (rate({name}{{{where}}}[$span]))"


def _settled(kind: str) -> str:
    return _rate("kvsteer_settled_tokens_total", "pool", f'{_POOL}, kind="{kind}"')


def _quantile(q: float, name: str, by: str = "") -> str:
    return f"histogram_quantile({q:g}, {_rate(f'{name}_bucket', f'{by}, le' if by else 'le')})"


def _best(name: str, labels: str = "pool, replica") -> str:
    """Of gateways that each say what they believe of the same replica, the highest."""
    return f"max by ({labels}) ({name}{{{_POOL}}})"


FLEET: list[_Panel] = [
    ("Replicas that may be chosen", "short", {
        f"sum by (pool) ({_best('kvsteer_replica_candidate')})": "{{pool}}"}),
    ("Replicas that may not, and why", "short", {
        f"count by (pool, reason) ({_best('kvsteer_replica_excluded', 'pool, replica, reason')}) or vector(0)":
            "{{pool}} {{reason}}"}),
    ("Headroom, 1 is idle", "percentunit", {_best("kvsteer_replica_headroom"): "{{replica}}"}),
    ("Prompt work ahead", "s", {_best("kvsteer_replica_backlog_seconds"): "{{replica}}"}),
    ("Requests in flight", "short", {_best("kvsteer_replica_requests_in_flight"): "{{replica}}"}),
    ("Tokens in flight", "short", {_best("kvsteer_replica_tokens_in_flight"): "{{replica}}"}),
    ("Share of requests it may get", "percentunit", {_best("kvsteer_replica_share"): "{{replica}}"}),
    ("Slow, or breaker open", "short", {
        _best("kvsteer_replica_slow"): "{{replica}} slow",
        _best("kvsteer_replica_breaker_open"): "{{replica}} breaker"}),
    ("Prefill speed, as learned", "short", {
        _best("kvsteer_replica_prefill_tokens_per_second"): "{{replica}}",
        _best("kvsteer_pool_prefill_tokens_per_second", "pool"): "{{pool}}: setting"}),
    ("Output speed, as learned", "short", {_best("kvsteer_replica_decode_tokens_per_second"): "{{replica}}"}),
    ("Age of samples", "s", {
        f"min by (pool, replica) (kvsteer_replica_sample_age_seconds{{{_POOL}}})": "{{replica}}"}),
    ("Scrapes that fail", "ops", {
        f"{_rate('kvsteer_scrape_failures_total', 'reason')} or vector(0)": "{{reason}}"}),
]  # fmt: skip

ROUTING: list[_Panel] = [
    ("Requests by outcome", "reqps", {_rate("kvsteer_exchanges_total", "outcome, why"): "{{outcome}} {{why}}"}),
    ("Requests by replica", "reqps", {_rate("kvsteer_picks_total", "replica", _POOL): "{{replica}}"}),
    ("Decisions by reason", "reqps", {_rate("kvsteer_picks_total", "pool, reason", _POOL): "{{pool}} {{reason}}"}),
    ("Cached share of prompt tokens", "percentunit", {
        f"{_rate('kvsteer_predicted_cached_tokens_total', 'pool', _POOL)} / "
        f"{_rate('kvsteer_prompt_tokens_total', 'pool', _POOL)}": "{{pool}} predicted",
        f"{_settled('cached')} / {_settled('input')}": "{{pool}} found"}),
    ("Predicted hits that came true", "percentunit", {_best("kvsteer_replica_cache_precision"): "{{replica}}"}),
    ("What a predicted hit counts for", "percentunit", {_best("kvsteer_replica_cache_scale"): "{{replica}}"}),
    ("Prefixes believed held", "short", {_best("kvsteer_replica_index_entries"): "{{replica}}"}),
    ("Tokens", "short", {
        _rate("kvsteer_settled_tokens_total", "pool, kind", _POOL): "{{pool}} {{kind}}",
        _rate("kvsteer_prompt_tokens_total", "pool", _POOL): "{{pool}} input, estimated"}),
    ("Endings", "reqps", {
        _rate("kvsteer_endings_total", "pool, by, status", _POOL): "{{pool}} {{by}} {{status}}"}),
    ("Served by another replica than chosen, and who failed", "reqps", {
        _rate("kvsteer_retried_total", "pool", _POOL): "{{pool}}",
        f"{_rate('kvsteer_failed_tries_total', 'replica', _POOL)} or vector(0)": "{{replica}} failed"}),
    ("Prompt work ahead: mean relative error", "percentunit", {
        f"{_rate('kvsteer_backlog_off_seconds_total', 'pool, source', _POOL)} / "
        f"({_rate('kvsteer_backlog_seen_seconds_total', 'pool, source', _POOL)} > 0) or vector(0)":
            "{{pool}} {{source}}"}),
    ("Policy version", "short", {_best("kvsteer_policy_version", "pool, policy"): "{{pool}} {{policy}}"}),
]  # fmt: skip

ADMISSION: list[_Panel] = [
    ("Answers", "reqps", {
        _rate("kvsteer_admission_answers_total", "pool, verdict, reason", _POOL): "{{pool}} {{verdict}} {{reason}}"}),
    ("Answers by tenant", "reqps", {
        _rate("kvsteer_admission_answers_total", "tenant, verdict", _POOL): "{{tenant}} {{verdict}}"}),
    ("Tokens settled, by tenant", "short", {
        _rate("kvsteer_admission_settled_tokens_total", "tenant", _POOL): "{{tenant}}"}),
    ("Tokens in flight, by tenant", "short", {
        f"sum by (tenant) (kvsteer_admission_tenant_used_tokens{{{_POOL}}})": "{{tenant}} used",
        f"sum by (tenant) (kvsteer_admission_tenant_leased_tokens{{{_POOL}}})": "{{tenant}} leased"}),
    ("Budget, and what is carried", "short", {
        _best("kvsteer_admission_budget_tokens", "pool"): "{{pool}} budget",
        _best("kvsteer_admission_capacity_tokens", "pool"): "{{pool}} capacity",
        _best("kvsteer_admission_runtime_tokens", "pool"): "{{pool}} carried"}),
    ("Tokens rejected", "short", {_rate("kvsteer_admission_rejected_tokens_total", "pool", _POOL): "{{pool}}"}),
    ("Waiting for room", "short", {
        f"sum by (pool) (kvsteer_admission_waiting_requests{{{_POOL}}})": "{{pool}}"}),
    ("Held until a replica is nearly free", "short", {
        f"sum by (pool) (kvsteer_held_requests{{{_POOL}}})": "{{pool}}"}),
    ("How waiting ends", "reqps", {
        f"{_rate('kvsteer_waits_total', 'pool, how', _POOL)} or vector(0)": "{{pool}} {{how}}"}),
    ("Seconds held", "s", {
        f"{_quantile(0.5, 'kvsteer_held_seconds')} or vector(0)": "P50",
        f"{_quantile(0.99, 'kvsteer_held_seconds')} or vector(0)": "P99"}),
    ("Replicas: recommended, and there", "short", {
        _best("kvsteer_scale_recommended_replicas", "pool"): "{{pool}} recommended",
        f"sum by (pool) ({_best('kvsteer_replica_candidate')})": "{{pool}} there"}),
    ("Demand", "short", {_best("kvsteer_scale_demand_tokens", "pool"): "{{pool}}"}),
]  # fmt: skip

GATEWAYS: list[_Panel] = [
    ("Gateways that answer", "short", {f"up{{{_KV}}}": "{{instance}}"}),
    ("Decision time", "s", {
        _quantile(0.5, "kvsteer_decision_seconds", "instance"): "{{instance}} P50",
        _quantile(0.99, "kvsteer_decision_seconds", "instance"): "{{instance}} P99"}),
    ("Requests by gateway", "reqps", {_rate("kvsteer_exchanges_total", "instance"): "{{instance}}"}),
    ("Open requests", "short", {f"kvsteer_open_streams{{{_KV}}}": "{{instance}}"}),
    ("CPU, cores", "short", {_rate("process_cpu_seconds_total", "instance"): "{{instance}}"}),
    ("Memory", "bytes", {f"process_resident_memory_bytes{{{_KV}}}": "{{instance}}"}),
    ("Share of requests that Envoy sends on unsteered", "percentunit", {
        "sum by (job, envoy_http_conn_manager_prefix) (rate(envoy_http_ext_proc_failure_mode_allowed[$span])) / "
        "sum by (job, envoy_http_conn_manager_prefix) (rate(envoy_http_downstream_rq_total[$span]))": "{{job}}"}),
    ("Gateways that Envoy finds well", "short", {
        'envoy_cluster_membership_healthy{envoy_cluster_name="kvsteer_gateways"}': "{{instance}}"}),
    ("State shared through Redis", "short", {f"kvsteer_redis_up{{{_KV}}}": "{{instance}}"}),
    ("Redis calls that fail", "ops", {_rate("kvsteer_redis_errors_total", "instance"): "{{instance}}"}),
    ("How late others know", "s", {
        _quantile(0.5, "kvsteer_journal_delay_seconds", "instance"): "{{instance}} P50",
        _quantile(0.9, "kvsteer_journal_delay_seconds", "instance"): "{{instance}} P90"}),
    ("Journal", "Bps", {_rate("kvsteer_journal_bytes_total", "instance, way"): "{{instance}} {{way}}"}),
    ("News dropped or refused", "ops", {
        _rate("kvsteer_journal_dropped_total", "instance, kind"): "{{instance}} dropped: {{kind}}",
        f"{_rate('kvsteer_journal_refused_total', 'instance, reason')} or vector(0)":
            "{{instance}} refused: {{reason}}"}),
    ("Other gateways heard", "short", {f"kvsteer_journal_peers{{{_KV}}}": "{{instance}}"}),
    ("Holders of leases, 1 is right", "short", {f"sum by (lease) (kvsteer_lease_held{{{_KV}}})": "{{lease}}"}),
    ("Faults of the gateway", "ops", {
        _rate("kvsteer_internal_errors_total", "instance"): "{{instance}} requests",
        f"{_rate('kvsteer_task_failures_total', 'instance, task')} or vector(0)": "{{instance}} {{task}}"}),
]  # fmt: skip

DASHBOARDS = {
    "fleet": ("kvsteer: fleet", FLEET),
    "routing": ("kvsteer: routing", ROUTING),
    "admission": ("kvsteer: admission and tenants", ADMISSION),
    "gateways": ("kvsteer: gateways and Redis", GATEWAYS),
}
_SOURCE = {"type": "prometheus", "uid": "${source}"}


def dashboard(name: str) -> dict[str, Any]:
    """One dashboard as Grafana reads it."""
    title, panels = DASHBOARDS[name]
    return {
        "uid": f"kvsteer-{name}",
        "title": title,
        "tags": ["kvsteer"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "graphTooltip": 1,
        "links": [{"type": "dashboards", "tags": ["kvsteer"], "title": "kvsteer", "asDropdown": True}],
        "templating": {"list": list(_variables())},
        "panels": [_panel(number, *panel) for number, panel in enumerate(panels)],
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    for name, query in (
        ("job", "label_values(kvsteer_build_info, job)"),
        ("pool", 'label_values(kvsteer_replica_candidate{job=~"$job"}, pool)'),
    ):
        yield {
            "name": name, "label": name.capitalize(), "type": "query", "datasource": _SOURCE,
            "definition": query, "query": {"query": query, "refId": name}, "refresh": 2,
            "multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"},
        }  # fmt: skip
    yield {
        "name": "span", "label": "Rate over", "type": "custom", "query": "1m,5m,15m,1h",
        "current": {"text": "5m", "value": "5m"},
    }  # fmt: skip


def _panel(number: int, title: str, unit: str, queries: dict[str, str]) -> dict[str, Any]:
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": _SOURCE,
        "gridPos": {"h": 8, "w": 12, "x": number % 2 * 12, "y": number // 2 * 8},
        "fieldConfig": {
            "defaults": {"unit": unit, "min": 0, "custom": {"fillOpacity": 8, "showPoints": "never"}},
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "table", "placement": "right", "calcs": ["lastNotNull", "max"]},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
            for index, (query, legend) in enumerate(queries.items())
        ],
    }


def text(name: str) -> str:
    """The file of one dashboard."""
    return json.dumps(dashboard(name), indent=1) + "\n"


if __name__ == "__main__":
    for each in DASHBOARDS:
        Path(__file__).with_name(f"{each}.json").write_text(text(each))
