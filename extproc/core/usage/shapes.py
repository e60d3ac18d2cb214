"""The ways engines write usage into a JSON object, each read into the neutral record.

| who | where | what |
|---|---|---|
| OpenAI's chat, completions, embeddings | `usage` | `prompt_tokens`, `completion_tokens` of all choices |
| OpenAI's Responses | `usage`, in events `response.usage` | `input_tokens` with the cached ones, `output_tokens` |
| Anthropic's Messages | `usage` | `input_tokens` without what was read from or written to a cache |
| SGLang /generate | `meta_info` | `prompt_tokens`, `completion_tokens`, `cached_tokens` |
| TGI /generate | `details` | `generated_tokens`, of each sequence with `best_of`; `input_length` in streams |
| llama.cpp | `timings` | `cache_n` + `prompt_n` in, `predicted_n` out, of one prompt; also without `usage` |
"""

from collections.abc import Iterable, Mapping
from typing import Any

from extproc.core.usage.record import Usage, checked, count, total

Object = Mapping[str, Any]

_CACHE_READ, _CACHE_WRITTEN = "cache_read_input_tokens", "cache_creation_input_tokens"
#: Statuses of a Responses object that has come to its end with an answer.
_ENDED_WELL = ("completed", "incomplete")


def of_body(body: Object, several: bool = False) -> Usage | None:
    """The usage of a whole answer; None when it has none or is an error.

    `several`: the answer is known to hold more than one choice, where `body` holds only members out of it.
    """
    if body.get("error") is not None:
        return None
    usage = _of_members(body)
    if usage is None:
        return None
    if "timings" in body and (several or len(_list(body, "choices")) > 1):
        return None  # llama.cpp counts one prompt of a list, and one answer (2 and 4 tokens for two of each)
    return Usage(usage.input, usage.output, usage.cached, finished(body), usage.odd)


def _of_members(body: Object) -> Usage | None:
    for name, read in _READERS.items():
        value = body.get(name)
        if isinstance(value, dict):
            return read(value)
    return None


def of_usage(usage: Object) -> Usage:
    """The `usage` object of OpenAI's and Anthropic's APIs."""
    if "prompt_tokens" in usage:
        cached = _dict(usage, "prompt_tokens_details").get("cached_tokens")
        return checked(usage["prompt_tokens"], usage.get("completion_tokens"), cached)
    read, written = usage.get(_CACHE_READ), usage.get(_CACHE_WRITTEN)
    fresh, out = usage.get("input_tokens"), usage.get("output_tokens")
    if read is None and written is None:
        return checked(fresh, out, _dict(usage, "input_tokens_details").get("cached_tokens"))
    whole = total((fresh, read, written)) if fresh is not None else None
    refused = sum(told is not None and count(told) is None for told in (fresh, written))
    known = checked(whole, out, read)
    return Usage(known.input, known.output, known.cached, None, known.odd + refused)


def of_meta_info(meta: Object) -> Usage:
    """SGLang's own."""
    return checked(meta.get("prompt_tokens"), meta.get("completion_tokens"), meta.get("cached_tokens"))


def of_details(details: Object) -> Usage:
    """TGI's own; a prompt's length is told in streams only."""
    others = [entry for entry in _list(details, "best_of_sequences") if isinstance(entry, dict)]
    made = [details.get("generated_tokens"), *(entry.get("generated_tokens") for entry in others)]
    length = details.get("input_length")
    if len(made) == 1:
        return checked(length, made[0], None)
    return checked(length, None if None in made else total(made), None)


def of_timings(timings: Object) -> Usage:
    """llama.cpp's, of one prompt and one answer."""
    cached, computed = timings.get("cache_n"), timings.get("prompt_n")
    whole = None if cached is None or computed is None else total((cached, computed))
    return checked(whole, timings.get("predicted_n"), cached)


#: Members that hold usage, the one that is believed first being first.
_READERS = {"usage": of_usage, "meta_info": of_meta_info, "details": of_details, "timings": of_timings}


def of_bodies(bodies: Iterable[object]) -> Usage | None:
    """The usage of a list of answers, as SGLang gives them for several prompts or several answers to one."""
    parts = [of_body(body) if isinstance(body, dict) else None for body in bodies]
    return together([part or Usage() for part in parts])


def together(parts: list[Usage]) -> Usage | None:
    """Several answers of one request as one; None for none.

    What was generated adds up. The prompt does not: several prompts would add up, several answers to one prompt
    would not, and nothing tells which it was; so it is unknown, unless there is one answer.
    """
    if len(parts) < 2:
        return parts[0] if parts else None
    outs, done = [part.output for part in parts], [part.choices for part in parts]
    return Usage(
        output=None if None in outs else total(outs),
        choices=None if None in done else total(done),
        odd=sum(part.odd for part in parts),
    )


def finished(body: Object) -> int | None:
    """How many choices of an answer had finished; None where nothing tells."""
    choices = _list(body, "choices")
    if choices:
        return sum(isinstance(c, dict) and c.get("finish_reason") is not None for c in choices)
    for holder in (body, _dict(body, "meta_info"), _dict(body, "details")):
        if holder.get("finish_reason") is not None or holder.get("stop_reason") is not None:
            return 1
    return 1 if body.get("status") in _ENDED_WELL else None


def has_content(event: Object) -> bool:
    """Whether an event of a stream shows that its prompt is done: it carries content, or an end without any."""
    kind = event.get("type")
    if isinstance(kind, str):
        if kind == "content_block_start":  # of a tool: its name is generated; of a text: empty as yet
            return _dict(event, "content_block").get("type") not in ("text", "thinking")
        if kind.endswith((".delta", "_block_delta")):
            return bool(event.get("delta"))
    choices = _list(event, "choices")
    return any(map(_choice_has_content, choices)) or bool(
        event.get("text")
        or event.get("output_ids")
        or event.get("token")
        or event.get("generated_text")
        or event.get("content")
        or event.get("tokens")
    )


_CONTENT = ("content", "reasoning_content", "reasoning", "tool_calls", "function_call", "refusal", "audio")


def _choice_has_content(choice: object) -> bool:
    if not isinstance(choice, dict):
        return False
    delta = _dict(choice, "delta")
    return bool(
        choice.get("text")
        or choice.get("token_ids")
        or choice.get("finish_reason")
        or any(delta.get(name) for name in _CONTENT)
    )


def _dict(holder: Object, name: str) -> Object:
    value = holder.get(name)
    return value if isinstance(value, dict) else {}


def _list(holder: Object, name: str) -> list[Any]:
    value = holder.get(name)
    return value if isinstance(value, list) else []
