"""OpenAI's completions: plain text or token ids, one prompt or a batch."""

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
)
from extproc.core.prompt import Prompt
from extproc.core.script import script_of

NAME = "openai_completions"
PATHS: tuple[str, ...] = ("/v1/completions",)


def read(body: Body, limits: Limits) -> Prompt:
    """Completions: {"prompt": string, list of strings, token ids or lists of token ids}."""
    prompts = members(body.get("prompt"), limits)
    start = start_of(body, limits)
    chains = [raw_chain(start, prompt) for prompt in prompts]
    return Prompt(
        dialect=NAME,
        kind="generate",
        model=named(body.get("model")),
        adapter=named(body.get("lora_path")),
        chains=chains,
        size=total(chains),
        token_ids=type(prompts[0]) is list,
        max_output=output_limit(body, "max_completion_tokens", "max_tokens"),
        n=choices(body, "n", "best_of"),
        stream=body.get("stream") is True,
        script=script_of(prompts[0]),
    )
