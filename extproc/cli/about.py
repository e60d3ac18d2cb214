"""What stands below each command's help: examples, and what its exit statuses mean.

Options and texts are where the commands are. This is apart, so that tests can hold it
against docs/commands.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

#: Ends of any command: interrupted by Ctrl-C, and what it printed was not read to the end (128 + SIGPIPE).
INTERRUPTED: Final = 130
UNREAD: Final = 141

#: Why a command has no --json: what it prints is for a program as it is.
_LOGS: Final = "it runs until it is stopped, and prints nothing but its log, which is JSON"


@dataclass(frozen=True, slots=True)
class About:
    """One command.

    Attributes:
        examples: lines that run as they are.
        statuses: exit status -> when, in words that stand in docs/commands.md too.
        no_json: why it has no --json; "" where it has.
    """

    examples: tuple[str, ...]
    statuses: Mapping[int, str]
    no_json: str = ""


_NO_GATEWAY: Final = "when no gateway answers, or what answers is none"
_ORDER: Final = "when refused, also for want of the token that the gateway asks for"
_UNWRITTEN: Final = "when it counts in this gateway only for now, because Redis did not take it"
_POLICY: Final = {
    0: "when done, also when there was nothing to change",
    1: "when Redis does not answer, or a gateway can't use the version",
    2: "when refused, and nothing was changed",
}
_VERSIONS: Final = {
    0: "when done",
    1: _NO_GATEWAY,
    2: "when refused, and nothing was changed",
    3: "when others change weights all the time",
}

#: Words of a command line, without options -> what is told of it.
ABOUT: Final[dict[str, About]] = {
    "serve": About(
        ("kvsteer serve -c kvsteer.yaml", "kvsteer serve -c kvsteer.yaml --workers 2"),
        {
            0: "after a clean stop",
            1: "when an address can't be had",
            2: "when the configuration is faulty",
        },
        _LOGS,
    ),
    "demo": About(
        ("kvsteer demo", "kvsteer demo --keep", "kvsteer demo --seconds 10 --json"),
        {
            0: "when no request failed and the default policy was ahead in hit share and mean time to first token",
            1: "otherwise, also when a process could not be started or died",
            2: "when an option is wrong",
        },
    ),
    "check-config": About(
        ("kvsteer check-config kvsteer.yaml", "kvsteer check-config kvsteer.yaml --json"),
        {0: "when all is well", 2: "when something is wrong"},
    ),
    "envoy-config": About(
        (
            "kvsteer envoy-config -c kvsteer.yaml --output envoy.yaml",
            "kvsteer envoy-config -c kvsteer.yaml --eds --output /etc/envoy/eds",
        ),
        {
            0: "when done",
            2: "when the configuration is faulty, or the output can't be written",
        },
        "it prints what Envoy reads",
    ),
    "simulate": About(
        (
            "kvsteer simulate --generate chat:rate=6,requests=3000",
            "kvsteer simulate trace.jsonl --policies charged_cost,cache_aware --html out.html",
            "kvsteer simulate trace.jsonl --json -",
        ),
        {
            0: "when done",
            1: "when the simulation contradicts itself, which is a fault of kvsteer",
            2: "when an input or option is wrong, or an output can't be written",
        },
    ),
    "record": About(
        (
            "kvsteer record --for 10m -o trace.jsonl",
            "kvsteer record --for 1h -o trace.jsonl --admin http://10.0.0.8:9095 --admin http://10.0.0.9:9095",
        ),
        {
            0: "when done, also when it was interrupted and wrote what had come",
            1: "when a gateway does not answer, records for somebody else, or what answers is none",
            2: "when an option is wrong, the trace can't be written, or no request came to its end",
            3: "when a gateway went away before the time was up; what had come is written",
        },
    ),
    "explain": About(
        (
            "kvsteer explain request.json",
            "kvsteer explain request.json --snapshot snapshot.json",
            "kvsteer explain --json < request.json",
        ),
        {
            0: "when it could be told, also that the request would be refused",
            1: _NO_GATEWAY,
            2: "when an input is wrong",
        },
    ),
    "policy": About(
        (
            "kvsteer policy list -c kvsteer.yaml",
            'kvsteer policy set charged_cost gain=4 -c kvsteer.yaml --why "less queueing at noon"',
            'kvsteer policy rollback -c kvsteer.yaml --why "P99 went up"',
        ),
        _POLICY,
    ),
    "policy list": About(
        ("kvsteer policy list -c kvsteer.yaml", "kvsteer policy list -c kvsteer.yaml --json"), _POLICY
    ),
    "policy set": About(
        (
            'kvsteer policy set charged_cost gain=4 -c kvsteer.yaml --why "less queueing at noon"',
            'kvsteer policy set round_robin -c kvsteer.yaml --why "to be sure" --json',
        ),
        _POLICY,
    ),
    "policy shadow": About(
        (
            'kvsteer policy shadow cache_aware -c kvsteer.yaml --why "is it as good?"',
            'kvsteer policy shadow none -c kvsteer.yaml --why "seen enough"',
        ),
        _POLICY,
    ),
    "policy rollback": About(
        (
            'kvsteer policy rollback -c kvsteer.yaml --why "P99 went up"',
            'kvsteer policy rollback --to 3 -c kvsteer.yaml --why "as on Monday"',
        ),
        _POLICY,
    ),
    "versions": About(
        (
            "kvsteer versions list",
            'kvsteer versions set llama v2=5 --why "canary"',
            'kvsteer versions rollback llama --why "odd answers"',
        ),
        _VERSIONS,
    ),
    "versions list": About(("kvsteer versions list", "kvsteer versions list --json"), _VERSIONS),
    "versions set": About(('kvsteer versions set llama v2=5 --why "canary"',), _VERSIONS),
    "versions rollback": About(('kvsteer versions rollback llama --why "odd answers"',), _VERSIONS),
    "tune": About(
        (
            "kvsteer tune trace.jsonl --try gain=2:3:5 --seeds 0,1,2",
            "kvsteer tune --generate chat:rate=6,requests=3000 --json",
        ),
        {
            0: "when done",
            1: "when the simulation contradicts itself, which is a fault of kvsteer",
            2: "when an input or option is wrong",
        },
    ),
    "replicas": About(
        ("kvsteer replicas", "kvsteer replicas --json | jq '.replicas[] | select(.excluded)'"),
        {0: "when done", 1: _NO_GATEWAY, 2: "when an option is wrong"},
    ),
    "state": About(
        (
            "kvsteer state -c kvsteer.yaml",
            "kvsteer state --check --admin http://10.0.0.8:9095 --admin http://10.0.0.9:9095",
        ),
        {
            0: "when done",
            1: "when Redis or a gateway does not answer, or what answers is none",
            2: "when an option is wrong or the configuration faulty",
            3: "when views differ",
        },
    ),
    "drain": About(
        ("kvsteer drain 10.0.0.2:8000 --deadline 10m", "kvsteer drain --pick 2"),
        {
            0: "when drained (with --no-wait: ordered)",
            1: _NO_GATEWAY,
            2: _ORDER,
            4: _UNWRITTEN,
        },
    ),
    "undrain": About(
        ("kvsteer undrain 10.0.0.2:8000",),
        {
            0: "when done",
            1: _NO_GATEWAY,
            2: _ORDER,
            3: "when the replica was not drained",
            4: _UNWRITTEN,
        },
    ),
    "report": About(
        (
            "kvsteer report 10.0.0.2:8000 --gateway http://10.0.1.1:9095 --gateway http://10.0.1.2:9095",
            "kvsteer report 10.0.0.2:8000 --redis redis://10.0.1.9:6379/0 --register",
        ),
        {0: "after a stop", 2: "when an option, token or certificate is wrong"},
        _LOGS,
    ),
    "engine": About(
        ("kvsteer engine --port 8001", "kvsteer engine --count 4 --port 8001"),
        {0: "after a stop", 1: "when an address can't be had", 2: "when an option is wrong"},
        "each line that it prints is JSON already",
    ),
}


def below(words: str) -> str:
    """The end of a command's help: its examples and exit statuses."""
    about = ABOUT[words]
    examples = "\n".join(f"  {line}" for line in about.examples)
    statuses = "\n".join(f"  {status:<4} {when}" for status, when in sorted(about.statuses.items()))
    always = f"  {INTERRUPTED:<4} interrupted;  {UNREAD} nobody read what it printed"
    return f"\b\nExamples:\n{examples}\n\n\b\nExit status:\n{statuses}\n{always}\n\nMore: docs/commands.md."
