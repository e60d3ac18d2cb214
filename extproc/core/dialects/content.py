"""Messages and their content parts, as all chat APIs share them: text as text, media by digest.

What the same conversation is in another API's spelling gives the same chain where engines render the
same tokens: a string and a list of one text part are equal, as are null, "" and no content at all.
"""

from collections.abc import Callable
from typing import Any

from extproc.core.dialects.base import Body, Limits, wrong_shape
from extproc.core.prefix import ChainWriter, canonical, tag, utf8, write_plain
from extproc.core.prompt import Chain, chain_of
from extproc.errors import Unreadable

#: Tags of the usual roles; any other role gets its own by the same rule.
ROLES = {
    role: tag(f"role:{role}") for role in ("system", "developer", "user", "assistant", "tool", "function")
}

#: Tag of every part of a message after its first.
NEXT = tag("part")

#: Fields of a message that templates render beside its content, in the order they enter the chain.
_EXTRAS = {
    name: tag(f"message:{name}")
    for name in ("name", "reasoning_content", "reasoning", "tool_calls", "function_call", "tool_call_id")
}

#: Where a media object keeps what it is, best first.
_SOURCES = ("url", "data", "file_data", "file_id", "id")

#: Parts inside parts (a picture in a tool's result) nest once or twice; more would only deepen the stack.
_NESTING = 4


def role_tag(role: object) -> int:
    """The tag of a message's role; raises `Unreadable` when it is not a string."""
    if type(role) is not str:
        raise wrong_shape()
    return ROLES.get(role) or tag(f"role:{role}")


def write_messages(writer: ChainWriter, messages: object, limits: Limits) -> None:
    """Write a list of chat messages; raises `Unreadable` when it is none, or empty."""
    if type(messages) is not list or not messages:
        raise wrong_shape()
    if limits.roots and (first := _first_of_user(messages)):
        writer.messages(messages[:first], ROLES, lambda message: _write_message(writer, message, limits))
        writer.root = writer.length - 1
        messages = messages[first:]
    writer.messages(messages, ROLES, lambda message: _write_message(writer, message, limits))


def chain_of_messages(start: int, messages: object, limits: Limits) -> tuple[Chain, int]:
    """The chain of a chat that is its messages alone, and how many pictures are in it; errors as `write_messages`.

    The same chain as a writer makes, of which there is one only where a message needs it: most chats need none.
    """
    if type(messages) is not list or not messages:
        raise wrong_shape()
    if len(messages) > limits.max_parts:
        raise Unreadable("too_many_parts")
    hashes: list[int] = []
    ends: list[int] = []
    left = iter(messages)
    hashed, size, odd = write_plain(left, ROLES, start, 0, hashes, ends)
    if not odd:
        return chain_of(hashes, ends), 0
    parts = limits.max_parts - len(messages)
    writer = ChainWriter.resumed(hashed, size, chain_of(hashes, ends), parts)
    _write_message(writer, odd[0], limits)
    writer.rest(left, ROLES, lambda message: _write_message(writer, message, limits))
    return writer.chain(), writer.pictures


def _first_of_user(messages: list[Any]) -> int:
    """How many messages there are up to a user's first; 0 for none. What stands before is often everybody's."""
    for number, message in enumerate(messages, 1):
        if type(message) is dict and message.get("role") == "user":
            return number
    return 0


def _write_message(writer: ChainWriter, message: Any, limits: Limits) -> None:
    if type(message) is not dict:
        raise wrong_shape()
    writer.open()
    write_content(writer, role_tag(message.get("role")), message.get("content"), limits)
    for name, kind in _EXTRAS.items():
        value = message.get(name)
        if value is not None:
            write_value(writer, kind, value, limits)
    writer.mark()


def write_value(writer: ChainWriter, kind: int, value: object, limits: Limits) -> None:
    """Write a string as text and anything else as canonical JSON."""
    if type(value) is str:
        writer.text(kind, value)
    else:
        writer.data(kind, canonical(value, limits.max_depth))


def write_list(writer: ChainWriter, kind: int, values: object, limits: Limits) -> None:
    """Write a list of JSON values (tools, documents), null for none, and leave a hash at its end."""
    if values is None:
        return
    if type(values) is not list:
        raise wrong_shape()
    writer.spend(len(values))
    for value in values:
        writer.data(kind, canonical(_stable(value), limits.max_depth))
    writer.mark()


def write_content(writer: ChainWriter, kind: int, content: object, limits: Limits, level: int = 0) -> None:
    """Write a message's content: a string, null, or a list of strings and part objects.

    `kind` tags its first piece. Raises `Unreadable` for other shapes.
    """
    if type(content) is str:
        writer.text(kind, content)
        return
    if content is None or content == []:
        writer.text(kind, "")
        return
    if type(content) is not list:
        raise wrong_shape()
    writer.spend(len(content))
    for part in content:
        _write_part(writer, kind, part, limits, level)
        kind = NEXT


