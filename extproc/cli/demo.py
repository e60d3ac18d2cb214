"""kvsteer demo: the main job end to end on one machine, with figures."""

import asyncio
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

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
def command(redis_url: str | None, seconds: float, seed: int, keep: bool) -> None:
    """Compare round_robin with the default policy: a real Envoy, a real Redis, a gateway, four emulated replicas.

    The same chats (shared system prompts and documents, several turns) are sent twice through Envoy over HTTP,
    each time to fresh replicas. Exit status 0 when all went well and the default policy was ahead in hit share
    and mean time to first token; 1 otherwise.
    """
    console = Console()
    signal.signal(signal.SIGTERM, _as_interrupt)
    workload = arrivals(Shape(seconds=seconds, seed=seed))
    try:
        sys.exit(_compare(console, workload, redis_url, keep))
    except StackError as error:
        console.print(f"kvsteer demo: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        console.print("stopped; every process it started has ended")
        sys.exit(130)


def _compare(console: Console, workload: list[Arrival], redis_url: str | None, keep: bool) -> int:
    """Both runs, then what came of them; with `keep` the second one's processes stay until Ctrl-C. Exit status."""
    with _running(console, _BASELINE, redis_url) as stack:
        baseline = _send(console, stack, _BASELINE, workload)
    with _running(console, _OURS, redis_url) as stack:
        ours = _send(console, stack, _OURS, workload)
        console.print(_table([baseline, ours]))
        status = _verdict(console, baseline, ours)
        if keep:
            _leave_running(console, stack)
    return status


def _as_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def _running(console: Console, policy: str, redis_url: str | None) -> Iterator[Stack]:
    settings = StackSettings(policy=policy, redis_url=redis_url, engine=_ENGINE, pool=_pool())
    with console.status(f"starting Redis, 4 replicas, a gateway ({policy}) and Envoy ..."):
        stack = Stack(settings)
        stack.__enter__()
    try:
        yield stack
    finally:
        stack.close()


def _pool() -> dict[str, Any]:
    return {"capacity": {"prefill_speed": 8000, "output_tokens": 40}}


def _send(console: Console, stack: Stack, policy: str, workload: list[Arrival]) -> Report:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bars:
        bar = bars.add_task(f"{policy:>12}: chats through Envoy", total=len(workload))
        report = asyncio.run(drive(stack.url, workload, policy, lambda: bars.advance(bar)))
    stack.check()
    return report


def _leave_running(console: Console, stack: Stack) -> None:
    admin = stack.gateway_ports[0][1]
    console.print(
        f"\nAll is running. Try it:\n\n"
        f"  curl -i {stack.url}/v1/chat/completions -H 'content-type: application/json' \\\n"
        f'    -d \'{{"model": "{stack.settings.model}", "messages": [{{"role": "user", "content": "hello"}}]}}\'\n'
        f"  curl http://127.0.0.1:{admin}/decisions?last=1\n"
        f"  curl http://127.0.0.1:{admin}/replicas\n\nCtrl-C ends it.",
        soft_wrap=True,
        highlight=False,
    )
    try:
        while True:
            stack.check()
            time.sleep(0.5)
    except KeyboardInterrupt:
        console.print("stopping")


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


def _verdict(console: Console, baseline: Report, ours: Report) -> int:
    if baseline.failures or ours.failures:
        reasons = sorted({o.failure for r in (baseline, ours) for o in r.outcomes if o.failure})
        console.print(f"[red]some requests failed: {', '.join(reasons)}[/red]")
        return 1
    if ours.hit_share > baseline.hit_share and ours.mean_ttft < baseline.mean_ttft:
        times = baseline.mean_ttft / ours.mean_ttft
        console.print(
            f"{ours.policy}: mean time to first token {times:.1f} times shorter than {baseline.policy}."
        )
        return 0
    console.print(
        f"[red]{ours.policy} was not ahead; a busy machine blurs the figures, try --seconds 60[/red]"
    )
    return 1
