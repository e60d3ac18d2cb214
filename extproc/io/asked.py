"""Queries of the admin port: a parameter that nobody reads is a mistake of who asks, and is told."""

from collections.abc import Iterable

#: Longest name that is told again, in characters.
_NAME = 60


def unknown(query: Iterable[str], known: Iterable[str]) -> str:
    """What is wrong with the parameters' names, or ""."""
    names = list(known)
    strange = next((name for name in query if name not in names), None)
    return (
        ""
        if strange is None
        else f"there is no parameter {strange[:_NAME]!r} here; there are: {', '.join(names)}"
    )
