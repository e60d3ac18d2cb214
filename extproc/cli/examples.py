"""Lines shown below each command's help: what people type most."""

from typing import Final

EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "serve": ("kvsteer serve -c kvsteer.yaml",),
    "demo": ("kvsteer demo", "kvsteer demo --keep"),
    "check-config": ("kvsteer check-config kvsteer.yaml",),
    "envoy-config": ("kvsteer envoy-config -c kvsteer.yaml --output envoy.yaml",),
    "simulate": (
        "kvsteer simulate --generate chat:rate=6,requests=3000",
        "kvsteer simulate trace.jsonl --policies charged_cost,cache_aware --html out.html",
    ),
    "explain": ("kvsteer explain request.json", "kvsteer explain request.json --json"),
    "policy": (
        "kvsteer policy list -c kvsteer.yaml",
        'kvsteer policy set charged_cost gain=4 -c kvsteer.yaml --why "less queueing at noon"',
        'kvsteer policy rollback -c kvsteer.yaml --why "P99 went up"',
    ),
    "versions": (
        "kvsteer versions list",
        'kvsteer versions set llama v2=5 --why "canary"',
        'kvsteer versions rollback llama --why "odd answers"',
    ),
    "record": ("kvsteer record --for 10m -o trace.jsonl",),
    "tune": ("kvsteer tune trace.jsonl --try gain=2:3:5 --seeds 0,1,2",),
    "replicas": ("kvsteer replicas", "kvsteer replicas --json"),
    "state": ("kvsteer state -c kvsteer.yaml", "kvsteer state --check --admin http://10.0.0.8:9095"),
    "drain": ("kvsteer drain 10.0.0.2:8000", "kvsteer drain 10.0.0.2:8000 --deadline 10m"),
    "undrain": ("kvsteer undrain 10.0.0.2:8000",),
    "report": ("kvsteer report 10.0.0.2:8000 --gateway http://10.0.1.1:9095",),
    "engine": ("kvsteer engine --port 8001", "kvsteer engine --count 4 --port 8001"),
}


def below(name: str) -> str:
    """The end of a command's help: its examples, and where its exit statuses are."""
    lines = "\n".join(f"  {line}" for line in EXAMPLES.get(name, ()))
    shown = f"\b\nExamples:\n{lines}\n\n" if lines else ""
    return f"{shown}Exit statuses and more: docs/commands.md."
