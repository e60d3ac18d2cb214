"""Coverage-guided fuzzing of the fast transport's codec, with `atheris`, which is no dependency: `make` installs it.

    make fuzz SECONDS=1200

An input is what a peer says after the greeting. Each is given whole, and cut as its bytes say: the answers and events
must be the same, nothing may be raised, and when the connection is lost no stream may be left.
"""

import random
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["extproc.io.transports.h2", "extproc.core.scattered", "hpack"]):
    from tests.unit.h2_world import World

CORPUS = Path(__file__).parent / "corpus"


def one(raw: bytes) -> None:
    """One input."""
    whole, parts = World(), World()
    said = whole.say(raw)
    rng, got, at = random.Random(len(raw)), [], 0
    while at < len(raw):
        size = rng.choice((1, 5, 9, 30, 400))
        got += parts.say(raw[at : at + size])
        at += size
    assert got == said, "cutting changed the answer"
    assert parts.events == whole.events, "cutting changed the events"
    for world in (whole, parts):
        world.connection.lost()
        assert all(made.times_over == 1 for made in world.handlers), "a call was not ended once"
        assert not world.connection.streams.open, "a stream was left"
        assert world.shared.budget.held == 0, "bytes are held of streams that are gone"
        assert "Error" not in world.connection.fault, world.connection.fault


def main() -> None:
    """Fuzz until libFuzzer's own options say stop; what it finds new goes to a folder that is thrown away."""
    with tempfile.TemporaryDirectory() as found:
        atheris.Setup([sys.argv[0], found, str(CORPUS), *sys.argv[1:]], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
