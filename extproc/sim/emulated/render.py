"""The chat template: messages to the bytes that become tokens.

The same chat extended by the answer and a turn begins with the same bytes, as with a real template.
Images, sounds and files become as many bytes as their tokens take, made of a digest of their content.
"""

from typing import Any

import orjson
import xxhash

from extproc.sim.emulated.problems import invalid, missing


def render_chat(body: dict[str, Any], media_size: int) -> bytes:
    """The prompt of a chat request. `media_size` is the bytes an image stands for.

    Raises:
        Problem: `messages` has a wrong shape.
    """
    messages = body.get("messages")
    if messages is None:
        raise missing("messages")
    if not isinstance(messages, list):
        raise invalid("messages", "list_type", "Input should be a valid list")
    parts: list[bytes] = []
    if body.get("tools"):
        parts += [b"<|tools|>\n", orjson.dumps(body["tools"]), b"\n"]
    for index, message in enumerate(messages):
        _render_message(message, f"messages.{index}", media_size, parts)
    parts.append(b"<|assistant|>\n")
    return b"".join(parts)


def _render_message(message: Any, where: str, media_size: int, parts: list[bytes]) -> None:
    if not isinstance(message, dict):
        raise invalid(where, "dict_type", "Input should be a valid dictionary")
    role = message.get("role")
    if not isinstance(role, str):
        raise missing(f"{where}.role")
    parts.append(f"<|{role}|>\n".encode())
    _render_content(message.get("content"), where, media_size, parts)
    if message.get("tool_calls"):
        parts.append(orjson.dumps(message["tool_calls"]))
    parts.append(b"\n")


def _render_content(content: Any, where: str, media_size: int, parts: list[bytes]) -> None:
    if isinstance(content, str):
        parts.append(content.encode())
    elif isinstance(content, list):
        parts.extend(_render_part(part, where, media_size) for part in content)
    elif content is not None:
        raise invalid(f"{where}.content", "string_type", "Input should be a valid string")


def _render_part(part: Any, where: str, media_size: int) -> bytes:
    if isinstance(part, str):
        return part.encode()
    if not isinstance(part, dict):
        raise invalid(f"{where}.content", "dict_type", "Input should be a valid dictionary")
    for key in ("text", "refusal", "thinking"):
        if isinstance(part.get(key), str):
            return bytes(part[key], "utf-8")
    digest = xxhash.xxh3_128_hexdigest(orjson.dumps(part, option=orjson.OPT_SORT_KEYS)).encode()
    return (digest * (media_size // len(digest) + 1))[:media_size]
