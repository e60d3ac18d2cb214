"""OpenAI's chat completions, with the fields vLLM, SGLang and TGI add to them."""

from extproc.core.dialects.base import (
    MAX_OUTPUT,
    NAME_KEPT,
    NOT_PLAIN,
    Body,
    Limits,
    choices,
    named,
    output_limit,
    start_of,
    start_of_model,
)
from extproc.core.dialects.content import chain_of_messages, write_list, write_messages
from extproc.core.prefix import ChainWriter, tag
from extproc.core.prompt import Prompt
from extproc.core.script import script_of_chat

NAME = "openai_chat"
PATHS: tuple[str, ...] = ("/v1/chat/completions", "/chat/completions")

#: What templates render before the messages, in the order it enters the chain.
_BEFORE = {name: tag(name) for name in ("documents", "tools", "functions")}
_BEFORE_SET = frozenset(_BEFORE)
#: Where a body says how many tokens it allows, first that which counts.
_LIMITS = ("max_completion_tokens", "max_tokens")
#: Fields that a chat of nothing but messages and plain settings has none of.
_RARE = NOT_PLAIN | _BEFORE_SET | {"n", "best_of"}


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
    messages, model = body.get("messages"), body.get("model")
    if limits.roots or type(model) is not str or len(model) > NAME_KEPT or not _RARE.isdisjoint(body):
        return _read_any(body, limits)
    chain, pictures = chain_of_messages(start_of_model(model), messages, limits)
    most = body.get("max_tokens")
    if type(most) is not int or not 0 <= most <= MAX_OUTPUT or "max_completion_tokens" in body:
        most = output_limit(body, *_LIMITS)
    # By place, as one is made for every request: by name takes twice as long.
    return Prompt(
        NAME, "generate", model, "", [chain], chain.ends[-1], False, most, 1, body.get("stream") is True,
        script_of_chat(messages), pictures,
    )  # fmt: skip


def _read_any(body: Body, limits: Limits) -> Prompt:
    """A chat that may have any field."""
    writer = chat_writer(body, limits)
    chain = writer.chain()
    return Prompt(
        dialect=NAME,
        kind="generate",
        model=named(body.get("model")),
        adapter=named(body.get("lora_path")),
        chains=[chain],
        size=chain.ends[-1],
        max_output=output_limit(body, *_LIMITS),
        n=choices(body, "n", "best_of"),
        stream=body.get("stream") is True,
        script=script_of_chat(body["messages"]),
        media=writer.pictures,
        root=writer.root,
    )
