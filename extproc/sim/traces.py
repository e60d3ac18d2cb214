"""Workloads read from files: Mooncake JSONL, sessions of agents as JSONL, Azure LLM inference CSV.

* Mooncake: `timestamp` (ms), `input_length`, `output_length` (tokens), `hash_ids` (chained ids of 512-token blocks).
* Agents: the same with `session`, `turn` and `think_ms`. A session's first turn arrives by its timestamp (0 when
  it has none); a later one `think_ms` after the answer before it.
* Azure: TIMESTAMP, ContextTokens, GeneratedTokens. It tells nothing of prefixes, so nothing is shared.
"""

import csv
import hashlib
import json
from collections.abc import Iterator
from datetime import datetime
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from extproc.sim.jobs import BLOCK_TOKENS, Row, block_hash
from extproc.sim.workload import Workload, WorkloadError

#: Block numbers from which those of rows without prefix identity are taken, far above any trace's own.
_UNSHARED = 1 << 48
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_trace(path: Path) -> Workload:
    """A trace file as a workload. The form is told by what is in it.

    Raises:
        WorkloadError: it can't be opened, or a line is not what the form asks for.
    """
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        with path.open(encoding="utf-8") as lines:
            first = lines.readline()
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path}: can't be read as a trace: {error}") from None
    if first.startswith("{"):
        rows = _read_json(path)
    elif first.startswith(_AZURE[0]):
        rows = _read_azure(path)
    else:
        raise WorkloadError(
            f"{path}:1: neither JSON lines (Mooncake, agents) nor a CSV with the columns {', '.join(_AZURE)}"
        )
    if not rows:
        raise WorkloadError(f"{path}: no requests in it")
    return Workload(path.name, lambda: _copies(rows), {"sha256": digest, "requests": len(rows)})


def _copies(rows: list[Row]) -> Iterator[Row]:
    """Copies that a run may change: those that arrive by the clock, in time, with later turns hung on them."""
    copies = {
        id(row): Row(row.at, row.tokens, row.output, row.blocks, limit=row.limit, think=row.think)
        for row in rows
    }
    later = set()
    for row in rows:
        if row.after is not None:
            copies[id(row)].after = copies[id(row.after)]
            later.add(id(row.after))
    return iter(sorted((copies[id(row)] for row in rows if id(row) not in later), key=lambda row: row.at))


def _read_json(path: Path) -> list[Row]:
    rows: list[Row] = []
    sessions: dict[Any, list[tuple[int, Row]]] = {}
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                row = _row(record)
            except (ValueError, KeyError, TypeError) as error:
                raise WorkloadError(f"{path}:{number}: not a request of a trace: {error!r}") from None
            rows.append(row)
            if "session" in record:
                sessions.setdefault(record["session"], []).append((int(record.get("turn", number)), row))
    for turns in sessions.values():
        turns.sort(key=lambda turn: turn[0])
        for (_, row), (_, after) in pairwise(turns):
            row.after = after
    return rows


def _row(record: dict[str, Any]) -> Row:
    tokens, blocks = int(record["input_length"]), [block_hash(int(i)) for i in record["hash_ids"]]
    needed = max(-(-tokens // BLOCK_TOKENS), 1)
    if len(blocks) != needed:
        raise ValueError(
            f"{tokens} tokens are {needed} blocks of {BLOCK_TOKENS}, but hash_ids has {len(blocks)}"
        )
    return Row(
        float(record.get("timestamp", 0)) / 1000,
        tokens,
        int(record["output_length"]),
        blocks,
        think=float(record.get("think_ms", 0)) / 1000,
    )


def _read_azure(path: Path) -> list[Row]:
    rows: list[Row] = []
    numbers, began = count(_UNSHARED), None
    with path.open(encoding="utf-8", newline="") as lines:
        for record in csv.DictReader(lines):
            try:
                at = datetime.fromisoformat(record["TIMESTAMP"][:26]).timestamp()
                tokens, output = int(record["ContextTokens"]), int(record["GeneratedTokens"])
            except (ValueError, KeyError, TypeError) as error:
                raise WorkloadError(
                    f"{path}:{len(rows) + 2}: not a row of {', '.join(_AZURE)}: {error!r}"
                ) from None
            began = at if began is None else began
            blocks = [block_hash(next(numbers)) for _ in range(max(-(-tokens // BLOCK_TOKENS), 1))]
            rows.append(Row(at - began, tokens, output, blocks))
    return rows
