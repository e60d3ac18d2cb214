"""What is wrong with a setting, in a sentence that says how to mend it."""

import difflib
import math
import re
from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from extproc.quantities import DurationKind, SizeKind, show_duration, show_size
from extproc.settings import GatewaySettings
from extproc.settings.base import FaultAtError

Loc = tuple[int | str, ...]
#: Longest piece of a value that is quoted in a message, in characters.
_QUOTED = 60
#: A key as settings have it, or a name such as `org/model-7.1`.
_PLAIN = re.compile(r"[\w./:@+-]+", re.ASCII)
#: What pydantic puts behind a key that is no text itself.
_KEY = "[key]"
#: Most groups that are named as the place of a setting that stands in the wrong one.
_MOST_PLACES = 2


def explain(fault: ErrorDetails) -> str:
    """One line: the setting's path, what is wrong with it, how to mend it. Secrets' values are not quoted."""
    return f"{path_of(place_of(fault))}: {_sentence(fault)}"


def place_of(fault: ErrorDetails) -> Loc:
    """Where the setting stands: where its check stood, or deeper down where that says so."""
    error = fault.get("ctx", {}).get("error")
    return (*fault["loc"], *error.where) if isinstance(error, FaultAtError) else fault["loc"]


def path_of(loc: Loc) -> str:
    """A setting's path as messages and the documentation write it: `pools[0].metrics.token_file`."""
    return "".join(_step(part) for part in loc if part != _KEY).removeprefix(".") or "the file"


def _step(part: int | str) -> str:
    """One part of a path; a key that is no plain word is quoted, so that nobody takes it for more of the message."""
    if isinstance(part, int):
        return f"[{part}]"
    plain = len(part) <= _QUOTED and _PLAIN.fullmatch(part)
    return f".{part}" if plain else f"[{_clipped(part)}]"


def _clipped(text: str) -> str:
    return repr(text) if len(text) <= _QUOTED else f"{text[:_QUOTED]!r}..."


def _sentence(fault: ErrorDetails) -> str:
    kind = fault["type"]
    if kind == "extra_forbidden":
        return "is not a setting" + _suggestion(fault["loc"])
    if kind == "missing":
        return "is missing; it has no default"
    if kind == "value_error":
        message = fault["msg"].removeprefix("Value error, ")
        return message if repr(fault["input"]) in message else _said(fault) + message
    if kind == "string_pattern_mismatch":
        return f"{_said(fault)}is not of the right form; write {_form(fault['loc'])}"
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        return f"{_said(fault)}{words} {_shown(fault['ctx'][key], fault['loc'])}"
    if kind == "literal_error":
        return f"{_said(fault)}is none of the choices; write {fault['ctx']['expected']}"
    return _said(fault) + _WANTED.get(kind, fault["msg"])


def _said(fault: ErrorDetails) -> str:
    """The value as the file has it, where that is short and no secret."""
    value = fault["input"]
    if _is_secret(fault["loc"]) or not isinstance(value, str | int | float | bool | None):
        return ""
    text = _shown(value, fault["loc"])
    return f"{text} " if len(text) <= _QUOTED else f"{text[:_QUOTED]}... "


def _shown(value: str | float | None, loc: Loc) -> str:
    """A value as a file would have it, in the unit of the setting at `loc`."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) or not math.isfinite(value):
        return repr(value)
    kinds = field.metadata if (field := _field_at(loc)) else []
    if DurationKind in kinds:
        return show_duration(value)
    return show_size(int(value)) if SizeKind in kinds else str(value)


_BOUNDS = {
    "greater_than": ("is too small; it must be above", "gt"),
    "greater_than_equal": ("is too small; the least is", "ge"),
    "less_than": ("is too large; it must be below", "lt"),
    "less_than_equal": ("is too large; the most is", "le"),
}

_WANTED = {
    "string_type": "is no text; put it in quotes",
    "int_type": "is no whole number; write digits without quotes",
    "int_from_float": "is no whole number; write digits without quotes",
    "float_type": "is no number; write digits without quotes",
    "finite_number": "is not finite; write a number",
    "bool_type": "is no truth value; write true or false",
    "bool_parsing": "is no truth value; write true or false",
    "list_type": "is no list; write its entries below, each after a dash",
    "dict_type": "is no group of settings; write them below, indented",
    "model_type": "is no group of settings; write them below, indented",
    "too_short": "is empty; write at least one entry",
}


def _suggestion(loc: Loc) -> str:
    model = _model_at(loc[:-1])
    if model is None:
        return "; remove it"
    known = list(model.model_fields)
    if places := _places_of(str(loc[-1])):
        return f" here; move it into {' or '.join(places)}"
    near = difflib.get_close_matches(str(loc[-1]), known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known here: {', '.join(sorted(known))}"


def _places_of(name: str) -> list[str]:
    """Groups that have a setting of just this name, in words; none when there are many, any of which may be meant."""
    found = list(dict.fromkeys(map(_in_words, _holders(GatewaySettings, "", name))))
    return found if len(found) <= _MOST_PLACES else []


def _in_words(path: str) -> str:
    return f"an entry of {path.removesuffix('[]')}" if path.endswith("[]") else path


def _holders(model: type[BaseModel], path: str, name: str) -> Iterator[str]:
    if path and name in model.model_fields:
        yield path
    for key, field in model.model_fields.items():
        many = "[]" if get_origin(field.annotation) is list else ""
        for inner in _models_in(field.annotation):
            yield from _holders(inner, f"{path}.{key}{many}".removeprefix("."), name)


def _is_secret(loc: Loc) -> bool:
    field = _field_at(loc)
    return field is not None and not field.repr


def _form(loc: Loc) -> str:
    extra = field.json_schema_extra if (field := _field_at(loc)) else None
    return str(extra["form"]) if isinstance(extra, dict) else "it otherwise"


def _field_at(loc: Loc) -> FieldInfo | None:
    model = _model_at(loc[:-1]) if loc else None
    return model.model_fields.get(str(loc[-1])) if model else None


def _model_at(loc: Loc) -> type[BaseModel] | None:
    model: type[BaseModel] = GatewaySettings
    for part in loc:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        inner = next(_models_in(field.annotation), None) if field else None
        if inner is None:
            return None
        model = inner
    return model


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)
