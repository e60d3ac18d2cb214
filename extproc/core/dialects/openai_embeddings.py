"""OpenAI's embeddings: the input forms of completions, or a chat (vLLM)."""

from extproc.core.dialects.base import Body, Limits, members, named, raw_chain, start_of, total
from extproc.core.dialects.openai_chat import chat_writer
from extproc.core.prompt import Prompt
from extproc.core.script import script_of, script_of_chat

NAME = "openai_embeddings"
PATHS: tuple[str, ...] = ("/v1/embeddings",)


def read(body: Body, limits: Limits) -> Prompt:
    """Embeddings: {"input": string, list of strings, token ids or lists of token ids} or {"messages"}."""
    media = 0
    if body.get("input") is None and "messages" in body:
        writer = chat_writer(body, limits)
        chains, ids, media = [writer.chain()], False, writer.pictures
        script = script_of_chat(body["messages"])
    else:
        prompts = members(body.get("input"), limits)
        start = start_of(body, limits)
        chains, ids = [raw_chain(start, prompt) for prompt in prompts], type(prompts[0]) is list
        script = script_of(prompts[0])
    return Prompt(
        dialect=NAME,
        kind="embed",
        model=named(body.get("model")),
        adapter=named(body.get("lora_path")),
        chains=chains,
        size=total(chains),
        token_ids=ids,
        max_output=0,
        script=script,
        media=media,
    )
