"""Many open streams and large bodies at once, against a gateway's process (benchmarks/streams.py, made short)."""

import re
import subprocess
import sys

from tests.integration.patience import patient

SHORT = "--short --streams 2000 --bodies 4 --mebibytes 4 --rounds 1 --samples 50"


def test_open_streams_take_little_and_large_bodies_are_bounded() -> None:
    argv = [sys.executable, "-m", "benchmarks.streams", *SHORT.split()]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=patient(60), check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    each = float(re.findall(r"open streams: ([0-9.]+) KB each", said)[0])
    more = float(re.findall(r"at most (-?[0-9]+) MiB more", said)[0])
    assert each < 15, said
    # 16 MiB of bodies, each for a moment once more as bytes, as a message and as text
    assert more < 100, said
