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
from extproc.core.script import script_of
from extproc.errors import Unreadable

NAME = "sglang_generate"
PATHS: tuple[str, ...] = ("/generate",)

#: Media lie beside the text, at places only the engine knows: in the chain they go first.
_MEDIA = {name: tag(f"sglang:{name}") for name in ("image_data", "video_data", "audio_data")}


#: What a chain starts with, beside the model.
_SEED_WORDS = ("lora_path", "cache_salt", "extra_key")


def read(body: Body, limits: Limits) -> Prompt:
    """SGLang: {"text" or "input_ids": one or several, "sampling_params", "lora_path", "extra_key"}."""
    text = body.get("text")
    said = body.get("input_ids") if text is None else text
    prompts = members(said, limits)
    batch = prompts is said
    starts = _starts(body, len(prompts))
    digests: dict[int, bytes] = {}
    chains = [
        _chain(body, start, prompt, at if batch else None, limits, digests)
        for at, (start, prompt) in enumerate(zip(starts, prompts, strict=True))
    ]
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
        script=script_of(prompts[0]),
        media=sum([body.get(name) is not None for name in _MEDIA]),
    )


def _starts(body: Body, count: int) -> list[int]:
    """Where each chain starts; lists of adapters and salts hold one for each. What all share is hashed once."""
    model, said = named(body.get("model")), [body.get(name) for name in _SEED_WORDS]
    if not any(type(value) is list for value in said):
        return [seed(model, *map(named, said))] * count
    return [seed(model, *[_nth(value, at) for value in said]) for at in range(count)]


def _chain(
    body: Body,
    start: int,
    prompt: str | list[int],
    at: int | None,
    limits: Limits,
    digests: dict[int, bytes],
) -> Chain:
    """The chain of member `at` of a batch, where lists of media hold one for each, or of the only prompt."""
    writer = ChainWriter(start, limits.max_parts)
    for name, kind in _MEDIA.items():
        value = body.get(name)
        if at is not None and type(value) is list:
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
