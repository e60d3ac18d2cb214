"""kvsteer record: what running gateways are asked for, as a trace for `kvsteer simulate`."""

import json
import statistics
import sys
from pathlib import Path
from typing import Any, Final

import click

from extproc.cli.admin_port import ADMIN, BadUrl, call, checked_url, fail
from extproc.cli.answers import SNAPSHOT
from extproc.cli.drain import seconds as seconds_of
from extproc.cli.inputs import FILE, NotWritable, check_outputs
from extproc.cli.recording import Recording

#: Exit status when a gateway went away before the time was up.
_GONE: Final = 3


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
    Ctrl-C or SIGTERM ends it early, and what came is written.
    """
    seconds = seconds_of(span, "--for")
    if not 1 <= seconds <= 24 * 3600:
        fail(f"--for {span}: must be from 1s to 24h", 2)
    try:
        urls = list(dict.fromkeys(checked_url(admin) for admin in admins or (ADMIN,)))
        check_outputs({"--output": Path(output)}, [])
    except (BadUrl, NotWritable) as error:
        fail(str(error), 2)
    snapshots = [
        call(url, "/snapshot", SNAPSHOT) for url in urls
    ]  # all, as it tells who is no gateway at once
    engine = _engine(snapshots[0], pool)
    recording = Recording(urls, seconds, pool)
    recording.run(quiet=as_json)
    if recording.faults:
        fail("; ".join(recording.faults), 1)
    rows = sorted(recording.rows, key=lambda row: float(row["timestamp"]))
    if not rows:
        fail("no request came to its end in that time, so there is no trace", _GONE if recording.gone else 2)
    try:
        Path(output).write_text("".join(json.dumps(row) + "\n" for row in rows))
    except OSError as error:
        fail(f"--output {output}: can't be written: {error.strerror}", 2)
    _tell(output, rows, recording, engine, as_json)
    if recording.gone:
        sys.exit(_GONE)


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
    output: str, rows: list[dict[str, Any]], recording: Recording, engine: dict[str, Any], as_json: bool
) -> None:
    firsts = [row["ttft_ms"] / 1000 for row in rows if row["ttft_ms"] is not None]
    said = {
        "output": output,
        "requests": len(rows),
        "left_out": recording.left_out,
        "interrupted": recording.interrupted,
        "gone": [{"gateway": url, "after": after} for url, after in recording.gone.items()],
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
    left_out = "an unknown number" if recording.left_out is None else recording.left_out
    click.echo(f"{output}: {len(rows)} requests, {left_out} left out; mean time to first token {mean}")
    words = ",".join(f"{name}={value}" for name, value in engine.items() if name != "replicas")
    click.echo(f"kvsteer simulate {output} --replicas {engine['replicas']} --engine {words}")
