"""A comparison as one HTML file that needs nothing else: the table, and charts of the first seed's runs."""

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from extproc.sim.charts import Axis, Line, chart, top_of
from extproc.sim.outcome import Outcome
from extproc.sim.report import Result, remarks
from extproc.sim.summary import METRICS, WARM_UP, over_seeds

#: Replicas drawn one by one; of more, only the least, the mean and the most loaded at each moment.
_MOST_REPLICAS = 8

_STYLE = """
:root{color-scheme:light dark;--fg:#1b1f24;--bg:#fff;--dim:#667;--grid:#dde1e6}
@media(prefers-color-scheme:dark){:root{--fg:#e6e8eb;--bg:#14171a;--dim:#99a;--grid:#2c3238}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg);margin:2rem auto;padding:0 1rem}
body{max-width:1100px}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid var(--grid)}
th:first-child,td:first-child{text-align:left}
small{color:var(--dim);display:block}figure{margin:1rem 0}figcaption{font-weight:600}
svg{width:100%;max-width:760px;height:auto}svg text{font-size:11px;fill:var(--dim)}
.grid{stroke:var(--grid);fill:none}.line{fill:none;stroke-width:1.8}
.key{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:.2rem 1rem;font-size:.85rem;margin:.2rem 0}
.key i{display:inline-block;width:.9em;height:.9em;border-radius:2px;margin-right:.35em;vertical-align:-.1em}
pre{white-space:pre-wrap;font-size:.8rem;color:var(--dim)}
"""
_COLOURS = ("#2f6fde", "#d9622b", "#2a9d5c", "#8b5bd1", "#c23b6a", "#1a9fb0", "#a5851f", "#6b7680")


def page(results: Sequence[Result], inputs: dict[str, Any], title: str) -> str:
    """The whole file. Same results, same bytes."""
    colours = "".join(f".c{i}{{stroke:{c}}}.k{i}{{background:{c}}}" for i, c in enumerate(_COLOURS))
    drawn = [(result.policy, result.outcome) for result in results if result.outcome is not None]
    loads = "".join(
        f"<h2>Load of the replicas: {escape(name)}</h2>{_load(outcome)}" for name, outcome in drawn
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}{colours}</style></head><body>'
        f"<h1>{escape(title)}</h1>{_table(results)}"
        f"<h2>Time to first token</h2>{_cdf(drawn)}<h2>Prefix cache</h2>{_hits(drawn)}{loads}"
        f"<h2>Inputs</h2><pre>{escape(json.dumps(inputs, indent=1, sort_keys=True))}</pre></body></html>\n"
    )


def _table(results: Sequence[Result]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading, _ in METRICS.values())
    rows = "".join(
        f"<tr><td>{escape(result.policy)}</td>{''.join(_cell(result, name) for name in METRICS)}</tr>"
        for result in results
    )
    table = f"<thead><tr><th>policy</th>{head}</tr></thead><tbody>{rows}</tbody>"
    said = "".join(f"<small>{escape(line)}</small>" for line in remarks(results))
    return f'<div class="wide"><table>{table}</table>{said}</div>'


def _cell(result: Result, name: str) -> str:
    found = over_seeds(result.runs, name)
    if found is None:
        return "<td>-</td>"
    digits = METRICS[name][1]
    mean, least, most = (f"{value:.{digits}f}" for value in found)
    return f"<td>{mean}{'' if least == most else f'<small>{least}..{most}</small>'}</td>"


def _cdf(drawn: Sequence[tuple[str, Outcome]]) -> str:
    lines = []
    for name, outcome in drawn:
        values = sorted(
            t
            for t, n in zip(outcome.ttft, outcome.number, strict=True)
            if t > 0 and n >= outcome.arrivals * WARM_UP
        )
        lines.append(Line(name, [(value, (i + 1) / len(values)) for i, value in enumerate(values)]))
    longest = max([1.0, *(line.points[-1][0] for line in lines if line.points)])
    title = "Share of requests with a first token within so many seconds"
    return chart(lines, Axis("seconds", 0.01, longest, log=True), Axis(title, 0.0, 1.0), title)


def _hits(drawn: Sequence[tuple[str, Outcome]]) -> str:
    lines = [
        Line(
            name,
            [
                (i * outcome.span / 60, hit / (hit + computed))
                for i, (hit, computed) in enumerate(zip(outcome.hits, outcome.computed, strict=True))
                if hit + computed > 0
            ],
        )
        for name, outcome in drawn
    ]
    title = "Share of prompt tokens found in the cache, over time"
    return chart(lines, _minutes(drawn), Axis(title, 0.0, top_of(lines, 0.1)), title)


def _load(outcome: Outcome) -> str:
    series = outcome.load
    if len(series) > _MOST_REPLICAS:
        moments = [sorted(values) for values in zip(*series.values(), strict=False)]
        series = {
            "least": [values[0] for values in moments],
            "mean": [round(sum(values) / len(values)) for values in moments],
            "most": [values[-1] for values in moments],
        }
    lines = [
        Line(name, [(i * outcome.span / 60, float(value)) for i, value in enumerate(values)])
        for name, values in series.items()
    ]
    title = "Requests on each replica, running and queued"
    return chart(lines, _minutes([("", outcome)]), Axis(title, 0.0, top_of(lines, 1.0)), title)


def _minutes(drawn: Sequence[tuple[str, Outcome]]) -> Axis:
    return Axis("minutes", 0.0, max([1.0, *(len(o.hits) * o.span / 60 for _, o in drawn)]))
