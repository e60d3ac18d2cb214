"""The body as a request goes on: with less asked for, with its usage asked for, under its name in the pool."""

from dataclasses import replace
from typing import Protocol

import orjson

from extproc.core import dialects, include_usage
from extproc.core.admission.answers import Answer
from extproc.core.admission.rewrite import degraded, degrading
from extproc.core.admission.tenants import Degrade
from extproc.core.dialects import Limits
from extproc.core.pool import Pool
from extproc.core.prompt import Prompt
from extproc.core.rename import Edit, Parts, edited, places, with_value
from extproc.errors import Unreadable


class Asks(Protocol):
    """What the operator decided about bodies (`steering.Rules`)."""

    @property
    def include_usage(self) -> bool:
        """Whether streams are asked for their usage."""
        ...

    @property
    def unread(self) -> frozenset[str]:
        """Dialects that are not."""
        ...

    @property
    def limits(self) -> Limits:
        """What reading may cost."""
        ...


def lesser_prompt(
    rules: Asks, prompt: Prompt, lesser: Degrade, path: str, body: bytes | memoryview | None
) -> Prompt:
    """What is known of a request that goes on with `lesser`.

    Chains begin with the model, so for another model the body is read anew. Where it is None, as it was too large to
    be read here, it has no chains: nothing is known of what is cached of it.
    """
    if lesser.kind != "model":
        return prompt
    if body is not None:
        try:
            return dialects.read(path, degraded(bytes(body), lesser) or body, rules.limits)
        except (
            Unreadable
        ):  # it was read a moment ago, so only for a dialect whose limits another name exceeds
            pass
    return replace(prompt, model=lesser.to, chains=[], root=0)


def stays(rules: Asks, pool: Pool, prompt: Prompt, admitted: Answer | None, *, plain: bool) -> bool:
    """Whether `body_of` would give None whatever the body is, as far as that is told without it."""
    lesser = admitted.lesser if admitted is not None else None
    if plain and (lesser is not None or (rules.include_usage and prompt.stream)):
        return False
    return pool.renames.get(prompt.model, prompt.model) == (prompt.asked or prompt.model)


def body_of(
    rules: Asks, pool: Pool, prompt: Prompt, body: bytes, admitted: Answer | None, *, plain: bool
) -> Parts | None:
    """The body in pieces; None where it stays as it came.

    Args:
        rules: the operator's.
        pool: where it goes.
        prompt: what was read out of `body`.
        body: JSON, not compressed.
        admitted: what admission said of it; None where it was not asked.
        plain: whether it came as it is here. Else only its name is changed.
    """
    lesser = admitted.lesser if admitted is not None else None
    wanted = pool.renames.get(prompt.model, prompt.model) if pool.renames else prompt.model
    edits: list[Edit] = []
    if lesser is not None and plain:
        edits += degrading(body, lesser, prompt.spots, wanted)
    if rules.include_usage and plain and prompt.dialect not in rules.unread:
        asking = include_usage.adding(prompt, body)
        edits += [asking] if asking is not None else []
    as_degraded = lesser is not None and lesser.kind == "model" and plain
    if not as_degraded and wanted != (prompt.asked or prompt.model):
        spots = places(body, ("model",)) if prompt.spots is None else prompt.spots
        edits += with_value(spots["model"], orjson.dumps(wanted))
    return edited(body, edits) if edits else None
