"""What it takes to rename the model in bodies of 16 MiB: `python -m benchmarks.rename --check`.

A body that goes on as another is copied into the answer to Envoy once, whatever was changed in it; that copy is shown
beside. CPU time of this process, median of several turns.
"""

import sys
import time
from collections.abc import Callable
from statistics import median

import click
import orjson

from extproc.core.rename import spliced

_SIZE = 16 * 2**20
_TURNS = 9
#: Milliseconds that are promised for a body which is one long text.
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


def _milliseconds(what: Callable[[], object]) -> float:
    took = []
    for _ in range(_TURNS):
        began = time.process_time()
        what()
        took.append(time.process_time() - began)
    return median(took) * 1e3


@click.command()
@click.option("--check", is_flag=True, help="Exit with 1 when one long text takes longer than promised.")
def main(check: bool) -> None:
    """Show what renaming takes, for each kind of body."""
    bodies = _bodies()
    found = {}
    for kind, body in bodies.items():
        parts = spliced(body, "llama-3.3-70b")
        assert parts is not None
        assert orjson.loads(b"".join(parts))["model"] == "llama-3.3-70b"
        found[kind] = _milliseconds(lambda body=body: spliced(body, "llama-3.3-70b"))  # type: ignore[misc]
        copied = _milliseconds(lambda parts=parts: b"".join(parts))  # type: ignore[misc]
        click.echo(
            f"{kind:40} {len(body) / 2**20:5.1f} MiB: {found[kind]:7.2f} ms, the copy {copied:5.2f} ms"
        )
    if check and found["one long text"] > _MOST:
        click.echo(f"one long text took more than {_MOST} ms", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
