"""OpenAI's responses: instructions and a string, or a list of items of many kinds."""

from extproc.core.dialects.base import (
    Body,
    Limits,
    named,
    output_limit,
    start_of,
    with_fields,
    word,
    wrong_shape,
)
from extproc.core.dialects.content import ROLES, role_tag, write_content, write_list, write_value
from extproc.core.prefix import ChainWriter, canonical, tag
from extproc.core.prompt import Prompt
from extproc.core.script import script_of_chat

NAME = "openai_responses"
PATHS: tuple[str, ...] = ("/v1/responses",)

_TOOLS = tag("tools")

#: History kept by the server and not in the body: its id parts this prompt from all that lack it. What that
#: history was can't be known here, so a request that continues one matches no earlier chain.
_STATE = {
    name: tag(f"switch:{name}") for name in ("previous_response_id", "conversation", "prompt", "reasoning")
}

_ITEM = tag("item")
_CALL = tag("item:function_call")
_OUTPUT = tag("item:function_call_output")

#: Kinds of items that carry a picture, whatever else they hold.
_PICTURES = ("image_generation_call", "computer_call_output")

#: Fields of an item that say nothing the model sees.
_UNSEEN = frozenset({"id", "status"})


def read(body: Body, limits: Limits) -> Prompt:
    """Responses: {"instructions", "input": string or items, "tools", "previous_response_id"}."""
    start = with_fields(start_of(body, limits), body, _STATE, limits)
    writer = ChainWriter(start, limits.max_parts)
    write_list(writer, _TOOLS, body.get("tools"), limits)
    instructions = word(body.get("instructions"))
    if instructions:
        writer.message(ROLES["system"], instructions)
    _write_input(writer, body.get("input"), limits)
    chain = writer.chain()
    return Prompt(
        dialect=NAME,
        kind="generate",
        model=named(body.get("model")),
        adapter=named(body.get("lora_path")),
        chains=[chain],
        size=chain.ends[-1],
        max_output=output_limit(body, "max_output_tokens"),
        stream=body.get("stream") is True,
        script=script_of_chat(body.get("input")),
        media=writer.pictures,
        root=writer.root,
    )


def _write_input(writer: ChainWriter, items: object, limits: Limits) -> None:
    if type(items) is str:
        writer.message(ROLES["user"], items)
        writer.root = writer.length - 1
        return
    if type(items) is not list or not items:
        raise wrong_shape()
    writer.spend(len(items))
    for item in items:
        if type(item) is not dict:
            raise wrong_shape()
        writer.open()
        _write_item(writer, item, limits)
        writer.mark()
        if limits.roots and not writer.root and item.get("role") == "user":
            writer.root = writer.length - 1


def _write_item(writer: ChainWriter, item: Body, limits: Limits) -> None:
    kind = item.get("type")
    if kind is None or kind == "message":
        write_content(writer, role_tag(item.get("role")), item.get("content"), limits)
    elif kind == "function_call":
        for field in ("name", "arguments", "call_id"):
            write_value(writer, _CALL, item.get(field), limits)
    elif kind == "function_call_output":
        write_value(writer, _OUTPUT, item.get("call_id"), limits)
        write_content(writer, _OUTPUT, item.get("output"), limits)
    elif kind in _PICTURES:
        writer.media(_ITEM, canonical(item, limits.max_depth))
    else:
        seen = {key: value for key, value in item.items() if key not in _UNSEEN}
        write_value(writer, _ITEM, seen, limits)
