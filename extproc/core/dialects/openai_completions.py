"""OpenAI's completions: plain text or token ids, one prompt or a batch."""

from typing import Final

from extproc.core.dialects.base import (
    Body,
    Limits,
    choices,
    members,
    named,
    output_limit,
    raw_chain,
    start_of,
    total,
    wrong_shape,
)
from extproc.core.prefix import ChainWriter, tag, utf8
from extproc.core.prompt import Chain, Prompt
from extproc.core.script import script_of

NAME = "openai_completions"
PATHS: tuple[str, ...] = ("/v1/completions",)


_EMBEDS: Final = tag("prompt_embeds")


def read(body: Body, limits: Limits) -> Prompt:
    """Completions: {"prompt": string, list of strings, token ids or lists of token ids}, and vLLM's prompt_embeds."""
    start = start_of(body, limits)
    embedded = _embedded(start, body.get("prompt_embeds"), limits)
    given = body.get("prompt")
    prompts = [] if embedded and not given else members(given, limits)
    chains = embedded + [raw_chain(start, prompt) for prompt in prompts]
    return Prompt(
        dialect=NAME,
        kind="generate",
        model=named(body.get("model")),
        adapter=named(body.get("lora_path")),
        chains=chains,
        size=total(chains),
        media=len(embedded),
        token_ids=bool(prompts) and type(prompts[0]) is list,
        max_output=output_limit(body, "max_completion_tokens", "max_tokens"),
        n=choices(body, "n", "best_of"),
        stream=body.get("stream") is True,
        script=script_of(prompts[0] if prompts else ""),
    )


def _embedded(start: int, given: object, limits: Limits) -> list[Chain]:
    """Prompts given as embeddings: a string of base64 each, whose length says nothing of how many tokens it is."""
    if given is None:
        return []
    chains = []
    for member in members(given, limits):
        if type(member) is not str:
            raise wrong_shape()
        writer = ChainWriter(start)
        writer.media(_EMBEDS, utf8(member))
        chains.append(writer.chain())
    return chains
