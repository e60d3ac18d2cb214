"""Help, examples and completion of the command line."""

import shlex

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from extproc.cli import COMMANDS
from extproc.cli import main as kvsteer
from extproc.cli.examples import EXAMPLES


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_ends_with_examples(name: str) -> None:
    said = CliRunner().invoke(kvsteer, [name, "--help"])
    assert said.exit_code == 0
    assert f"kvsteer {name}" in said.output.partition("Examples:")[2]


@pytest.mark.parametrize("line", [line for name in COMMANDS for line in EXAMPLES.get(name, ())])
def test_every_example_is_a_line_that_would_run(line: str) -> None:
    name, *arguments = shlex.split(line)[1:]
    context = click.Context(kvsteer)
    command = kvsteer.get_command(context, name)
    assert command is not None
    command.make_context(name, arguments, parent=context)  # refuses what it does not know


def test_no_example_is_of_a_command_that_is_not_there() -> None:
    assert set(EXAMPLES) - set(COMMANDS) <= {"record"}


@pytest.mark.parametrize(
    ("words", "last", "found"),
    [([], "dra", "drain"), (["drain"], "--dead", "--deadline"), (["policy"], "roll", "rollback")],
)
def test_a_shell_completes_commands_and_options(words: list[str], last: str, found: str) -> None:
    complete = BashComplete(kvsteer, {}, "kvsteer", "_KVSTEER_COMPLETE")
    assert found in [item.value for item in complete.get_completions(words, last)]


@pytest.mark.parametrize(
    "line", ["--help", "simulate --generate chat:rate=4,requests=20", "check-config --help"]
)
def test_what_is_not_a_terminal_gets_no_colours(line: str) -> None:
    said = CliRunner().invoke(kvsteer, shlex.split(line))
    assert said.exit_code == 0, said.output
    assert "\x1b" not in said.output
