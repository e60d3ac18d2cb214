"""Kubernetes label selectors, checked when the configuration is read.

The API server would refuse a bad one only when it is asked, and one that is well formed but empty matches
everything. The grammar is that of k8s.io/apimachinery/pkg/labels: requirements with commas between,

    key = value   key == value   key != value   key in (a, b)   key notin (a, b)   key   !key   key > 1   key < 1

with keys of the form [PREFIX/]NAME: a DNS subdomain of at most 253 characters, and a name of at most 63.
"""

import re

from extproc.errors import ConfigError

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_KEY = rf"(?:(?P<prefix>{_LABEL}(?:\.{_LABEL})*)/)?{_NAME}"
_REQUIREMENT = re.compile(
    rf"""\s*(?:
        !\s*{_KEY.replace("prefix", "p1")}
      | {_KEY.replace("prefix", "p2")}\s*(?:
            (?:==?|!=)\s*(?:{_NAME})?
          | \s(?:in|notin)\s*\(\s*{_NAME}\s*(?:,\s*{_NAME}\s*)*\)
          | [<>]\s*-?[0-9]{{1,18}}
        )?
    )\s*(?=,|\Z)""",
    re.VERBOSE,
)
#: Longest selector; far above any real one, and URLs have a limit too.
_LONGEST = 4096
_DNS_LABEL = re.compile(_LABEL)
_DNS_SUBDOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")


def check_selector(selector: str) -> str:
    """A label selector as it is.

    Raises:
        ConfigError: it is none, or would match every pod.
    """
    if not selector.strip():
        raise ConfigError(
            "discovery.kubernetes: the selector is empty, which matches every pod; write app=NAME"
        )
    if len(selector) > _LONGEST:
        raise ConfigError(f"discovery.kubernetes: the selector is longer than {_LONGEST} characters")
    at = 0
    while True:
        match = _REQUIREMENT.match(selector, at)
        if match is None or any(prefix and len(prefix) > 253 for prefix in match.groupdict().values()):
            raise _fault(selector, at)
        if match.end() == len(selector):
            return selector
        at = match.end() + 1


def check_name(name: str, what: str) -> str:
    """The name of a service or a namespace, as it is (a DNS label).

    Raises:
        ConfigError: it is none.
    """
    if not _DNS_LABEL.fullmatch(name):
        raise ConfigError(
            f"discovery.kubernetes: {what} {name!r} is no name; it has small letters, digits and -, at most 63"
        )
    return name


def check_subdomain(name: str, what: str) -> str:
    """The name of an object that may have dots, as it is (a DNS subdomain).

    Raises:
        ConfigError: it is none.
    """
    if len(name) > 253 or not _DNS_SUBDOMAIN.fullmatch(name):
        raise ConfigError(
            f"discovery.inference_pool: {what} {name[:260]!r} is no name; it has small letters, digits, - and dots, "
            "at most 253"
        )
    return name


def _fault(selector: str, at: int) -> ConfigError:
    near = selector[at : at + 20]
    where = f"near {near!r}" if near.strip() else "at its end"
    return ConfigError(
        f"discovery.kubernetes: {selector[:200]!r} is no label selector, see {where}; "
        "write for example app=engine,tier in (gold, silver),!canary"
    )
