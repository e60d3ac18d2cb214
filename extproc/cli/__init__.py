"""The command line: one file a command, loaded only when it is called, so that each starts fast."""

import errno
import os
import sys
from importlib import import_module
from typing import Any

import click

from extproc import __version__
from extproc.cli.examples import below

#: Command -> (module with a click command named `command`, one line for the overview).
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("extproc.cli.serve", "Run the gateway."),
    "demo": ("extproc.cli.demo", "Envoy, Redis, a gateway and four replicas on this machine: see it steer."),
    "check-config": (
        "extproc.cli.check_config",
        "Say what is wrong with a configuration, where, and how to mend it.",
    ),
    "envoy-config": ("extproc.cli.envoy_config", "Print the Envoy bootstrap for a configuration."),
    "simulate": (
        "extproc.cli.simulate",
        "Compare policies on a trace or generated traffic, in virtual time.",
    ),
    "record": (
        "extproc.cli.record",
        "Record what gateways are asked for, without text, as a trace for simulate.",
    ),
    "explain": ("extproc.cli.explain", "Where a request would go now, and why: the whole table."),
    "policy": ("extproc.cli.policy", "What a pool chooses by: see, change, put back, in running gateways."),
    "versions": (
        "extproc.cli.versions",
        "Shares of a model's versions: see how each does, change, put back.",
    ),
    "tune": (
        "extproc.cli.tune",
        "Search a policy's settings on a trace or generated traffic; applies nothing.",
    ),
    "replicas": ("extproc.cli.replicas", "Show what a gateway believes of each replica."),
    "state": ("extproc.cli.state", "What gateways share: who is there, leases, views; do they agree."),
    "drain": ("extproc.cli.drain", "Take a replica out of service, and watch it run empty."),
    "undrain": ("extproc.cli.undrain", "Put a drained replica back into service."),
    "report": ("extproc.cli.report", "Beside an engine: tell gateways how it is."),
    "engine": ("extproc.cli.engine", "Run emulated engine replicas, to try things without a GPU."),
}


#: What a write says when there is no room for it.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class _LazyGroup(click.Group):
    def main(self, *args: Any, **given: Any) -> Any:
        """Run; an output that can't take what is written ends it with 2 and a line, whatever the command."""
        try:
            try:
                return super().main(*args, **given)
            finally:
                sys.stdout.flush()
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left goes nowhere
            click.echo(f"kvsteer: can't write the output: {error.strerror}; free some space", err=True)
            sys.exit(2)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(COMMANDS[cmd_name][0]).command
        command.name = cmd_name
        command.epilog = command.epilog or below(cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(
    cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="kvsteer")
def main() -> None:
    """Steer LLM requests behind Envoy to the replica with headroom and a warm cache.

    Start with `kvsteer demo`. With an Envoy of your own: write kvsteer.yaml, try it with `kvsteer check-config`,
    print Envoy's side with `kvsteer envoy-config`, then run `kvsteer serve -c kvsteer.yaml`.
    """
