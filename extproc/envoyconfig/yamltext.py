"""YAML that Envoy reads as meant: its parser takes more bare words for booleans and numbers than Python's."""

import re
from typing import Any

import yaml

#: A word that starts with a letter is a string to every YAML parser ...
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
#: ... except these, in any mixture of cases (YAML 1.1's booleans and null, and numbers some parsers know).
_KEYWORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "inf", "nan"})


class _Dumper(yaml.SafeDumper):
    """Strings in double quotes unless they can be nothing else; no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = _WORD.fullmatch(text) and text.lower() not in _KEYWORDS
    style = None if plain else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _string)


def to_yaml(tree: object) -> str:
    """Block-style YAML, keys in the order given."""
    return str(yaml.dump(tree, Dumper=_Dumper, sort_keys=False, width=10_000, default_flow_style=False))
