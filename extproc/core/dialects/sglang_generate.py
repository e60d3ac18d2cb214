"""SGLang's own API: text or token ids, one prompt or a batch, media beside them."""

from typing import Any

from xxhash import xxh3_64_digest

from extproc.core.dialects.base import (
    Body,
    Limits,
    choices,
    members,
    named,
    output_limit,
    total,
    write_raw,
    wrong_shape,
)
from extproc.core.dialects.content import media_source
from extproc.core.prefix import ChainWriter, seed, tag
from extproc.core.prompt import Chain, Prompt
from extproc.errors import Unreadable

NAME = "sglang_generate"
PATHS: tuple[str, ...] = ("/generate",)

#: Media lie beside the text, at places only the engine knows: in the chain they go first.
_MEDIA = {name: tag(f"sglang:{name}") for name in ("image_data", "video_data", "audio_data")}


def read(body: Body, limits: Limits) -> Prompt:
    """SGLang: {"text" or "input_ids": one or several, "sampling_params", "lora_path", "extra_key"}."""
    text = body.get("text")
    said = body.get("input_ids") if text is None else text
    prompts = members(said, limits)
    batch = prompts is said
    digests: dict[int, bytes] = {}
    chains = [_chain(body, prompt, at, batch, limits, digests) for at, prompt in enumerate(prompts)]
    sampling = _sampling(body.get("sampling_params"), limits)
    allowed = [output_limit(each, "max_new_tokens") for each in sampling]
    return Prompt(
        dialect=NAME,
        kind="generate",
        model=named(body.get("model")),
        adapter=_nth(body.get("lora_path"), 0),
        chains=chains,
        size=total(chains),
        token_ids=text is None,
        max_output=None if None in allowed else max(filter(None, allowed), default=0),
        n=max(choices(each, "n") for each in sampling),
        stream=body.get("stream") is True,
    )


def _chain(
    body: Body, prompt: str | list[int], at: int, batch: bool, limits: Limits, digests: dict[int, bytes]
) -> Chain:
    """The chain of member `at`; in a batch, lists of adapters, salts and media hold one for each member."""
    start = seed(
        named(body.get("model")),
        _nth(body.get("lora_path"), at),
        _nth(body.get("cache_salt"), at),
        _nth(body.get("extra_key"), at),
    )
    writer = ChainWriter(start, limits.max_parts)
    for name, kind in _MEDIA.items():
        value = body.get(name)
        if batch and type(value) is list:
            value = value[at] if at < len(value) else None
        _write_media(writer, kind, value, limits, digests)
    write_raw(writer, prompt)
    return writer.chain()


def _write_media(
    writer: ChainWriter, kind: int, value: object, limits: Limits, digests: dict[int, bytes]
) -> None:
    """One medium or a list of them, as URL, file name, base64 or object; null for none.

    A medium that every member of a batch has is digested once: `digests` goes by the parsed value's identity.
    """
    media = value if type(value) is list else [value]
    writer.spend(len(media))
    for medium in media:
        if medium is None:
            continue
        digest = digests.get(id(medium))
        if digest is None:
            digest = digests[id(medium)] = xxh3_64_digest(media_source(medium, limits))
        writer.media(kind, digest)


def _nth(value: object, at: int) -> str:
    """A word, or the word for member `at` of a list of them."""
    if type(value) is list:
        value = value[at] if at < len(value) else None
    return named(value)


def _sampling(value: Any, limits: Limits) -> list[Body]:
    """Sampling parameters: one object for all, or a list with one for each; [{}] when unsaid."""
    if value is None or value == []:
        return [{}]
    each: list[Body] = value if type(value) is list else [value]
    if len(each) > limits.max_members:
        raise Unreadable("too_many_members")
    if any(type(item) is not dict for item in each):
        raise wrong_shape()
    return each
