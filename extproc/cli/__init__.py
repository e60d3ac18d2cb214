"""The command line: one file a command, loaded only when it is called, so that each starts fast."""

from typing import Final

import click

from extproc import __version__
from extproc.cli.group import Lazy

#: Command -> (module with a click command named `command`, one line for the overview).
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "demo": ("extproc.cli.demo", "Envoy, Redis, a gateway, four replicas: see it steer."),
    "check-config": ("extproc.cli.check_config", "What is wrong with a configuration, and how to mend it."),
    "envoy-config": ("extproc.cli.envoy_config", "Print Envoy's side of a configuration."),
    "serve": ("extproc.cli.serve", "Run the gateway."),
    "replicas": ("extproc.cli.replicas", "What a gateway believes of each replica."),
    "explain": ("extproc.cli.explain", "Where a request would go now, and why."),
    "state": ("extproc.cli.state", "What gateways share, and whether they agree."),
    "drain": ("extproc.cli.drain", "Take a replica out, and watch it run empty."),
    "undrain": ("extproc.cli.undrain", "Put a drained replica back."),
    "policy": ("extproc.cli.policy", "What a pool chooses by: see, change, put back."),
    "versions": ("extproc.cli.versions", "Shares of a model's versions: see, change, put back."),
    "record": ("extproc.cli.record", "Requests of running gateways as a trace, without text."),
    "simulate": ("extproc.cli.simulate", "Compare policies on a trace, in virtual time."),
    "tune": ("extproc.cli.tune", "Search a policy's settings on a trace; changes nothing."),
    "report": ("extproc.cli.report", "Tell gateways how the engine beside it is."),
    "engine": ("extproc.cli.engine", "Emulated replicas, to try things without a GPU."),
}

#: The overview: what one does, in the order in which one comes to it.
SECTIONS: Final[dict[str, tuple[str, ...]]] = {
    "Begin": ("demo", "check-config", "envoy-config", "serve"),
    "Look": ("replicas", "explain", "state"),
    "Change what runs": ("drain", "undrain", "policy", "versions"),
    "Compare before you change": ("record", "simulate", "tune"),
    "Beside engines, or in their place": ("report", "engine"),
}


@click.group(
    cls=Lazy,
    commands=COMMANDS,
    sections=SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Results go to standard output, all else to standard error. --json is for scripts.
Exit status: 0 done, 1 somebody does not answer, 2 refused, 130 interrupted;
more below each command's --help and in docs/commands.md, shell completion too.""",
)
@click.version_option(__version__, prog_name="kvsteer")
def main() -> None:
    """Steer LLM requests behind Envoy to the replica with headroom and a warm cache.

    \b
    See it on this machine:       kvsteer demo
    With an Envoy and engines of your own, write kvsteer.yaml (docs/quickstart.md), then:
      what is wrong with it:      kvsteer check-config kvsteer.yaml
      Envoy's side of it:         kvsteer envoy-config -c kvsteer.yaml --output envoy.yaml
      run it:                     kvsteer serve -c kvsteer.yaml
    While it runs:
      who is slow, out, full:     kvsteer replicas
      why a request goes there:   kvsteer explain request.json
      take a replica out:         kvsteer drain 10.0.0.2:8000
      choose otherwise, go back:  kvsteer policy set round_robin ..., kvsteer policy rollback ...
    """
