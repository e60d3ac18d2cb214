"""What commands print with: text of others made safe, and tables."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


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

    # No markup and no emoji codes: much of what is printed was written by others, who may have put brackets in it.
    usual = Console(markup=False, emoji=False)
    return usual if usual.is_terminal else Console(width=piped, markup=False, emoji=False)
