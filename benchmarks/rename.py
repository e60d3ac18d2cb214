"""What it takes to rename the model in bodies of 16 MiB: `python -m benchmarks.rename --check`.

Large bodies are read in a process of their own, which tells where their members stand: what that takes there is
shown as *beside*, next to reading as a whole. What others wait for is the renaming on the event loop. A body that
goes on as another is copied into the answer to Envoy once, whatever was changed in it; that copy is shown too. CPU
time of this process, median of several turns.
"""

import sys
import time
from collections.abc import Callable
from statistics import median

import click
import orjson

from extproc.core import reading
from extproc.core.dialects import Limits
from extproc.core.rename import places, spliced

_SIZE = 16 * 2**20
_TURNS = 9
_READINGS = 3
#: Milliseconds of the event loop that are promised for every body.
_MOST = 2.0
_PROSE = b"lorem ipsum dolor sit amet\\n"


def _chat(content: bytes, messages: int) -> bytes:
    one = b'{"role":"user","content":"' + content * (_SIZE // messages // len(content)) + b'"}'
    return b'{"model":"a","messages":[' + b",".join([one] * messages) + b'],"stream":true}'


def _bodies() -> dict[str, bytes]:
    return {
        "one long text": _chat(_PROSE, 1),
        "200 messages": _chat(_PROSE, 200),
        "20,000 messages": _chat(_PROSE, 20_000),
        "one text with many quotes": _chat(_PROSE * 10 + b'say \\"model\\": ', 1),
        "a prompt of token ids": b'{"model":"a","prompt":[' + b"1234," * (_SIZE // 5) + b"1]}",
        "the model given twice": _chat(_PROSE, 1)[:-1] + b',"model":"a"}',
        "the model given twice, 20,000 messages": _chat(_PROSE, 20_000)[:-1] + b',"model":"a"}',
    }


def _milliseconds(what: Callable[[], object], turns: int = _TURNS) -> float:
    took = []
    for _ in range(turns):
        began = time.process_time()
        what()
        took.append(time.process_time() - began)
    return median(took) * 1e3


def _row(kind: str, body: bytes) -> float:
    """One kind of body, printed; the event loop's milliseconds."""
    path = "/v1/completions" if b'"prompt"' in body[:100] else "/v1/chat/completions"
    limits = Limits(max_parts=100_000)
    spots = places(body, reading.MEMBERS)
    parts = spliced(body, "llama-3.3-70b", spots)
    assert parts is not None
    assert orjson.loads(b"".join(parts))["model"] == "llama-3.3-70b"
    here = _milliseconds(lambda: spliced(body, "llama-3.3-70b", spots))
    copied = _milliseconds(lambda: b"".join(parts))
    beside = _milliseconds(lambda: places(body, reading.MEMBERS))
    read = _milliseconds(lambda: reading.read(path, "", body, len(body), limits), _READINGS)
    click.echo(f"{kind:40} {here:6.3f} ms {copied:6.2f} ms {beside:7.2f} ms {read:7.1f} ms")
    return here


@click.command()
@click.option("--check", is_flag=True, help="Exit with 1 when one takes longer than promised.")
def main(check: bool) -> None:
    """Show what renaming takes, for each kind of body."""
    click.echo(f"{'16 MiB':40} {'renamed':>9} {'the copy':>9} {'beside':>10} {'of reading':>10}")
    slow = [kind for kind, body in _bodies().items() if _row(kind, body) > _MOST]
    if check and slow:
        click.echo(f"more than {_MOST} ms: {', '.join(slow)}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