def _write_part(writer: ChainWriter, kind: int, part: Any, limits: Limits, level: int) -> None:
    if type(part) is str:
        writer.text(kind, part)
        return
    if type(part) is not dict:
        raise wrong_shape()
    name = part.get("type")
    if name is None:  # vLLM takes {"text": ...} and {"image_url": ...} without a type
        name = next(iter(part), "")
    if type(name) is not str:
        raise wrong_shape()
    _WRITERS.get(name, _other)(writer, kind, part, limits, level)


def media_source(value: object, limits: Limits) -> bytes:
    """Bytes that tell one image, clip or file from another: its URL, data or id, else the whole object."""
    if type(value) is dict:
        value = next((value[key] for key in _SOURCES if type(value.get(key)) is str), value)
    return utf8(value) if type(value) is str else canonical(value, limits.max_depth)


PartWriter = Callable[[ChainWriter, int, Body, Limits, int], None]


def _text(field: str) -> PartWriter:
    """Writes the text that a part keeps in `field`."""

    def write(writer: ChainWriter, kind: int, part: Body, limits: Limits, level: int) -> None:
        text = part.get(field)
        if type(text) is not str:
            raise wrong_shape()
        writer.text(kind, text)

    return write


def _media(name: str, *fields: str) -> PartWriter:
    """Writes media named by the first of `fields` that is there; a `uuid` (vLLM's key) goes before all."""
    marker = tag(f"media:{name}")
    keys = ("uuid", *fields)

    def write(writer: ChainWriter, kind: int, part: Body, limits: Limits, level: int) -> None:
        value = next((part[key] for key in keys if part.get(key) is not None), None)
        if value is None:
            raise wrong_shape()
        writer.media(kind ^ marker, media_source(value, limits))

    return write


_TOOL_USE = tag("tool_use")
_TOOL_RESULT = tag("tool_result")
_DOCUMENT = tag("document")
_OTHER = tag("media:other")


def _tool_use(writer: ChainWriter, kind: int, part: Body, limits: Limits, level: int) -> None:
    for field in ("name", "id", "input"):
        write_value(writer, kind ^ _TOOL_USE, part.get(field), limits)
        kind = NEXT


def _tool_result(writer: ChainWriter, kind: int, part: Body, limits: Limits, level: int) -> None:
    if level >= _NESTING:
        raise Unreadable("too_deep")
    write_value(writer, kind ^ _TOOL_RESULT, part.get("tool_use_id"), limits)
    write_content(writer, NEXT ^ _TOOL_RESULT, part.get("content"), limits, level + 1)


def _document(writer: ChainWriter, kind: int, part: Body, limits: Limits, level: int) -> None:
    """Anthropic's document: its text counts as text, a file as media, content blocks as parts."""
    source = part.get("source")
    if type(source) is not dict or level >= _NESTING:
        raise wrong_shape()
    write_value(writer, kind ^ _DOCUMENT, [part.get("title"), part.get("context")], limits)
    if source.get("type") == "text":
        write_value(writer, NEXT ^ _DOCUMENT, source.get("data"), limits)
    elif source.get("type") == "content":
        write_content(writer, NEXT ^ _DOCUMENT, source.get("content"), limits, level + 1)
    else:
        writer.media(NEXT ^ _DOCUMENT, media_source(source, limits))


def _other(writer: ChainWriter, kind: int, part: Body, limits: Limits, level: int) -> None:
    """A kind of part we don't know: told apart by all it says, counted like media."""
    writer.media(kind ^ _OTHER, canonical(_stable(part), limits.max_depth))


def _stable(value: object) -> object:
    """`value` without Anthropic's cache marks: clients move them every turn, engines don't render them."""
    if type(value) is dict and "cache_control" in value:
        return {key: inner for key, inner in value.items() if key != "cache_control"}
    return value


_WRITERS: dict[str, PartWriter] = {
    "text": _text("text"),
    "input_text": _text("text"),
    "output_text": _text("text"),
    "summary_text": _text("text"),
    "reasoning_text": _text("text"),
    "refusal": _text("refusal"),
    "thinking": _text("thinking"),
    "image_url": _media("image", "image_url"),
    "input_image": _media("image", "image_url", "file_id"),
    "image": _media("image", "source", "image"),
    "video_url": _media("video", "video_url"),
    "audio_url": _media("audio", "audio_url"),
    "input_audio": _media("audio", "input_audio"),
    "file": _media("file", "file"),
    "input_file": _media("file", "file_id", "file_url", "file_data"),
    "tool_use": _tool_use,
    "tool_result": _tool_result,
    "document": _document,
}
