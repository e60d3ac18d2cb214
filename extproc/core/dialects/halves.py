"""JSON in which a string has half of a surrogate pair (`"\\ud800"`): orjson refuses it, Python's own parser does not.

Some engines read bodies with that parser, so such a body is a prompt like any other: it is placed by its prefix, and
gets another model or priority where its tenant is degraded. All else that orjson refuses is refused here too, but for
numbers beyond a double, which nothing reads.
"""

import json
import re
from typing import Any, Final

#: Half of a pair as an escape; whole pairs match too, so a match alone says nothing.
_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")
#: Strings that go on as names, to metrics, engines and other gateways: they must be text.
_NAMES: Final = ("model", "lora_path", "cache_salt", "extra_key")


def loads(body: bytes) -> Any:
    """The value of a body that orjson refused, if halves of surrogate pairs were the reason.

    Raises:
        ValueError: it is no JSON for another reason, or such a half stands in a name.
        RecursionError: it nests too deep.
    """
    if _HALF.search(body) is None:
        raise ValueError("not JSON")
    parsed = json.loads(body.decode(), parse_constant=_none)
    if isinstance(parsed, dict):
        _check_names(parsed)
    return parsed


def _check_names(parsed: dict[str, Any]) -> None:
    for name in _NAMES:
        value = parsed.get(name)
        for each in value if isinstance(value, list) else (value,):
            if isinstance(each, str):
                each.encode()  # a UnicodeEncodeError is a ValueError


def _none(_: str) -> float:
    raise ValueError("not JSON")  # NaN and infinities
