"""Text Generation Inference's own API: plain text, with images as Markdown inside it."""

import re

from extproc.core.dialects.base import (
    RAW_TEXT,
    Body,
    Limits,
    choices,
    output_limit,
    start_of,
    word,
    wrong_shape,
)
from extproc.core.dialects.content import NEXT
from extproc.core.prefix import ChainWriter, fold, tag, utf8
from extproc.core.prompt import Prompt

NAME = "tgi_generate"
PATHS: tuple[str, ...] = ("/generate", "/generate_stream", "/")

_IMAGE = tag("media:image")
_ADAPTER = tag("tgi:adapter_id")

#: How TGI marks images: the URL or data URL stands in round brackets, and ends at the first closing one.
_MARKDOWN_IMAGE = re.compile(r"!\[\]\(((?:https?://|data:)[^)]*)\)")


def read(body: Body, limits: Limits) -> Prompt:
    """TGI: {"inputs": text, "parameters": {"max_new_tokens", "adapter_id", ...}, "stream"}."""
    inputs, parameters = body.get("inputs"), body.get("parameters")
    if type(inputs) is not str:
        raise wrong_shape()
    if parameters is None:
        parameters = {}
    elif type(parameters) is not dict:
        raise wrong_shape()
    adapter = word(parameters.get("adapter_id"))
    start = start_of(body, limits)
    writer = ChainWriter(fold(start, _ADAPTER, utf8(adapter)) if adapter else start, limits.max_parts)
    _write(writer, inputs)
    chain = writer.chain()
    return Prompt(
        dialect=NAME,
        kind="generate",
        model=word(body.get("model")),
        adapter=adapter,
        chains=[chain],
        size=chain.ends[-1],
        max_output=output_limit(parameters, "max_new_tokens"),
        n=choices(parameters, "best_of"),
        stream=body.get("stream") is True,
    )


def _write(writer: ChainWriter, inputs: str) -> None:
    if "![](" not in inputs:
        writer.text(RAW_TEXT, inputs)
        return
    pieces = _MARKDOWN_IMAGE.split(inputs)  # text and URL in turn
    writer.spend(len(pieces))
    writer.text(RAW_TEXT, pieces[0])
    for url, text in zip(pieces[1::2], pieces[2::2], strict=True):
        writer.media(_IMAGE, utf8(url))
        writer.text(NEXT, text)
