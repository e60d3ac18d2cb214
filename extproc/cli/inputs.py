"""What commands ask of numbers and of files to write, before they begin: a fault costs no waiting."""

import getpass
import math
import os
import socket
from pathlib import Path
from typing import Any, Final

import click

from extproc.errors import KvsteerError

#: A file's name; shells complete it. Whether it is there and can be used, each command says in its own words.
FILE: Final = click.Path()


class NotWritable(KvsteerError):
    """An output can't be written. The command prints it and exits with 2."""


class Finite(click.FloatRange):
    """A number within bounds. NaN, which compares with nothing and so passes click's own bounds, is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; a usage error (status 2) for what is none or out of bounds."""
        found = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return found


def check_outputs(outputs: dict[str, Path | None], sources: list[Path | None]) -> None:
    """See that every output can be written; what is there already stays as it is.

    Args:
        outputs: option -> file, None where not given; `-` is standard output.
        sources: files that are read, and so may not be written over.

    Raises:
        NotWritable: one can't, or two are the same file.
    """
    taken = {os.path.realpath(path): str(path) for path in sources if path is not None}
    for option, path in outputs.items():
        if path is None or (str(path) == "-" and option != "--html"):
            continue
        if str(path) == "-":
            raise NotWritable(
                "--html -: the page goes into a file, as the table is on standard output; name one"
            )
        place = os.path.realpath(path)
        if place in taken:
            raise NotWritable(f"{option} {path}: would overwrite {taken[place]}; give another name")
        taken[place] = f"what {option} writes"
        try:
            _try(Path(place))
        except OSError as error:
            raise cannot_write(option, path, error) from None


def _try(place: Path) -> None:
    """Open a file as a writer would, and leave things as they were. `place` has no links in it."""
    is_there = place.exists()
    if is_there and not (place.is_file() or place.is_dir()):
        return  # a pipe or a device: opening it may wait for its reader
    with place.open("ab"):
        pass
    if not is_there:
        place.unlink()


def cannot_write(option: str, path: Path, error: OSError) -> NotWritable:
    """The fault of an output, in words."""
    return NotWritable(
        f"{option} {path}: can't be written: {error.strerror}; give a file in a folder of yours"
    )


#: Longest name of somebody who changes something, in characters.
_MOST_WHO = 128


def me() -> str:
    """Who runs this: user name and host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no entry for this user id, as in some containers
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"[:_MOST_WHO]
