"""kvsteer demo: the main job end to end on one machine, with figures."""

import asyncio
import json
import math
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from extproc.cli.about import INTERRUPTED
from extproc.cli.admin_port import fail, json_option
from extproc.cli.terminal import console, progress
from extproc.demo import kept
from extproc.demo.drive import Report, drive
from extproc.demo.processes import StackError
from extproc.demo.stack import Stack, StackSettings
from extproc.demo.workload import Arrival, Shape, arrivals

#: Emulated replicas slow enough that two cores carry four of them, fast enough for a demo of two minutes.
_ENGINE = ["--prefill-speed", "8000", "--kv-tokens", "120000"]
_BASELINE, _OURS = "round_robin", "charged_cost"


@click.command()
@click.option("--redis", "redis_url", metavar="URL", help="Use this Redis instead of starting one.")
@click.option(
    "--seconds", type=click.FloatRange(5, 600), default=36.0, show_default=True, help="Length of each run."
)
@click.option("--seed", type=int, default=7, show_default=True, help="Seed of the workload.")
@click.option("--keep", is_flag=True, help="Leave everything running afterwards, and print how to use it.")
@json_option
def command(redis_url: str | None, seconds: float, seed: int, keep: bool, as_json: bool) -> None:
    """Compare round_robin with the default policy: a real Envoy, a real Redis, a gateway, four emulated replicas.

    The same chats (shared system prompts and documents, several turns) are sent twice through Envoy over HTTP,
    each time to fresh replicas.
    """
    signal.signal(signal.SIGTERM, _as_interrupt)
    workload = arrivals(Shape(seconds=seconds, seed=seed))
    try:
        sys.exit(_compare(workload, redis_url, keep, as_json))
    except StackError as error:
        fail(f"demo: {error}", 1)
    except KeyboardInterrupt:
        fail("demo: stopped; every process it started has ended", INTERRUPTED)


def _compare(workload: list[Arrival], redis_url: str | None, keep: bool, as_json: bool) -> int:
    """Both runs, then what came of them; with `keep` the second one's processes stay until Ctrl-C. Exit status."""
    with _running(_BASELINE, redis_url) as stack:
        baseline = _send(stack, _BASELINE, workload)
    with _running(_OURS, redis_url, keep=keep) as stack:
        ours = _send(stack, _OURS, workload)
        verdict, status = _verdict(baseline, ours)
        if as_json:
            click.echo(
                json.dumps({"runs": [_record(r) for r in (baseline, ours)], "ahead": status == 0}, indent=2)
            )
        else:
            console().print(_table([baseline, ours]))
            click.echo(verdict)
        if keep:
            _leave_running(stack, as_json)
    return status


def _as_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def _running(policy: str, redis_url: str | None, *, keep: bool = False) -> Iterator[Stack]:
    settings = StackSettings(policy=policy, redis_url=redis_url, engine=_ENGINE, pool=_pool())
    click.echo(f"{policy}: starting Redis, 4 replicas, a gateway and Envoy ...", err=True)
    stack = Stack(settings)
    try:
        if keep:
            kept.unlock(stack)
        stack.__enter__()
        yield stack
    finally:
        stack.close()


def _pool() -> dict[str, Any]:
    return {"capacity": {"prefill_speed": 8000, "output_tokens": 40}}


def _send(stack: Stack, policy: str, workload: list[Arrival]) -> Report:
    click.echo(f"{policy}: {len(workload)} chats through Envoy ...", err=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with progress(*columns) as bars:
        bar = bars.add_task(policy, total=len(workload))
        report = asyncio.run(drive(stack.url, workload, policy, lambda: bars.advance(bar)))
    stack.check()
    return report


def _leave_running(stack: Stack, as_json: bool) -> None:
    """Say how it is used, and wait for Ctrl-C. Raises StackError when that dies without which nothing goes on."""
    click.echo(kept.guide(stack), err=as_json)
    told: set[str] = set()
    try:
        while True:
            for death in kept.deaths(stack, told):
                click.echo(death, err=True)
            time.sleep(0.5)
    except KeyboardInterrupt:
        click.echo("stopping", err=True)


def _table(reports: list[Report]) -> Table:
    table = Table(title="The same chats through Envoy, fresh replicas each time")
    table.add_column("")
    for report in reports:
        table.add_column(report.policy, justify="right")
    rows: list[tuple[str, list[str]]] = [
        ("requests", [str(len(r.outcomes)) for r in reports]),
        ("failures", [str(r.failures) for r in reports]),
        ("TTFT mean", [_ms(r.mean_ttft) for r in reports]),
        ("TTFT P50", [_ms(r.ttft_at(0.5)) for r in reports]),
        ("TTFT P99", [_ms(r.ttft_at(0.99)) for r in reports]),
        ("cache-hit share", [f"{r.hit_share:.1%}" for r in reports]),
        ("requests per replica", [", ".join(map(str, sorted(r.per_replica.values()))) for r in reports]),
    ]
    for name, cells in rows:
        table.add_row(name, *cells)
    return table


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"


def _record(report: Report) -> dict[str, Any]:
    """One run as numbers; times in seconds, None where nothing came back."""
    times = {"ttft_mean": report.mean_ttft, "ttft_p50": report.ttft_at(0.5), "ttft_p99": report.ttft_at(0.99)}
    return {
        "policy": report.policy,
        "requests": len(report.outcomes),
        "failures": report.failures,
        **{name: round(value, 6) if math.isfinite(value) else None for name, value in times.items()},
        "hit_share": round(report.hit_share, 6),
        "per_replica": dict(sorted(report.per_replica.items())),
    }


def _verdict(baseline: Report, ours: Report) -> tuple[str, int]:
    """What came of it in a sentence, and the exit status."""
    if baseline.failures or ours.failures:
        reasons = sorted({o.failure for r in (baseline, ours) for o in r.outcomes if o.failure})
        return f"some requests failed: {', '.join(reasons)}", 1
    if ours.hit_share > baseline.hit_share and ours.mean_ttft < baseline.mean_ttft:
        times = baseline.mean_ttft / ours.mean_ttft
        return f"{ours.policy}: mean time to first token {times:.1f} times shorter than {baseline.policy}.", 0
    return f"{ours.policy} was not ahead; a busy machine blurs the figures, try --seconds 60", 1
