"""Workloads read from files: Mooncake JSONL, sessions of agents as JSONL, Azure LLM inference CSV.

* Mooncake: `timestamp` (ms), `input_length`, `output_length` (tokens), `hash_ids` (chained ids of 512-token blocks).
* Agents: the same with `session`, `turn` and `think_ms`. A session's first turn arrives by its timestamp, a later
  one `think_ms` after the answer before it; what the other would tell may be left out.
* Recorded (`kvsteer record`): Mooncake's with `block_tokens`, the same in all rows, and `output_limit`.
* Azure: TIMESTAMP, ContextTokens, GeneratedTokens. It tells nothing of prefixes, so nothing is shared.
"""

import csv
import hashlib
import io
import json
import stat
from collections.abc import Iterator
from datetime import datetime
from itertools import chain, count, pairwise, repeat
from pathlib import Path
from typing import Any, Final, NamedTuple

from extproc.sim.bounds import DAY, MOST_SECONDS, MOST_TOKENS, shown, whole, within
from extproc.sim.jobs import BLOCK_TOKENS, Row, block_hash
from extproc.sim.workload import Workload, WorkloadError

#: Block numbers from which those of rows without prefix identity are taken, far above any trace's own.
_UNSHARED = 1 << 48
#: Fields that say when a row arrives.
_WHEN = {"timestamp", "think_ms"}
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
#: Largest trace that is read, in bytes: an hour of the public ones has 10 MB.
_LARGEST: Final = 2**30
#: Most digits of a whole number that is read as one; ids of blocks have twenty at most.
_DIGITS: Final = 1000
_FORMS = f"JSON lines (Mooncake, agents) or a CSV with the columns {', '.join(_AZURE)}"


def read_trace(path: Path) -> Workload:
    """A trace file as a workload. The form is told by what is in it.

    Raises:
        WorkloadError: it can't be read, or a line is not what the form asks for; says file, line and what is wrong.
    """
    data = _read(path)
    try:
        data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise WorkloadError(f"{path}:{line}: not UTF-8; a trace is {_FORMS}") from None
    first = next(filter(None, map(str.strip, _lines(data))), "")
    if first.startswith("{"):
        rows = _read_json(path, data)
    elif first.lstrip('"').startswith(_AZURE[0]):
        rows = _read_azure(path, data)
    else:
        raise WorkloadError(f"{path}:1: not a trace; write {_FORMS}")
    if not rows:
        raise WorkloadError(f"{path}: no requests in it")
    name = path.name.encode("utf-8", "backslashreplace").decode()
    facts: dict[str, str | int | float] = {
        "sha256": hashlib.sha256(data).hexdigest(),
        "requests": len(rows),
    }
    if rows[0].block != BLOCK_TOKENS:
        facts["block_tokens"] = rows[0].block  # the same in all
    seconds = max(row.at for row in rows)
    return Workload(name, lambda: _copies(rows), facts, seconds, max(map(_pauses, rows)))


def _read(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # opening a pipe may wait for ever
            raise WorkloadError(
                f"{path}: is no regular file; write what comes out of it into one, and name that"
            )
        with path.open("rb") as opened:
            data = opened.read(_LARGEST + 1)
    except (OSError, ValueError) as error:  # a ValueError for names that no file has
        raise WorkloadError(f"{path}: can't be read: {getattr(error, 'strerror', error)}") from None
    if len(data) > _LARGEST:
        raise WorkloadError(f"{path}: larger than {_LARGEST} bytes; cut it into parts")
    return data


def _pauses(row: Row) -> float:
    """Seconds of the pauses from a turn to its session's end; of a first turn, all of them."""
    seconds, after = 0.0, row.after
    while after is not None:
        seconds, after = seconds + after.think, after.after
    return seconds


def _lines(data: bytes, newline: str | None = None) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline=newline)


def _copies(rows: list[Row]) -> Iterator[Row]:
    """Copies that a run may change: those that arrive by the clock, in time, with later turns hung on them."""
    copies = {
        id(row): Row(
            row.at, row.tokens, row.output, row.blocks, limit=row.limit, think=row.think, block=row.block
        )
        for row in rows
    }
    later = set()
    for row in rows:
        if row.after is not None:
            copies[id(row)].after = copies[id(row.after)]
            later.add(id(row.after))
    return iter(sorted((copies[id(row)] for row in rows if id(row) not in later), key=lambda row: row.at))


class _Turn(NamedTuple):
    """A row of a session: its line, and which of the fields it lacks that say when it arrives."""

    line: int
    row: Row
    lacks: frozenset[str]


#: Sessions by name, and the turns of each by number.
_Sessions = dict[str | int, dict[int, _Turn]]


def _read_json(path: Path, data: bytes) -> list[Row]:
    rows: list[Row] = []
    sessions: _Sessions = {}
    for number, line in enumerate(_lines(data), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line, parse_int=_whole_number)
            row = _row(record)
            _same_blocks(rows, row)
            _place(record, _Turn(number, row, frozenset(_WHEN - record.keys())), sessions)
        except (ValueError, RecursionError) as error:
            raise WorkloadError(f"{path}:{number}: not a request of a trace: {_reason(error)}") from None
        rows.append(row)
    for turns in sessions.values():
        _hang(path, [turns[number] for number in sorted(turns)])
    return rows


def _same_blocks(rows: list[Row], row: Row) -> None:
    if rows and row.block != rows[0].block:
        raise ValueError(f"block_tokens must be {rows[0].block} as in the rows before, not {row.block}")


