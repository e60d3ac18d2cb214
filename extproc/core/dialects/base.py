"""What every dialect is, and how the fields that all of them have are read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

from extproc.core.prefix import ChainWriter, canonical, fold, seed, tag, utf8
from extproc.core.prompt import Chain, Prompt
from extproc.errors import Unreadable

#: A JSON object as orjson gives it: the last of two equal keys, keys matched by case.
Body = dict[str, Any]

#: Most output tokens a request is believed to allow: no engine's context is longer than 2^31 tokens.
MAX_OUTPUT = 2**31

#: Most choices a request is believed to ask for: vLLM's own default bound (VLLM_MAX_N_SEQUENCES).
MAX_CHOICES = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may cost to read. Beyond a limit it is `Unreadable` and sent by load alone."""

    #: Deepest nesting of a JSON value that enters the chain (tools, arguments); orjson itself ends at 1024.
    max_depth: int = 128
    #: Most messages, parts and tools together.
    max_parts: int = 20_000
    #: Most prompts in one batch, documents to rank included.
    max_members: int = 2_048
    #: Other names of models -> the model that is meant.
    aliases: Mapping[str, str] = field(default_factory=dict)
    #: Whether it is wanted where a conversation begins (`Prompt.root`).
    roots: bool = False


class Dialect(Protocol):
    """One API. Each module of this package that reads one is such an object."""

    #: What `Prompt.dialect` says; lower case, fixed for ever, as metrics carry it.
    NAME: str
    #: Ends of the paths it reads, each from a slash on; "/" means the root alone.
    PATHS: tuple[str, ...]

    def read(self, body: Body, limits: Limits) -> Prompt:
        """The prompt in `body`; raises `Unreadable` with a word of `REASONS`."""


def wrong_shape() -> Unreadable:
    """The error for JSON that the engine would refuse too."""
    return Unreadable("wrong_shape")


def word(value: object) -> str:
    """A string that may be left out: null and absent are "". Raises `Unreadable` for anything else."""
    if type(value) is str:
        return value
    if value is None:
        return ""
    raise wrong_shape()


#: Longest name of a model, an adapter or a salt, in characters. Real ones have a hundred; each member of a batch
#: hashes them.
MOST_NAME = 4096


def named(value: object) -> str:
    """A name or salt that may be left out. Raises `Unreadable` for anything else, and above MOST_NAME."""
    if value is None:
        return ""
    if type(value) is not str or len(value) > MOST_NAME:
        raise wrong_shape()
    return value


def count(value: object, most: int) -> int | None:
    """A count from 0 to `most`, larger ones clamped; None when unsaid or absurd. A bool is not a count."""
    if type(value) is int or (type(value) is float and value == value // 1):
        return min(int(value), most) if value >= 0 else None
    return None


def output_limit(body: Body, *keys: str) -> int | None:
    """Output tokens allowed: the first of `keys` that says a number, in tokens up to MAX_OUTPUT."""
    for key in keys:
        value = body.get(key)
        if value is not None:
            if type(value) is int and 0 <= value <= MAX_OUTPUT:
                return value
            said = count(value, MAX_OUTPUT)
            if said is not None:
                return said
    return None


def choices(body: Body, *keys: str) -> int:
    """Choices asked for: the largest of `keys`, from 1 to MAX_CHOICES."""
    most = 1
    for key in keys:
        value = body.get(key)
        if value is not None:
            most = max(most, count(value, MAX_CHOICES) or 1)
    return most


#: Fields that change how a prompt is rendered from its first token on, or can't be placed better. They
#: are folded into the start of the chain: a request with another value shares nothing.
SWITCHES = (
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "truncate_prompt_tokens",
    "truncation_side",
    "mm_processor_kwargs",
)
_SEED_WORDS = ("lora_path", "cache_salt", "extra_key")
#: Fields without which a chain starts with the model alone.
NOT_PLAIN = frozenset(SWITCHES + _SEED_WORDS)
_SWITCH_TAGS = {name: tag(f"switch:{name}") for name in SWITCHES}

#: Longest name of a model whose start is remembered, in characters; names are short, memory is bounded.
NAME_KEPT = 256


def start_of(body: Body, limits: Limits) -> int:
    """Where the chains of `body` start: model, adapter, both salts and the switches of its template."""
    model = body.get("model")
    if type(model) is str and len(model) <= NAME_KEPT and NOT_PLAIN.isdisjoint(body):
        return start_of_model(model)
    start = seed(named(model), *(named(body.get(each)) for each in _SEED_WORDS))
    return with_fields(start, body, _SWITCH_TAGS, limits)


@lru_cache(maxsize=256)
def start_of_model(model: str) -> int:
    """Where chains start of bodies with nothing of `NOT_PLAIN`. For names of up to `NAME_KEPT` characters."""
    return seed(model)


def with_fields(start: int, body: Body, tags: dict[str, int], limits: Limits) -> int:
    """`start` with the fields of `body` that `tags` names, in the order of `tags`; null counts as absent."""
    for name, kind in tags.items():
        value = body.get(name)
        if value is not None:
            start = fold(start, kind, canonical(value, limits.max_depth))
    return start


RAW_TEXT = tag("raw:text")
RAW_IDS = tag("raw:ids")


def members(value: object, limits: Limits) -> list[str | list[int]]:
    """The prompts in a string, list of strings, list of token ids or list of lists of ids, in order.

    Raises `Unreadable` for an empty list, for mixed forms and for more than `limits.max_members` prompts.
    """
    if type(value) is str:
        return [value]
    if type(value) is not list or not value:
        raise wrong_shape()
    if type(value[0]) is int:
        return [value]
    if len(value) > limits.max_members:
        raise Unreadable("too_many_members")
    form = type(value[0])
    if form not in (str, list) or any(type(member) is not form for member in value):
        raise wrong_shape()
    return value


def raw_chain(start: int, member: str | list[int]) -> Chain:
    """The chain of one prompt given as plain text or as token ids."""
    writer = ChainWriter(start)
    write_raw(writer, member)
    return writer.chain()


def write_raw(writer: ChainWriter, member: str | list[int]) -> None:
    """Write one prompt given as plain text or as token ids."""
    if type(member) is str:
        writer.data(RAW_TEXT, utf8(member))  # it grows with each turn, so the same one seldom comes again
    else:
        writer.ids(RAW_IDS, member)  # type: ignore[arg-type]


def total(chains: list[Chain]) -> int:
    """Bytes of all prompts together."""
    return sum([chain.ends[-1] for chain in chains])
