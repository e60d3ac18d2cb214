"""From a request's path and bytes to its `Prompt`: one module per API behind one `Dialect` protocol.

To add one: write its module with NAME, PATHS and `read`, add it to DIALECTS, test it, and give it a row in
docs/dialects.md.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import orjson

from extproc.core.dialects import (
    anthropic_messages,
    halves,
    openai_chat,
    openai_completions,
    openai_embeddings,
    openai_responses,
    rerank,
    score,
    sglang_generate,
    tgi_generate,
    vllm_generate,
)
from extproc.core.dialects.base import MOST_NAME, Body, Dialect, Limits
from extproc.core.dialects.shared_path import SharedPath
from extproc.core.prompt import Prompt
from extproc.errors import Unreadable

__all__ = ["DIALECTS", "Dialect", "Limits", "find", "read"]

#: Every dialect, each once. Two that share a path are told apart by `SharedPath` below.
DIALECTS: tuple[Dialect, ...] = (
    openai_chat,
    openai_completions,
    openai_responses,
    openai_embeddings,
    rerank,
    score,
    anthropic_messages,
    tgi_generate,
    sglang_generate,
    vllm_generate,
)

_BY_PATH: dict[str, Dialect] = {path: dialect for dialect in DIALECTS for path in dialect.PATHS}
_BY_PATH["/generate"] = SharedPath("/generate", {"inputs": tgi_generate}, sglang_generate)
_ROOT = _BY_PATH.pop("/")

#: Characters of a path that are looked at: twice the longest end and more, so that the cache stays small.
_PATH_TAIL = 64

#: Bytes of a body from which on its brackets and commas are counted before it is parsed. Counting takes about
#: 1 ms/MiB, which smaller bodies should not pay: the worst of 2 MiB (`[],` throughout) is parsed in 63 ms.
_LARGE = 2 * 2**20

#: Most lists and objects in one large body. Parsing 30 MiB of `[],` takes 5 s, with this many 0.2 s; a chat
#: of 20,000 messages has 20,000. Brackets inside strings are counted too, as only parsing tells them apart.
_MOST_NESTS = 500_000

#: Most commas in one large body, those inside strings too. A prompt of a million token ids has a million, 64 MiB
#: of prose about as many (one for 60 bytes); 64 MiB of `1,` have 32 million and take 5 s and 1 GB to parse.
_MOST_COMMAS = 2_000_000


def find(path: str) -> Dialect | None:
    """The dialect of a request path, with or without a prefix, query and trailing slash; None for no LLM API.

    Paths are matched by case. The answer for the last 1,024 different paths is remembered.
    """
    return _BY_PATH.get(path) or _find(path.partition("?")[0][-_PATH_TAIL:])


@lru_cache(maxsize=1024)
def _find(path: str) -> Dialect | None:
    if path == "/":
        return _ROOT
    path = path.removesuffix("/")
    at = path.find("/")
    while at >= 0:  # from the left: the longest end wins
        found = _BY_PATH.get(path[at:])
        if found:
            return found
        at = path.find("/", at + 1)
    return None


def _makes_many(body: bytes) -> bool:
    """Whether parsing would make so many values or keys that it would hold up everybody else."""
    commas = body.count(b",")
    nests = body.count(b"[") + body.count(b"{")
    if commas > _MOST_COMMAS or nests > _MOST_NESTS:
        return True
    # A key follows a comma or an opening brace, so that keys need no count where these are few.
    return commas + nests > _MOST_NESTS and body.count(b'":') > _MOST_NESTS


def read(path: str, body: bytes | memoryview, limits: Limits) -> Prompt:
    """The prompt in the decoded `body` of a request to `path`.

    Raises `Unreadable` with a word of `REASONS`, and nothing else, whatever the bytes are.
    """
    dialect = _BY_PATH.get(path) or find(path)
    if dialect is None:
        raise Unreadable("no_dialect")
    if len(body) > _LARGE and _makes_many(bytes(body)):
        raise Unreadable("too_many_parts")
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        parsed = _parsed_again(body, error)
    if type(parsed) is not dict:
        raise Unreadable("wrong_shape")
    asked = _resolved(parsed, limits.aliases) if limits.aliases else ""
    try:
        prompt = dialect.read(parsed, limits)
    except Unreadable as error:
        model = parsed.get("model")
        error.model = _short(model) if type(model) is str else ""
        error.asked = asked
        raise
    if asked:
        prompt.asked = asked
    return prompt


def _short(model: str) -> str:
    """A model's name; of one that is too long as much as makes it a name that nobody lists."""
    return model if len(model) <= MOST_NAME else model[: MOST_NAME + 1]


def _parsed_again(body: bytes | memoryview, error: orjson.JSONDecodeError) -> Any:
    """What orjson refused, where it may be read all the same."""
    if "depth limit" in error.msg or "recursion limit" in error.msg:
        raise Unreadable("too_deep") from None
    try:
        return halves.loads(bytes(body))
    except RecursionError:
        raise Unreadable("too_deep") from None
    except ValueError:
        raise Unreadable("not_json") from None


def _resolved(parsed: Body, aliases: Mapping[str, str]) -> str:
    """Put the model itself in place of an alias, so that both have the same chains; returns the alias, or ""."""
    model = parsed.get("model")
    if type(model) is not str or model not in aliases:
        return ""
    parsed["model"] = aliases[model]
    return model
