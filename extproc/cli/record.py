"""kvsteer record: what running gateways are asked for, as a trace for `kvsteer simulate`."""

import json
import secrets
import statistics
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from extproc.cli.admin_port import ADMIN, BadUrl, call, checked_url, fail, open_url
from extproc.cli.drain import seconds as seconds_of
from extproc.cli.inputs import FILE, NotWritable, check_outputs
from extproc.cli.terminal import plain, progress
from extproc.sim.recorded import Places, row_of

#: Seconds in which a gateway must say something: it ends by itself half a minute after the time is up.
_SILENCE = 60.0
#: Requests of a trace at most, and bytes of one line of a recording.
_MOST = 1_000_000
_LONGEST_LINE = 4 * 2**20
#: Seconds between looks whether it is over.
_LOOK = 0.25


@click.command()
@click.option(
    "--for", "span", required=True, metavar="TIME", help="How long, e.g. 90s, 10m, 1h; at most 24h."
)
@click.option("-o", "--output", type=FILE, required=True, metavar="FILE", help="The trace that is written.")
@click.option(
    "--admin", "admins", multiple=True, metavar="URL", help="Admin port of a gateway; may be repeated."
)
@click.option("--pool", help="Requests of this pool alone.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def command(span: str, output: str, admins: tuple[str, ...], pool: str | None, as_json: bool) -> None:
    """Record requests of running gateways as a trace: when, how long, what prefixes they share; no text.

    Prompts are kept as hashes keyed with a word that is thrown away. Of several gateways, name each with --admin.
    Ctrl-C ends it early, and what came is written.
    """
    seconds = seconds_of(span, "--for")
    if not 1 <= seconds <= 24 * 3600:
        fail(f"--for {span}: must be from 1s to 24h", 2)
    try:
        urls = [checked_url(admin) for admin in admins or (ADMIN,)]
        check_outputs({"--output": Path(output)}, [])
    except (BadUrl, NotWritable) as error:
        fail(str(error), 2)
    engine = _engine(call(urls[0], "/snapshot", "pools"), pool)
    recording = _Recording(urls, seconds, pool)
    recording.run(quiet=as_json)
    if recording.faults:
        fail(plain("; ".join(recording.faults)), 1)
    rows = sorted(recording.rows, key=lambda row: float(row["timestamp"]))
    if not rows:
        fail("no request came to its end in that time, so there is no trace", 2)
    try:
        Path(output).write_text("".join(json.dumps(row) + "\n" for row in rows))
    except OSError as error:
        fail(f"--output {output}: can't be written: {error.strerror}", 2)
    _tell(output, rows, recording.left_out, engine, as_json)


class _Recording:
    """Rows of several gateways as they come, each followed by a thread of its own.

    Args:
        urls: admin ports.
        seconds: how long.
        pool: requests of this pool alone; None for all.
    """

    def __init__(self, urls: Sequence[str], seconds: float, pool: str | None) -> None:
        self.rows: list[dict[str, Any]] = []
        self.left_out = 0
        self.faults: list[str] = []
        self._seconds, self._pool = seconds, pool
        self._key, self._began = secrets.token_bytes(16), time.monotonic()
        self._places, self._lock = Places(), threading.Lock()
        self._threads = [threading.Thread(target=self._follow, args=(url,), daemon=True) for url in urls]

    def run(self, quiet: bool) -> None:
        """Follow until the time is up, or until Ctrl-C, after which what came is kept."""
        for thread in self._threads:
            thread.start()
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        with progress(*columns, quiet=quiet) as bars:
            bar = bars.add_task("", total=self._seconds)
            try:
                while any(thread.is_alive() for thread in self._threads):
                    over = min(time.monotonic() - self._began, self._seconds)
                    bars.update(bar, completed=over, description=f"{len(self.rows):,} requests")
                    self._threads[-1].join(_LOOK)
                    self._threads = [thread for thread in self._threads if thread.is_alive()]
            except KeyboardInterrupt:
                click.echo("interrupted; what came until now is written", err=True)

    def _follow(self, url: str) -> None:
        late = time.monotonic() - self._began

        def take(said: dict[str, Any]) -> None:
            if "left_out" in said:
                self.left_out += int(said["left_out"])
            elif self._pool in (None, said["pool"]) and len(self.rows) < _MOST:
                with self._lock:
                    self.rows.append(row_of({**said, "at": said["at"] + late}, self._key, self._places))

        try:
            _read(f"{url}/record?seconds={self._seconds:g}", take)
        except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
            self.faults.append(f"{url}: {_said(error)}")


def _read(url: str, take: Callable[[dict[str, Any]], None]) -> None:
    request = urllib.request.Request(url)  # noqa: S310 - http(s) only, checked before
    with open_url(request, timeout=_SILENCE) as answer:
        while line := answer.readline(_LONGEST_LINE):
            if line.strip():
                take(json.loads(line))


def _said(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        try:
            with error:
                return str(json.loads(error.read(65536))["error"])[:1000]
        except (OSError, HTTPException, ValueError, KeyError, TypeError, RecursionError):
            return f"HTTP status {error.code}; is this a gateway's admin port, of this version?"
    return f"{getattr(error, 'reason', None) or error or type(error).__name__}"[:1000]


def _engine(snapshot: dict[str, Any], pool: str | None) -> dict[str, Any]:
    """What the simulator should be told of the replicas, as the gateway believes it."""
    pools = [each for each in snapshot["pools"] if pool in (None, each["name"])]
    if not pools:
        fail(f"no pool {pool!r} there", 2)
    replicas = [replica for each in pools for replica in each["replicas"]]
    if not replicas:
        return {"replicas": 0}

    def usual(name: str) -> int:
        return round(float(statistics.median(replica[name] for replica in replicas)))

    doubling = pools[0]["traits"].get("prefill_doubling")
    return {
        "replicas": len(replicas), "prefill": usual("prefill_speed"), "kv": usual("kv_tokens"),
        "max_running": usual("max_running"), **({"doubling": round(doubling)} if doubling else {"doubling": 10**9}),
    }  # fmt: skip


def _tell(
    output: str, rows: list[dict[str, Any]], left_out: int, engine: dict[str, Any], as_json: bool
) -> None:
    firsts = [row["ttft_ms"] / 1000 for row in rows if row["ttft_ms"] is not None]
    said = {
        "output": output,
        "requests": len(rows),
        "left_out": left_out,
        "ttft_mean": round(statistics.fmean(firsts), 4) if firsts else None,
        "engine": engine,
    }
    if as_json:
        click.echo(json.dumps(said))
        return
    mean = (
        f"{said['ttft_mean']} s"
        if firsts
        else "unknown (it needs feedback.observer or feedback.source: body)"
    )
    click.echo(f"{output}: {len(rows)} requests, {left_out} left out; mean time to first token {mean}")
    words = ",".join(f"{name}={value}" for name, value in engine.items() if name != "replicas")
    click.echo(f"kvsteer simulate {output} --replicas {engine['replicas']} --engine {words}")
