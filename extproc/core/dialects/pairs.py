"""Pairs of texts for a cross-encoder, as rerank and score send them: one chain per pair."""

from extproc.core.dialects.base import Body, Limits, named, start_of, total, write_raw, wrong_shape
from extproc.core.dialects.content import NEXT, write_content
from extproc.core.prefix import ChainWriter, canonical, tag
from extproc.core.prompt import Chain, Prompt
from extproc.errors import Unreadable

_OBJECT = tag("pair:object")
_SECOND = tag("pair:second")

#: Most hashes that the shared first text may give to all pairs together, as each keeps them and each is looked
#: up. Beyond, the request is refused rather than its chains cut, so that a chain always means all of its prompt:
#: 2,048 documents leave the query 97 KiB, more than cross-encoders read.
_MOST_HASHES = 200_000


def texts(value: object) -> list[object]:
    """One text or several; raises `Unreadable` when there is none."""
    if type(value) is list and value and type(value[0]) is not int:
        return value
    if value is None or value == []:
        raise wrong_shape()
    return [value]


def first_said(body: Body, *keys: str) -> object:
    """The value of the first of `keys` that is there and not null."""
    return next((body[key] for key in keys if body.get(key) is not None), None)


def pairs_prompt(
    name: str, body: Body, firsts: list[object], seconds: list[object], limits: Limits
) -> Prompt:
    """The prompt of every pair: one first text with each second, or the two lists side by side.

    The first text leads the chain, so a batch shares its beginning. Raises `Unreadable` when the lists
    don't fit each other or give more pairs than `limits.max_members`.
    """
    if len(firsts) not in (1, len(seconds)):
        raise wrong_shape()
    if len(seconds) > limits.max_members:
        raise Unreadable("too_many_members")
    start = start_of(body, limits)
    if len(firsts) == 1:
        begun = _begun(start, firsts[0], limits)
        if begun.length * len(seconds) > _MOST_HASHES:
            raise Unreadable("too_many_parts")
        chains = [_pair(begun.fork(), second, limits) for second in seconds]
    else:
        pairs = zip(firsts, seconds, strict=True)
        chains = [_pair(_begun(start, first, limits), second, limits) for first, second in pairs]
    return Prompt(
        dialect=name,
        kind="rerank",
        model=named(body.get("model")),
        adapter=named(body.get("lora_path")),
        chains=chains,
        size=total(chains),
        token_ids=all(type(item) is list for item in (*firsts, *seconds)),
        max_output=0,
    )


def _begun(start: int, first: object, limits: Limits) -> ChainWriter:
    writer = ChainWriter(start, limits.max_parts)
    _write_text(writer, first, limits)
    writer.mark()
    return writer


def _pair(writer: ChainWriter, second: object, limits: Limits) -> Chain:
    writer.data(_SECOND, b"")
    _write_text(writer, second, limits)
    return writer.chain()


def _write_text(writer: ChainWriter, item: object, limits: Limits) -> None:
    """A text as string, token ids, {"text": ...}, {"content": parts} or any other object."""
    if type(item) is dict and type(item.get("text")) is str:
        item = item["text"]
    if type(item) is str or type(item) is list:
        write_raw(writer, item)
    elif type(item) is dict and "content" in item:
        write_content(writer, NEXT, item["content"], limits)
    elif type(item) is dict:
        writer.data(_OBJECT, canonical(item, limits.max_depth))
    else:
        raise wrong_shape()
