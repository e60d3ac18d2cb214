"""The `kvsteer` command in which a replica's minutes pass in seconds: `python hurried.py serve -c kvsteer.yaml`.

Warm-ups (core/lifecycle.py) take a fifth of their time and what was seen of a replica's pace (core/slow.py) is
forgotten five times as fast; all else, and what follows from them, is the gateway's own.
"""

from extproc.cli import main
from extproc.core import lifecycle, slow

#: How many times as fast.
TIMES = 5


def _hurry() -> None:
    usual = lifecycle.WarmUp()
    lifecycle.WarmUp.__init__.__kwdefaults__ = {"hold": usual.hold / TIMES, "full": usual.full / TIMES}
    slow._HALF_LIFE /= TIMES


if __name__ == "__main__":
    _hurry()
    main()
