"""A comparison of policies as a table and as JSON. Nothing in them depends on when or where it was made."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table
from rich.text import Text

from extproc.sim.outcome import Outcome
from extproc.sim.summary import METRICS, WARM_UP, over_seeds

#: Columns of the table; the JSON has every metric.
_SHOWN = (
    "ttft_mean", "ttft_p50", "ttft_p90", "ttft_p99", "tpot_mean", "hit_share", "imbalance", "imbalance_span",
    "good_share", "goodput",
)  # fmt: skip
_COUNTS = ("failed", "rejected", "unfinished", "short")


@dataclass(slots=True)
class Result:
    """One policy: a summary for every seed, and the outcome of the first, for charts."""

    policy: str
    runs: list[dict[str, float | None]] = field(default_factory=list)
    outcome: Outcome | None = None
    troubles: dict[str, int] = field(default_factory=dict)


def table_of(results: Sequence[Result], title: str) -> Table:
    """Policies against metrics: the mean over the seeds, and under it the range when there are several."""
    table = Table(title=Text(title), title_justify="left")
    table.add_column("policy")
    for name in _SHOWN:
        table.add_column(METRICS[name][0], justify="right")
    counts = [name for name in _COUNTS if any(_of(result, name) not in ("0", "-") for result in results)]
    for name in counts:
        table.add_column(METRICS[name][0], justify="right")
    for result in results:
        table.add_row(result.policy, *(_of(result, name) for name in (*_SHOWN, *counts)))
    return table


def remarks(results: Sequence[Result]) -> list[str]:
    """What is to be said of the numbers that there are not; nothing when all are there."""
    if all(_of(result, name) != "-" for result in results for name in _SHOWN):
        return []
    left_out = f"The first {WARM_UP:.0%} of arrivals, at least one, are left out"
    needed = "TTFT needs a first token, TPOT an answer of two tokens"
    return [f"-: nothing to tell it from. {left_out}; {needed}. Play more requests."]


def _of(result: Result, name: str) -> str:
    found = over_seeds(result.runs, name)
    if found is None:
        return "-"
    mean, least, most = found
    digits = METRICS[name][1]
    text = f"{mean:.{digits}f}"
    if len(result.runs) == 1 or f"{least:.{digits}f}" == f"{most:.{digits}f}":
        return text
    return f"{text}\n{least:.{digits}f}..{most:.{digits}f}"


def as_json(results: Sequence[Result], inputs: dict[str, Any], seeds: Sequence[int]) -> str:
    """Everything of the comparison: what went in, and every metric of every run."""
    runs = [
        {"policy": result.policy, "seed": seed, **{key: _rounded(value) for key, value in run.items()}}
        for result in results
        for seed, run in zip(seeds, result.runs, strict=True)
    ]
    troubles = {result.policy: result.troubles for result in results if result.troubles}
    return json.dumps({"inputs": inputs, "runs": runs, "troubles": troubles}, indent=1, sort_keys=True) + "\n"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
