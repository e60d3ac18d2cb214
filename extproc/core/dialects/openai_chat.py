"""OpenAI's chat completions, with the fields vLLM, SGLang and TGI add to them."""

from extproc.core.dialects.base import Body, Limits, choices, named, output_limit, start_of
from extproc.core.dialects.content import write_list, write_messages
from extproc.core.prefix import ChainWriter, tag
from extproc.core.prompt import Prompt
from extproc.core.script import script_of_chat

NAME = "openai_chat"
PATHS: tuple[str, ...] = ("/v1/chat/completions", "/chat/completions")

#: What templates render before the messages, in the order it enters the chain.
_BEFORE = {name: tag(name) for name in ("documents", "tools", "functions")}
_BEFORE_SET = frozenset(_BEFORE)


def chat_writer(body: Body, limits: Limits) -> ChainWriter:
    """Documents, tools and messages of a body in OpenAI's chat form, written."""
    writer = ChainWriter(start_of(body, limits), limits.max_parts)
    if not _BEFORE_SET.isdisjoint(body):
        for name, kind in _BEFORE.items():
            write_list(writer, kind, body.get(name), limits)
    write_messages(writer, body.get("messages"), limits)
    return writer


def read(body: Body, limits: Limits) -> Prompt:
    """A chat: {"messages": [{"role", "content", ...}], "tools", ...}."""
    writer = chat_writer(body, limits)
    chain = writer.chain()
    return Prompt(
        dialect=NAME,
        kind="generate",
        model=named(body.get("model")),
        adapter=named(body.get("lora_path")),
        chains=[chain],
        size=chain.ends[-1],
        max_output=output_limit(body, "max_completion_tokens", "max_tokens"),
        n=choices(body, "n", "best_of"),
        stream=body.get("stream") is True,
        script=script_of_chat(body["messages"]),
        media=writer.pictures,
        root=writer.root,
    )
