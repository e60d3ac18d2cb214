"""docs/configuration.md, made from the settings themselves: `python -m extproc.cli.config_docs`."""

from collections.abc import Iterator
from inspect import cleandoc
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
from annotated_types import Ge, Gt, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from extproc.quantities import AddressKind, DurationKind, SizeKind, show_duration, show_size
from extproc.settings import GatewaySettings

_HEAD = """\
# Configuration

`kvsteer serve -c kvsteer.yaml` reads one YAML file; `kvsteer check-config kvsteer.yaml` says what is wrong with
it, where, and how to mend it. Only `pools` is required:

```yaml
pools:
  - replicas: ["10.0.0.1:8000", "10.0.0.2:8000"]
```

A key that is not below is refused, and so is a key given twice. Durations are seconds, or text with a unit:
`500ms`, `2s`, `10m`, `1h`. Sizes are bytes, or text with a unit: `4KiB`, `32MiB`, `1GiB`. Addresses are
`host:port`, IPv6 in brackets: `[::1]:8000`. Quote text that YAML would take for something else: `"on"`, `"no"`.

This page is made from the settings by `python -m extproc.cli.config_docs > docs/configuration.md`.
"""


def document() -> str:
    """The whole page, as it stands in docs/configuration.md."""
    return "\n".join([_HEAD, *document_of(GatewaySettings)])


def document_of(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """Lines for one group of settings, whose names begin with `path`, and for those inside it."""
    yield f"## {path.rstrip('.') or 'Top level'}\n"
    yield f"{cleandoc(model.__doc__ or '')}\n"
    yield "| setting | default | values | meaning |"
    yield "|---|---|---|---|"
    inner = []
    for name, field in model.model_fields.items():
        group = next(_models_in(field.annotation), None)
        if group:
            inner.append((group, f"{path}{name}{'[]' if _is_list(field) else ''}."))
        yield _row(path + name, field, group)
    yield ""
    for group, below in inner:
        yield from document_of(group, below)


def _row(name: str, field: FieldInfo, group: type[BaseModel] | None) -> str:
    meaning = field.description or f"see [{name}](#{_anchor(name)})"
    cells = (f"`{name}`", _default(field, group), _values(field, group), meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _anchor(name: str) -> str:
    return "".join(letter for letter in name if letter.isalnum() or letter == "_")


def _default(field: FieldInfo, group: type[BaseModel] | None) -> str:
    if field.is_required():
        return "required"
    if group:
        return "as below"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None:
        return "none"
    if value is PydanticUndefined or value in ("", [], {}):
        return "empty"
    return f"`{_show(value, field)}`"


def _show(value: Any, field: FieldInfo) -> str:
    if DurationKind in _marks(field):
        return show_duration(value)
    if SizeKind in _marks(field):
        return show_size(value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _values(field: FieldInfo, group: type[BaseModel] | None) -> str:
    if group:
        return "list of groups" if _is_list(field) else "group"
    annotation = _given(field.annotation)
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(annotation))
    if isinstance(field.json_schema_extra, dict):
        return str(field.json_schema_extra["form"])
    return _kind(field) + _range(field)


def _kind(field: FieldInfo) -> str:
    marks = {DurationKind: "duration", SizeKind: "size", AddressKind: "address"}
    for mark, word in marks.items():
        if mark in _marks(field):
            return word
    kinds: dict[object, str] = {bool: "`true`, `false`", str: "text", int: "whole number", float: "number"}
    annotation = _given(field.annotation)
    if get_origin(annotation) is dict:
        return "texts by name" if get_args(annotation) == (str, str) else "numbers by name"
    if _is_list(field):
        return "list of addresses" if "AddressKind" in str(annotation) else "list of texts"
    return kinds[annotation]


def _given(annotation: Any) -> Any:
    """The type of what is given, bare of its marks, also of a setting that may be left out (`int | None`)."""
    if get_origin(annotation) in (Union, UnionType):
        annotation = next(part for part in get_args(annotation) if part is not NoneType)
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _marks(field: FieldInfo) -> list[Any]:
    """Bounds and units, also those of a setting that may be left out."""
    parts = [] if _is_list(field) else [p for p in get_args(field.annotation) if get_origin(p) is Annotated]
    return [*field.metadata, *(mark for part in parts for mark in part.__metadata__)]


def _range(field: FieldInfo) -> str:
    """The bounds, in the setting's own unit: `, 1s to 10m` or `, above 0, at most 1`."""
    least = next((f"{_show(m.ge, field)}" for m in _marks(field) if isinstance(m, Ge)), "")
    above = next((f"above {_show(m.gt, field)}" for m in _marks(field) if isinstance(m, Gt)), "")
    most = next((f"{_show(m.le, field)}" for m in _marks(field) if isinstance(m, Le)), "")
    if least and most:
        return f", {least} to {most}"
    return "".join(f", {part}" for part in (above, most and f"at most {most}") if part)


def _is_list(field: FieldInfo) -> bool:
    return get_origin(_given(field.annotation)) is list


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


if __name__ == "__main__":
    click.echo(document(), nl=False)
