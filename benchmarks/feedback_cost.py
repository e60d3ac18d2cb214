"""What feedback costs a gateway: CPU per HTTP request behind a real Envoy, with each source beside none.

    .venv/bin/python -m benchmarks.feedback_cost [--requests 3000] [--rounds 5] [--check]

One Envoy, one load, alternating between gateways of one configuration but for `feedback`; user + system time of each
from /proc, medians over the rounds. With --check the default source must cost at most 1.35 times none.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.server_cpu import Bench, measure, payloads

#: The default source may cost at most this much of what a request costs without.
_BAR: Final = 1.35
_SOURCES: Final[dict[str, dict[str, Any]]] = {
    "off": {"source": "off"},
    "trailers": {"source": "trailers"},
    "headers": {"source": "headers"},
    "observer": {"source": "trailers", "observer": True},
}


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--replicas", type=int, default=16)
    parser.add_argument("--bytes", type=int, default=2048)
    parser.add_argument("--check", action="store_true", help="fail when the default source costs too much")
    args = parser.parse_args()
    gateways = {name: {"feedback": settings} for name, settings in _SOURCES.items()}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), args.replicas, gateways, noop=False)
        try:
            figures = measure(bench, bench.start(), payloads(args.bytes), args.requests, args.rounds)
        finally:
            for child in bench.children:
                child.stop()
    medians = {name: statistics.median(values) for name, values in figures.items()}
    for name, value in medians.items():
        rounds = ", ".join(f"{figure:.0f}" for figure in figures[name])
        print(
            f"{name:>9}: {value:6.0f} us of CPU a request, {value / medians['off']:.2f} of none   ({rounds})"
        )
    if args.check and medians["trailers"] > _BAR * medians["off"]:
        raise SystemExit(f"the default source costs more than {_BAR} of none")


if __name__ == "__main__":
    main()
