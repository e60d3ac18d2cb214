"""What commands print with: text of others made safe, and tables."""

import errno
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn

#: Seconds that pass without a word on what is waited for.
_LONG: Final = 2.0


def plain(text: str) -> str:
    """Text that somebody else chose, safe for a terminal: one line without control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def counted(number: int, what: str) -> str:
    """A number with its noun, which takes an s for every number but one: `1 replica`, `0 replicas`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def console(piped: int = 200) -> "Console":
    """A console for tables: a pipe has no width, so that it is taken for one of `piped` columns.

    What stands in brackets is printed as it is, in tables too.
    """
    from rich.console import Console

    class _Output(Console):
        """Standard output: a reader that left is told to the caller, as click's own output does."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError(errno.EPIPE, "nobody reads the output")

    # No markup and no emoji codes: much of what is printed was written by others, who may have put brackets in it.
    usual = _Output(markup=False, emoji=False)
    return usual if usual.is_terminal else _Output(width=piped, markup=False, emoji=False)


def progress(*columns: "ProgressColumn", quiet: bool = False) -> "Progress":
    """A bar on standard error, gone at its end; what is no terminal gets none."""
    from rich.console import Console
    from rich.progress import Progress

    told = Console(stderr=True, emoji=False)
    return Progress(*columns, console=told, transient=True, disable=quiet or not told.is_terminal)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Say on standard error what is waited for, once that took two seconds; the result is not kept waiting.

    A command that is followed by a person says so only: what is no terminal gets no line.
    """
    said = threading.Timer(_LONG, lambda: click.echo(f"waiting for {plain(what)} ...", err=True))
    said.daemon = True
    if sys.stderr.isatty():
        said.start()
    try:
        yield
    finally:
        said.cancel()