class _TooLong:
    """A number with more digits than Python reads; no field takes one, and each says so of itself."""

    def __init__(self, digits: str) -> None:
        self._length = len(digits.lstrip("-"))

    def __repr__(self) -> str:
        return f"a number of {self._length} digits"


def _whole_number(digits: str) -> int | _TooLong:
    return int(digits) if len(digits) <= _DIGITS else _TooLong(digits)


def _place(record: dict[str, Any], turn: _Turn, sessions: _Sessions) -> None:
    """Put a row where it belongs: into its session, if it is one of a session. Raises ValueError when it can't be."""
    if record.get("session") is None:
        for name in ("turn", "think_ms"):
            if record.get(name) is not None:
                raise ValueError(f"session is missing, which {name} is for")
        if "timestamp" in turn.lacks:
            raise ValueError("timestamp (ms from the start) is missing")
        return
    turns = sessions.setdefault(_session(record["session"]), {})
    if "turn" not in record:
        raise ValueError("turn is missing: which one of its session it is, counted from 0")
    number = whole("turn", record["turn"], -(2**53))
    if number in turns:
        raise ValueError(
            f"turn {number} of this session is in line {turns[number].line} already; number them 0, 1, ..."
        )
    turns[number] = turn


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"no JSON: {error.msg} at column {error.colno}"
    return "nested too deep" if isinstance(error, RecursionError) else str(error)


def _session(value: Any) -> str | int:
    if type(value) not in (str, int):
        raise ValueError(f"session must be text or a whole number, not {shown(value)}")
    name: str | int = value
    return name


def _hang(path: Path, turns: list[_Turn]) -> None:
    """Hang each turn of a session on the one before it. Raises WorkloadError when one can't tell when it arrives."""
    for turn, name in zip(turns, chain(("timestamp",), repeat("think_ms")), strict=False):
        if name in turn.lacks:
            which = "first turn of a session" if name == "timestamp" else "turn after another one"
            raise WorkloadError(
                f"{path}:{turn.line}: not a request of a trace: {name} is missing, by which the {which} arrives"
            )
    for before, after in pairwise(turns):
        before.row.after = after.row


def _row(record: Any) -> Row:
    """One line of a trace. Raises ValueError with the field and what it may be."""
    if type(record) is not dict:
        raise ValueError(f"must be an object, not {shown(record)}")
    for name in ("input_length", "output_length", "hash_ids"):
        if name not in record:
            raise ValueError(f"{name} is missing")
    tokens = whole("input_length", record["input_length"], 0, MOST_TOKENS)
    block = whole("block_tokens", record.get("block_tokens", BLOCK_TOKENS), 1, BLOCK_TOKENS)
    limit = record.get("output_limit")
    ids, needed = record["hash_ids"], max(-(-tokens // block), 1)
    if type(ids) is not list or not all(type(number) is int for number in ids):
        raise ValueError(f"hash_ids must be a list of whole numbers, not {shown(ids)}")
    if len(ids) != needed:
        raise ValueError(f"{tokens} tokens are {needed} blocks of {block}, but hash_ids has {len(ids)}")
    return Row(
        within("timestamp (ms from the start)", record.get("timestamp", 0), 0, MOST_SECONDS * 1000) / 1000,
        tokens,
        whole("output_length", record["output_length"], 0, MOST_TOKENS),
        [block_hash(number) for number in ids],
        limit=None if limit is None else whole("output_limit", limit, 0, MOST_TOKENS),
        block=block,
        think=within("think_ms", record.get("think_ms", 0), 0, DAY * 1000) / 1000,
    )


def _read_azure(path: Path, data: bytes) -> list[Row]:
    rows: list[Row] = []
    numbers = count(_UNSHARED)
    lines = csv.DictReader(_lines(data, newline=""))
    try:
        for record in lines:
            at, tokens, output = _azure_row(record)
            blocks = [block_hash(next(numbers)) for _ in range(max(-(-tokens // BLOCK_TOKENS), 1))]
            rows.append(Row(at, tokens, output, blocks))
    except (ValueError, OverflowError, OSError, csv.Error) as error:
        where = f"{path}:{lines.line_num}"
        raise WorkloadError(f"{where}: not a row of {', '.join(_AZURE)}: {error}") from None
    began = min((row.at for row in rows), default=0.0)
    for row in rows:
        row.at -= began
    if rows and max(row.at for row in rows) > MOST_SECONDS:
        raise WorkloadError(f"{path}: covers more than {MOST_SECONDS:g} s; cut it into parts")
    return rows


def _azure_row(record: dict[str, Any]) -> tuple[float, int, int]:
    """Time in seconds of any clock, prompt tokens, tokens of the answer."""
    for name in _AZURE:
        if not record.get(name):
            raise ValueError(f"{name} is missing")
    at = datetime.fromisoformat(record["TIMESTAMP"][:26]).timestamp()
    tokens = whole("ContextTokens", _int(record["ContextTokens"]), 0, MOST_TOKENS)
    return at, tokens, whole("GeneratedTokens", _int(record["GeneratedTokens"]), 0, MOST_TOKENS)


def _int(text: str) -> int | str:
    """A whole number where the text is one; else the text, for the message."""
    digits = text.strip()
    return int(digits) if len(digits) < 20 and digits.lstrip("-").isdecimal() and digits.isascii() else text
