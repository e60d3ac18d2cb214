"""The command line as a whole: its overview, what stands below each command's help, and how any command ends."""

import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, Final

import click

from extproc.cli.about import ABOUT, INTERRUPTED, UNREAD, below

#: What a write says when there is no room for it.
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)

#: Most characters of a command in the list of its group; click's own bound cuts sentences in two.
_ONE_LINE: Final = 120


class Lazy(click.Group):
    """Commands of modules that are loaded when one is called, listed in sections.

    Args:
        commands: name -> (module with a click command named `command`, one line for the overview).
        sections: heading -> names below it; every command is in one.
    """

    def __init__(
        self,
        *args: Any,
        commands: dict[str, tuple[str, str]],
        sections: dict[str, tuple[str, ...]],
        **given: Any,
    ) -> None:
        super().__init__(*args, **given)
        self._modules, self._sections = commands, sections

    def main(self, *args: Any, **given: Any) -> Any:
        """Run a command line; as a program it ends by `ended`, whatever the command."""
        is_program = given.pop("standalone_mode", True)
        run: Callable[..., Any] = super().main

        def work() -> Any:
            return run(*args, standalone_mode=False, **given)

        if is_program:
            _open_closed()
            sys.exit(ended(work))
        return work()

    def make_context(self, *args: Any, **given: Any) -> click.Context:
        """As click does, where --help is printed; it has a status of its own for a reader that left."""
        with _reader_may_leave():
            return super().make_context(*args, **given)

    def invoke(self, ctx: click.Context) -> Any:
        """As click does, but for a reader that left."""
        with _reader_may_leave():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the overview."""
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command with its examples below its help, and so for its own commands."""
        if cmd_name not in self._modules:
            return None
        command: click.Command = import_module(self._modules[cmd_name][0]).command
        command.name = cmd_name
        dress(command, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The overview."""
        for heading, names in self._sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name, self._modules[name][1]) for name in names])


def dress(command: click.Command, words: str) -> None:
    """Put examples and exit statuses below a command's help, and below those of its own commands."""
    if words in ABOUT:
        command.epilog = below(words)
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            inner.short_help = inner.short_help or inner.get_short_help_str(_ONE_LINE)
            dress(inner, f"{words} {name}")


@contextmanager
def _reader_may_leave() -> Iterator[None]:
    """End with a status of its own when nobody reads the output, as click's would be that of somebody silent."""
    try:
        yield
    except BrokenPipeError:
        _drop_output()
        sys.exit(UNREAD)


def ended(work: Callable[[], Any]) -> int:
    """Run a command; its exit status. SystemExit passes, as most commands end by it."""
    try:
        try:
            status = work()
        finally:
            sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("kvsteer: interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return UNREAD
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        _drop_output()
        click.echo(f"kvsteer: can't write the output: {error.strerror}; free some space", err=True)
        return 2
    return status if isinstance(status, int) else 0


def _open_closed() -> None:
    """What was closed for us (`>&-`) is as /dev/null; else Python has no stream, and another file gets its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for as long as we run


def _drop_output() -> None:
    """What is still to be written to standard output goes nowhere, without a word."""
    with suppress(io.UnsupportedOperation):  # one that is no file, in a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
