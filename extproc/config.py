"""Read a configuration file. Unknown keys are refused; messages name file, line, key and how to mend it."""

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from extproc.errors import ConfigError
from extproc.faults import explain, place_of
from extproc.settings import (
    AdminSettings,
    CapacitySettings,
    EnvoySettings,
    FeedbackSettings,
    GatewaySettings,
    GrpcSettings,
    HeadroomSettings,
    IndexSettings,
    LimitSettings,
    LogSettings,
    MetricsSettings,
    PolicySettings,
    PoolSettings,
    RedisSettings,
    ReplicaSettings,
    RequestSettings,
    Settings,
    ShadowSettings,
)

__all__ = [
    "AdminSettings",
    "CapacitySettings",
    "EnvoySettings",
    "FeedbackSettings",
    "GatewaySettings",
    "GrpcSettings",
    "HeadroomSettings",
    "IndexSettings",
    "LimitSettings",
    "LogSettings",
    "MetricsSettings",
    "PolicySettings",
    "PoolSettings",
    "RedisSettings",
    "ReplicaSettings",
    "RequestSettings",
    "Settings",
    "ShadowSettings",
    "line_of",
    "load",
    "parse",
]

#: Longest configuration that is read, in bytes; far above any real one.
_LARGEST = 16 * 2**20


def load(path: str | Path) -> GatewaySettings:
    """Read and check a configuration file.

    Raises:
        ConfigError: the file can't be read, is not YAML, or has a fault; one line for each fault.
    """
    try:
        with Path(path).open("rb") as file:
            text = file.read(_LARGEST + 1).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}; give the path of a YAML file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text; give the path of a YAML file") from None
    if len(text) > _LARGEST:
        raise ConfigError(f"{path}: is larger than {_LARGEST} bytes; give the path of a YAML file")
    return parse(text, str(path))


def parse(text: str, source: str) -> GatewaySettings:
    """Check a configuration given as YAML text; `source` is named in errors.

    Raises:
        ConfigError: as `load`.
    """
    try:
        root = yaml.compose(text, Loader=_UniqueKeyLoader)
        tree = yaml.load(text, Loader=_UniqueKeyLoader)  # noqa: S506 - a SafeLoader underneath
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{source}{_yaml_fault(error)}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{source}: holds no settings; start with pools: (docs/configuration.md)")
    try:
        return GatewaySettings.model_validate(tree)
    except ValidationError as error:
        faults = (f"{source}:{_line(root, place_of(fault))}: {explain(fault)}" for fault in error.errors())
        raise ConfigError("\n".join(faults)) from None


def line_of(path: str | Path, loc: tuple[int | str, ...]) -> int:
    """Line (from 1) of a setting in a file that `load` has read; 1 where it stands in none.

    Raises:
        OSError: the file can't be read any more.
    """
    with Path(path).open("rb") as file:
        text = file.read(_LARGEST).decode("utf-8-sig")
    return _line(yaml.compose(text, Loader=_UniqueKeyLoader), loc)


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML that refuses a key given twice in one mapping, where plain YAML lets the last win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = str(key_node.value)
            if key in seen:
                problem = f"the key {key!r} is given twice; remove one"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _yaml_fault(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "it can't be parsed"
    where = f":{mark.line + 1}: column {mark.column + 1}" if mark else ""
    return f"{where}: is not YAML as expected: {problem}"


def _line(node: yaml.Node | None, loc: tuple[int | str, ...]) -> int:
    """Line (from 1) of the setting at `loc`, or of the deepest part of the way to it that is there."""
    line = 1
    for part in loc:
        step = _step(node, part)
        if step is None:
            break
        line, node = step
    return line


def _step(node: yaml.Node | None, part: int | str) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part].start_mark.line + 1, node.value[part]
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(part):
                return key.start_mark.line + 1, value
    return None
