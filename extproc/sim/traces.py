"""Workloads read from files."""

import json
from collections.abc import Iterator
from pathlib import Path

from extproc.sim.jobs import Row, block_hash


def read_mooncake(path: Path) -> Iterator[Row]:
    """Rows of a Mooncake trace."""
    with path.open() as lines:
        for line in lines:
            d = json.loads(line)
            yield Row(
                d["timestamp"] / 1000,
                d["input_length"],
                d["output_length"],
                [block_hash(i) for i in d["hash_ids"]],
            )
