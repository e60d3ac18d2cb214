"""Text Generation Inference's own API: plain text, with images as Markdown inside it."""

from extproc.core.dialects.base import (
    RAW_TEXT,
    Body,
    Limits,
    choices,
    named,
    output_limit,
    start_of,
    with_fields,
    wrong_shape,
)
from extproc.core.dialects.content import NEXT
from extproc.core.prefix import ChainWriter, tag, utf8
from extproc.core.prompt import Prompt
from extproc.core.script import script_of

NAME = "tgi_generate"
PATHS: tuple[str, ...] = ("/generate", "/generate_stream", "/")

_IMAGE = tag("media:image")

#: Parameters that change the prompt from its first token on.
_PARAMETERS = {name: tag(f"tgi:{name}") for name in ("adapter_id", "truncate")}

#: How TGI marks images: a URL or data URL in round brackets, ended by the first closing one.
_OPEN = "![]("
_SCHEMES = ("http://", "https://", "data:")


def read(body: Body, limits: Limits) -> Prompt:
    """TGI: {"inputs": text, "parameters": {"max_new_tokens", "adapter_id", ...}, "stream"}."""
    inputs, parameters = body.get("inputs"), body.get("parameters")
    if type(inputs) is not str:
        raise wrong_shape()
    if parameters is None:
        parameters = {}
    elif type(parameters) is not dict:
        raise wrong_shape()
    start = with_fields(start_of(body, limits), parameters, _PARAMETERS, limits)
    writer = ChainWriter(start, limits.max_parts)
    _write(writer, inputs)
    chain = writer.chain()
    return Prompt(
        dialect=NAME,
        kind="generate",
        model=named(body.get("model")),
        adapter=named(parameters.get("adapter_id")),
        chains=[chain],
        size=chain.ends[-1],
        max_output=output_limit(parameters, "max_new_tokens"),
        n=choices(parameters, "best_of"),
        stream=body.get("stream") is True,
        script=script_of(inputs),
        media=writer.pictures,
    )


def _write(writer: ChainWriter, inputs: str) -> None:
    """Text and images in turn; one pass over `inputs`, as no closing bracket is looked for twice."""
    kind, done = RAW_TEXT, 0
    begin = inputs.find(_OPEN)
    while begin >= 0:
        at = begin + len(_OPEN)
        if inputs.startswith(_SCHEMES, at):
            end = inputs.find(")", at)
            if end < 0:
                break
            writer.spend(2)
            writer.text(kind, inputs[done:begin])
            writer.media(_IMAGE, utf8(inputs[at:end]))
            kind, done, at = NEXT, end + 1, end + 1
        begin = inputs.find(_OPEN, at)
    writer.text(kind, inputs[done:])
