"""Anthropic's messages, as vLLM, SGLang and others serve them."""

from extproc.core.dialects.base import Body, Limits, named, output_limit, start_of, with_fields, wrong_shape
from extproc.core.dialects.content import ROLES, write_content, write_list, write_messages
from extproc.core.prefix import ChainWriter, tag
from extproc.core.prompt import Prompt
from extproc.core.script import script_of_chat

NAME = "anthropic_messages"
PATHS: tuple[str, ...] = ("/v1/messages",)

_TOOLS = tag("tools")
_SWITCHES = {name: tag(f"switch:{name}") for name in ("thinking", "output_config")}

#: Claude Code puts a line of this name, other in every request, before its system prompt. Engines drop it
#: or lose their cache over it; in the chain it would part every two requests at their first byte.
_VOLATILE = "x-anthropic-billing-header"


def read(body: Body, limits: Limits) -> Prompt:
    """Messages: {"system": string or blocks, "messages": [...], "tools"}; the system is a first message."""
    start = with_fields(start_of(body, limits), body, _SWITCHES, limits)
    writer = ChainWriter(start, limits.max_parts)
    write_list(writer, _TOOLS, body.get("tools"), limits)
    _write_system(writer, body.get("system"), limits)
    write_messages(writer, body.get("messages"), limits)
    chain = writer.chain()
    return Prompt(
        dialect=NAME,
        kind="generate",
        model=named(body.get("model")),
        adapter=named(body.get("lora_path")),
        chains=[chain],
        size=chain.ends[-1],
        max_output=output_limit(body, "max_tokens"),
        stream=body.get("stream") is True,
        script=script_of_chat(body["messages"]),
        media=writer.pictures,
        root=writer.root,
    )


def _write_system(writer: ChainWriter, system: object, limits: Limits) -> None:
    if type(system) is list:
        system = [block for block in system if not _is_volatile(block)]
    elif type(system) is not str and system is not None:
        raise wrong_shape()
    if system:
        writer.open()
        write_content(writer, ROLES["system"], system, limits)
        writer.mark()


def _is_volatile(block: object) -> bool:
    text = block.get("text") if type(block) is dict else None
    return type(text) is str and text.startswith(_VOLATILE)
