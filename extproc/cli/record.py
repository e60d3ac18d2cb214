"""kvsteer record: what running gateways are asked for, as a trace for `kvsteer simulate`."""

import json
import secrets
import statistics
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any

import click

from extproc.cli.admin_port import call, fail
from extproc.cli.drain import seconds as seconds_of
from extproc.cli.terminal import plain
from extproc.sim.recorded import row_of

_ADMIN = "http://127.0.0.1:9095"
#: Seconds in which a gateway must say something: it ends by itself half a minute after the time is up.
_SILENCE = 60.0
#: Requests of a trace at most, and bytes of one line of a recording.
_MOST = 1_000_000
_LONGEST_LINE = 4 * 2**20


@click.command()
@click.option(
    "--for", "span", required=True, metavar="TIME", help="How long, e.g. 90s, 10m, 1h; at most 24h."
)
@click.option("-o", "--output", required=True, metavar="FILE", help="The trace that is written.")
@click.option(
    "--admin", "admins", multiple=True, metavar="URL", help="Admin port of a gateway; may be repeated."
)
@click.option("--pool", help="Requests of this pool alone.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def command(span: str, output: str, admins: tuple[str, ...], pool: str | None, as_json: bool) -> None:
    """Record requests of running gateways as a trace: when, how long, what prefixes they share; no text.

    Prompts are kept as hashes keyed with a word that is thrown away. Of several gateways, name each with --admin.

    Exit status: 0; 1 when a gateway does not answer; 2 for wrong options, or when nothing came.

    \b
    kvsteer record --for 10m --output monday.jsonl
    kvsteer simulate monday.jsonl --replicas 4 --policies charged_cost,round_robin
    """
    seconds = seconds_of(span, "--for")
    if not 1 <= seconds <= 24 * 3600:
        fail(f"--for {span}: must be from 1s to 24h", 2)
    urls = admins or (_ADMIN,)
    engine = _engine(call(urls[0], "/snapshot", "pools"), pool)
    rows, left_out = _gather(urls, seconds, pool)
    if not rows:
        fail("no request came to its end in that time, so there is no trace", 2)
    rows.sort(key=lambda row: float(row["timestamp"]))
    try:
        Path(output).write_text("".join(json.dumps(row) + "\n" for row in rows))
    except OSError as error:
        fail(f"--output {output}: can't be written: {error.strerror}", 2)
    _tell(output, rows, left_out, engine, as_json)


def _gather(urls: tuple[str, ...], seconds: float, pool: str | None) -> tuple[list[dict[str, Any]], int]:
    """Rows of all gateways, and requests that were left out."""
    rows: list[dict[str, Any]] = []
    left_out: list[int] = []
    faults: list[str] = []
    key, began = secrets.token_bytes(16), time.monotonic()

    def follow(url: str) -> None:
        late = time.monotonic() - began

        def take(said: dict[str, Any]) -> None:
            if "left_out" in said:
                left_out.append(int(said["left_out"]))
            elif pool in (None, said["pool"]) and len(rows) < _MOST:
                rows.append(row_of({**said, "at": said["at"] + late}, key))

        try:
            _read(f"{url.rstrip('/')}/record?seconds={seconds:g}", take)
        except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
            faults.append(f"{url}: {_said(error)}")

    threads = [threading.Thread(target=follow, args=(url,), daemon=True) for url in urls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        fail(plain("; ".join(faults)), 1)
    return rows, sum(left_out)


def _read(url: str, take: Callable[[dict[str, Any]], None]) -> None:
    if not url.startswith(("http://", "https://")):
        raise ValueError("is no URL; write for example http://127.0.0.1:9095")
    with urllib.request.urlopen(url, timeout=_SILENCE) as answer:  # noqa: S310 - http(s) only, above
        while line := answer.readline(_LONGEST_LINE):
            if line.strip():
                take(json.loads(line))


def _said(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        try:
            return str(json.loads(error.read(65536))["error"])[:1000]
        except (ValueError, KeyError, TypeError):
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
