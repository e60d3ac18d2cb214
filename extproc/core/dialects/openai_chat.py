"""OpenAI's chat completions, with the fields vLLM, SGLang and TGI add to them."""

from extproc.core.dialects.base import Body, Limits, choices, output_limit, start_of
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
    prompt = Prompt(NAME, "generate")
    prompt.model = body.get("model") or ""  # `start_of` has seen that these are names
    prompt.adapter = body.get("lora_path") or ""
    prompt.chains, prompt.size = [chain], chain.ends[-1]
    prompt.max_output = output_limit(body, "max_completion_tokens", "max_tokens")
    if "n" in body or "best_of" in body:
        prompt.n = choices(body, "n", "best_of")
    prompt.stream = body.get("stream") is True
    prompt.script = script_of_chat(body["messages"])
    prompt.media, prompt.root = writer.pictures, writer.root
    return prompt
