"""OpenAI's embeddings: the input forms of completions, or a chat (vLLM)."""

from extproc.core.dialects.base import Body, Limits, members, named, raw_chain, start_of, total
from extproc.core.dialects.openai_chat import chat_chain
from extproc.core.prompt import Prompt

NAME = "openai_embeddings"
PATHS: tuple[str, ...] = ("/v1/embeddings",)


def read(body: Body, limits: Limits) -> Prompt:
    """Embeddings: {"input": string, list of strings, token ids or lists of token ids} or {"messages"}."""
    if body.get("input") is None and "messages" in body:
        chains, ids = [chat_chain(body, limits)], False
    else:
        prompts = members(body.get("input"), limits)
        start = start_of(body, limits)
        chains, ids = [raw_chain(start, prompt) for prompt in prompts], type(prompts[0]) is list
    return Prompt(
        dialect=NAME,
        kind="embed",
        model=named(body.get("model")),
        adapter=named(body.get("lora_path")),
        chains=chains,
        size=total(chains),
        token_ids=ids,
        max_output=0,
    )
