"""Run every command of docs/guarantees.md, one after the other, and say which promises held.

    make guarantees                     all of them (about ten minutes)
    make guarantees ONLY=ledger         those whose promise or command contains the word

A row of the table is a promise, the command that shows it (in backticks), the last figure and the machine. A
command shows its promise by its exit status; figures it prints are for the table's third column.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

_TABLE = Path(__file__).parent.parent / "docs" / "guarantees.md"
#: Seconds one command may take.
_LONGEST = 2400


class Row(NamedTuple):
    """One promise and what shows it."""

    promise: str
    command: str
    figure: str


def rows(text: str) -> list[Row]:
    """The rows of every table whose second column is a command in backticks."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("|") and len(cells) >= 4 and cells[1].startswith("`") and cells[1].endswith("`"):
            found.append(Row(cells[0], cells[1].strip("`"), cells[2]))
    return found


def run(command: str) -> tuple[bool, float, str]:
    """Whether it exited with 0, seconds, and the last lines it printed."""
    began = time.monotonic()
    bin_first = f"PATH={Path(sys.executable).parent}:$PATH; {command}"
    try:
        done = subprocess.run(
            ["bash", "-c", bin_first], capture_output=True, text=True, timeout=_LONGEST, check=False
        )
    except subprocess.TimeoutExpired:
        return False, time.monotonic() - began, f"not done after {_LONGEST} s"
    said = (done.stdout + done.stderr).strip().splitlines()
    return done.returncode == 0, time.monotonic() - began, "\n".join(said[-12:])


def main() -> None:
    """Run them; exit 1 when one did not hold. A command that serves several rows is run once."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--only", default="", help="a word the promise or command must contain")
    only = options.parse_args().only
    chosen = [row for row in rows(_TABLE.read_text()) if only in row.promise or only in row.command]
    results: dict[str, bool] = {}
    for row in chosen:
        if row.command not in results:
            print(f"... {row.command}", flush=True)
            held, seconds, said = run(row.command)
            results[row.command] = held
            print("\n".join(f"    {line}" for line in said.splitlines()))
            print(f"    {'held' if held else 'DID NOT HOLD'} after {seconds:.0f} s", flush=True)
    failed = [row for row in chosen if not results[row.command]]
    print(f"\n{len(chosen) - len(failed)} of {len(chosen)} promises held")
    for row in failed:
        print(f"  not held: {row.promise}\n            {row.command}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
