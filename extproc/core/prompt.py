"""What routing needs to know of a request, and nothing else of it.

A `Prompt` carries hashes and sizes; it never holds text of the request.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from extproc.errors import Unreadable

#: Tokens per byte of UTF-8 before a model's own ratio is learned: one token for four bytes, the rule of
#: thumb tokenizer vendors give for English text.
TOKENS_PER_BYTE = 0.25

#: Bytes that one token id counts for in a chain, so that the starting ratio gives one token an id.
BYTES_PER_TOKEN_ID = 4

#: Why a request can't be read: every word an `Unreadable` of the core carries. Metrics use them as labels.
REASONS = {
    "no_dialect": "no dialect reads this path",
    "not_json": "the body is not JSON (RFC 8259: UTF-8, no NaN, no lone surrogates in names)",
    "wrong_shape": "JSON, but not what the API of this path takes",
    "too_deep": "nested deeper than `limits.depth`",
    "too_many_parts": "more messages and parts than `limits.parts`, or values than are ever read (docs/dialects.md)",
    "too_many_members": "more prompts in one batch than `limits.members`",
    "bad_encoding": "a content-encoding that is unknown, broken off or garbage",
    "not_read": "a large body that could not be read in time (`reading`), or broke who read it",
    "too_large": "the body, or what it expands to, is over its limit",
}


class Chain(NamedTuple):
    """The prefix chain of one prompt: `hashes[i]` stands for its first `ends[i]` bytes.

    Hashes are chained, 60 bits wide (a Python int of two digits, 16 bytes less in memory than one of
    three). `ends` rises strictly; the last entry of both covers the whole prompt. Never empty.
    """

    hashes: list[int]
    ends: list[int]


def chain_of(hashes: list[int], ends: list[int]) -> Chain:
    """`Chain(hashes, ends)` in a third of the time: one is made for every request."""
    return tuple.__new__(Chain, (hashes, ends))


# Not frozen, and not by keywords alone: one is made for every request, and both cost a microsecond more.
@dataclass(slots=True)
class Prompt:
    """A request as routing sees it."""

    #: Name of the dialect that read it, e.g. "openai_chat".
    dialect: str
    #: "generate", "embed" or "rerank".
    kind: str
    #: Model as the client named it; "" when absent.
    model: str = ""
    #: LoRA adapter named apart from the model; "" when none.
    adapter: str = ""
    #: One chain per prompt in the body (a batch has several), in order.
    chains: list[Chain] = field(default_factory=list)
    #: Bytes of all prompts together, counted as in `Chain.ends`.
    size: int = 0
    #: True when the chains were made of token ids: then a token is exactly BYTES_PER_TOKEN_ID bytes.
    token_ids: bool = False
    #: Output tokens the client allows per choice; None when it did not say; 0 for "embed" and "rerank".
    max_output: int | None = None
    #: Choices asked for (n, best_of); at least 1.
    n: int = 1
    #: Whether the client asked for a streamed answer.
    stream: bool = False
    #: What kind of letters its text is in, of a closed set (core/script.py); "" where it has no text.
    script: str = ""
    #: Images, clips and files in it, of which bytes say nothing.
    media: int = 0
    #: Which hash of the first chain stands for its conversation: that at the end of the first message of a user,
    #: where `Limits.roots` asks for it.
    root: int = 0
    #: The alias by which the client named the model; "" where it named the model itself.
    asked: str = ""
    #: Where values stand in the body that may go on changed, by member (`reading.MEMBERS`; begin and end, bytes);
    #: None where nobody has looked. Places, no text.
    spots: dict[str, list[tuple[int, int]]] | None = field(default=None, compare=False)

    @property
    def is_text(self) -> bool:
        """Whether its bytes are all text, so that its tokens say how many a byte makes."""
        return not (self.token_ids or self.media)


#: What can't be read because it is no prompt at all: the engine refuses it, so it costs no prompt work.
_NO_PROMPT = frozenset({"no_dialect", "not_json", "bad_encoding", "wrong_shape"})


def opaque(body: bytes | memoryview, error: Unreadable) -> Prompt:
    """A request of which only the model, at most, and the size are known."""
    size = 0 if error.reason in _NO_PROMPT else len(body)
    model, asked = getattr(error, "model", ""), getattr(error, "asked", "")
    return Prompt(dialect="opaque", kind="generate", model=model, size=size, asked=asked)
