"""Queries of the runbooks name metrics and labels that there are, and commands that would run."""

import re

import pytest

from tests.runbooks import PAGE, queries

DOCS = PAGE.parent
#: What a runbook may ask of others: Envoy, Prometheus itself, its library for Python.
FOREIGN = re.compile(r"(envoy|process)_\w+|up")
#: Labels that Prometheus adds, those of Envoy, and the bound of a bucket.
USUAL = {"job", "instance", "le", "envoy_cluster_name"}
#: What is asked for in issues of operation, and has a runbook with its query.
HEADINGS = ("Hot replica", "Low hit share", "Held requests", "Redis down", "Gateway lag", "Canary bad")


def labels_of_metrics() -> dict[str, set[str]]:
    """Labels of every documented metric, which tests/unit/test_docs.py holds against those exposed."""
    rows = re.findall(
        r"^\| `(kvsteer_\w+)` \| \w+ \| (.*?) \|", (DOCS / "metrics.md").read_text(), re.MULTILINE
    )
    return {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}


def metrics_in(query: str) -> set[str]:
    """Names of metrics in a query: what is neither a function, a word of the language, a label nor a value."""
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]|\b(by|on|without|ignoring)\s*\([^)]*\)", " ", query)
    words = re.findall(r"[a-z_][a-z0-9_]*(?!\w|\s*\()", bare)
    return {
        word for word in words if word not in ("and", "or", "unless", "sum", "max", "min", "count", "topk")
    }


def labels_in(query: str) -> set[str]:
    """Labels that a query groups by or selects with."""
    listed = re.findall(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)", query)
    matched = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", query)
    return {label.strip() for text in listed for label in text.split(",")} | set(matched)


@pytest.mark.parametrize(("heading", "query"), queries())
def test_a_query_names_metrics_and_labels_that_there_are(heading: str, query: str) -> None:
    known = labels_of_metrics()
    named = metrics_in(query)
    assert named, "no metric was found in it"
    labels = set(USUAL)
    for name in named:
        plain = name.removesuffix("_bucket")
        assert plain in known or FOREIGN.fullmatch(name), f"{heading}: there is no {name}"
        labels |= known.get(plain, set())
    assert labels_in(query) <= labels, f"{heading}: {query}"


@pytest.mark.parametrize("heading", HEADINGS)
def test_what_goes_wrong_most_has_a_runbook_with_a_query_and_steps(heading: str) -> None:
    assert [shown for shown, _ in queries() if shown == heading], "no query"
    section = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    assert re.search(r"^1\. ", section, re.MULTILINE), "no steps"


@pytest.mark.parametrize(
    ("query", "metrics", "labels"),
    [
        (
            'sum by (pool, le) (rate(kvsteer_a_bucket{how="x"}[5m]))',
            {"kvsteer_a_bucket"},
            {"pool", "le", "how"},
        ),
        ("topk(3, kvsteer_b)", {"kvsteer_b"}, set()),
        ("kvsteer_c == 0 and on (job) up", {"kvsteer_c", "up"}, {"job"}),
    ],
)
def test_metrics_and_labels_are_found_in_a_query(query: str, metrics: set[str], labels: set[str]) -> None:
    assert (metrics_in(query), labels_in(query)) == (metrics, labels)
