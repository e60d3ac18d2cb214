"""The neutral record of a request's tokens, and what a count must be like to be believed."""

from collections.abc import Sequence
from typing import NamedTuple

#: Largest count believed. A request costs at most some million tokens; a larger number is a fault of its teller.
MOST_TOKENS = 1_000_000_000


class Usage(NamedTuple):
    """Tokens of one request as its engine counted them. Unknown is None, never 0.

    Attributes:
        input: tokens of the prompt, those found in a cache included; 1 to `MOST_TOKENS`.
        output: tokens generated, in all choices together; 0 to `MOST_TOKENS`.
        cached: tokens of the prompt that were found in a cache; 0 to `input`.
        choices: how many choices had finished.
        odd: fields that were told and not believed; of a stream the most in one event.
    """

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    choices: int | None = None
    odd: int = 0

    @property
    def known(self) -> bool:
        """Whether it says anything of tokens."""
        return self.input is not None or self.output is not None or self.cached is not None


def count(value: object) -> int | None:
    """`value` as a number of tokens; None when it is none: a bool, text, negative, in fractions, too large."""
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not 0 <= value <= MOST_TOKENS:
        return None
    return value


def total(values: Sequence[object]) -> int | None:
    """The sum of counts of which absent ones (None) are 0; None when one isn't believed or all are absent."""
    told = [value for value in values if value is not None]
    counts = [number for number in map(count, told) if number is not None]
    return count(sum(counts)) if told and len(counts) == len(told) else None


def checked(tokens_in: object, tokens_out: object, cached: object, choices: int | None = None) -> Usage:
    """A record of what was told, with None for every field that isn't believed; None is not told.

    A prompt of no tokens is not believed either: engines write 0 where they don't know yet (vLLM and SGLang in
    Anthropic's `message_start`), and then their 0 for the output and the cache mean nothing; that is not odd.
    """
    got_in, got_out, got_cached = count(tokens_in), count(tokens_out), count(cached)
    odd = (tokens_in is not None) - (got_in is not None)  # written out, as it is asked for every request
    odd += (tokens_out is not None) - (got_out is not None)
    odd += (cached is not None) - (got_cached is not None)
    if got_in == 0:
        return Usage(None, got_out or None, got_cached or None, choices, odd)
    if got_in is None and tokens_in is not None:
        got_cached = None  # what is said of a part of it is no better
    if got_in is not None and got_cached is not None and got_cached > got_in:
        got_cached, odd = None, odd + 1
    return Usage(got_in, got_out, got_cached, choices, odd)
