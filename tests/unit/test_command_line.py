"""Every command, by walking the parser: what its help says, what a script can use, how it ends."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from extproc.cli import COMMANDS, SECTIONS
from extproc.cli import main as kvsteer
from extproc.cli.about import ABOUT, INTERRUPTED, UNREAD

DOCS = Path(__file__).resolve().parents[2] / "docs" / "commands.md"


def walked(command: click.Command, context: click.Context, words: str) -> Iterator[tuple[str, click.Command]]:
    """A command and all below it, by their words on the line."""
    yield words, command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from walked(below, context, f"{words} {name}".strip())


ALL = {words: command for words, command in walked(kvsteer, click.Context(kvsteer), "") if words}
LEAVES = [words for words, command in ALL.items() if not isinstance(command, click.Group)]


def section(words: str) -> str:
    """A command's part of docs/commands.md, its lines joined and without backticks."""
    name = re.escape(words.split()[0])
    found = re.search(rf"^## kvsteer {name}\n(.*?)(?=^## |\Z)", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"docs/commands.md has no section for {words}"
    return " ".join(found[1].replace("`", "").split())


def test_nothing_is_told_of_commands_there_are_not() -> None:
    assert set(ABOUT) == set(ALL)


def test_the_overview_tells_a_story_with_every_command_in_it_once() -> None:
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(COMMANDS)
    said = CliRunner().invoke(kvsteer, ["--help"]).output
    for step in ("kvsteer demo", "kvsteer check-config", "kvsteer envoy-config", "kvsteer serve"):
        assert step in said.partition("Options:")[0], step
    assert [name for name, (_, line) in COMMANDS.items() if line not in said] == [], "lines that are broken"


@pytest.mark.parametrize("words", ALL)
def test_the_help_describes_the_command_and_its_options_with_examples_and_exit_statuses(words: str) -> None:
    command = ALL[words]
    assert (command.help or "").strip(), "it does not say what it does"
    silent = [each.opts for each in command.params if isinstance(each, click.Option) and not each.help]
    assert silent == [], "options without a word of help"
    said = CliRunner().invoke(kvsteer, [*words.split(), "--help"])
    assert said.exit_code == 0
    examples, _, statuses = said.output.partition("Examples:")[2].partition("Exit status:")
    assert f"kvsteer {words}" in examples
    for status in ABOUT[words].statuses:
        assert re.search(rf"^ +{status} +\w", statuses, re.MULTILINE), status


@pytest.mark.parametrize("line", [line for about in ABOUT.values() for line in about.examples])
def test_every_example_is_a_line_that_would_run(line: str) -> None:
    mine = line.partition(" | ")[0].partition(" < ")[0]
    _, name, *arguments = shlex.split(mine)
    context = click.Context(kvsteer)
    command = kvsteer.get_command(context, name)
    assert command is not None
    command.make_context(name, arguments, parent=context)  # refuses what it does not know


@pytest.mark.parametrize("words", ALL)
def test_the_exit_statuses_are_those_of_the_documentation(words: str) -> None:
    statuses = sorted(ABOUT[words].statuses.items())
    assert f"Exit status: {'; '.join(f'{status} {when}' for status, when in statuses)}." in section(words)


def test_what_any_command_may_end_with_is_documented() -> None:
    general = DOCS.read_text().partition("\n## ")[0]
    assert [status for status in (0, 1, 2, INTERRUPTED, UNREAD) if f"| {status} | " not in general] == []


@pytest.mark.parametrize("words", LEAVES)
def test_a_script_gets_json_or_a_reason_why_not(words: str) -> None:
    has_json = any("--json" in each.opts for each in ALL[words].params)
    assert has_json == (not ABOUT[words].no_json), words


@pytest.mark.parametrize("words", LEAVES)
def test_an_option_there_is_not_ends_with_2_and_what_was_wrong_on_standard_error(words: str) -> None:
    done = CliRunner().invoke(kvsteer, [*words.split(), "--no-such-option"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--no-such-option" in done.stderr


@pytest.mark.parametrize(
    ("words", "last", "found"),
    [
        ([], "dra", "drain"),
        (["drain"], "--dead", "--deadline"),
        (["policy"], "roll", "rollback"),
        (["policy", "set"], "charged", "charged_cost"),
        (["report", "--engine"], "sg", "sglang"),
        (["tune", "--for"], "ttft_p9", "ttft_p90"),
    ],
)
def test_a_shell_completes_commands_options_and_values(words: list[str], last: str, found: str) -> None:
    complete = BashComplete(kvsteer, {}, "kvsteer", "_KVSTEER_COMPLETE")
    assert found in [item.value for item in complete.get_completions(words, last)]


@pytest.mark.parametrize(
    "words", [["check-config"], ["serve", "-c"], ["explain"], ["record", "-o"], ["simulate"]]
)
def test_a_shell_completes_files(words: list[str]) -> None:
    complete = BashComplete(kvsteer, {}, "kvsteer", "_KVSTEER_COMPLETE")
    assert [item.type for item in complete.get_completions(words, "kv")] == ["file"]


@pytest.mark.parametrize(
    "line", ["--help", "simulate --generate chat:rate=4,requests=20", "check-config --help"]
)
def test_what_is_not_a_terminal_gets_no_colours_and_no_bars(line: str) -> None:
    said = CliRunner().invoke(kvsteer, shlex.split(line))
    assert (said.exit_code, said.stderr) == (0, "")
    assert "\x1b" not in said.output
