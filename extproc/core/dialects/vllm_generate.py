"""vLLM's token-in, token-out API: what its render endpoints give goes in here."""

from extproc.core.dialects.base import (
    Body,
    Limits,
    choices,
    named,
    output_limit,
    raw_chain,
    start_of,
    with_fields,
    wrong_shape,
)
from extproc.core.prefix import tag
from extproc.core.prompt import Prompt

NAME = "vllm_generate"
PATHS: tuple[str, ...] = ("/inference/v1/generate",)

#: Images are placeholder ids, all alike: only their hashes tell them apart.
_FEATURES = {"mm_hashes": tag("vllm:mm_hashes")}


def read(body: Body, limits: Limits) -> Prompt:
    """vLLM: {"token_ids": ids, "sampling_params", "features": {"mm_hashes"}, "cache_salt", "stream"}."""
    ids = body.get("token_ids")
    sampling, features = body.get("sampling_params"), body.get("features")
    sampling = {} if sampling is None else sampling
    if type(ids) is not list or type(sampling) is not dict:
        raise wrong_shape()
    start = start_of(body, limits)
    if type(features) is dict:
        start = with_fields(start, features, _FEATURES, limits)
    chain = raw_chain(start, ids)
    return Prompt(
        dialect=NAME,
        kind="generate",
        model=named(body.get("model")),
        adapter=named(body.get("lora_path")),
        chains=[chain],
        size=chain.ends[-1],
        token_ids=True,
        max_output=output_limit(sampling, "max_tokens"),
        n=choices(sampling, "n"),
        stream=body.get("stream") is True,
    )
