"""Settings of late binding: whether requests wait for a replica, and how many for how long."""

from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from extproc.quantities import Duration, Size, Whole, show_duration
from extproc.settings.base import FaultAtError, Settings

#: Sampling intervals that the engines' counters may lag when the horizon is chosen by itself: one, and half for what
#: a scrape and the engine's step take.
_INTERVALS = 1.5
#: Seconds of prompt work ahead that cover the way of a first token and of an answer (docs/late-binding.md).
_BY_FIRST_TOKENS = 0.25


class LateBindingSettings(Settings):
    """Whether a request is bound to a replica only when that replica is nearly free (docs/late-binding.md)."""

    enabled: bool = Field(
        default=False, description="whether requests wait in the gateway while no replica is nearly free"
    )
    horizon: Duration = Field(
        default=0.0,
        ge=0,
        le=60,
        description=(
            "prompt work ahead at which a replica counts as nearly free; 0 for 250ms where `feedback.observer` tells "
            "first tokens, else one and a half times `metrics.interval`. It grows while news of other gateways, or "
            "looks of this one, come later than 20ms: by as much, at most by 500ms"
        ),
    )
    longest_wait: Duration = Field(
        default=60.0, ge=0.1, le=1800, description="longest wait; then it is bound however busy replicas are"
    )
    requests: Whole = Field(
        default=1000,
        ge=1,
        le=100_000,
        description="most requests that wait in a gateway; those above it are bound as they come",
    )
    bytes: Size = Field(
        default=256 * 2**20,
        ge=2**20,
        le=64 * 2**30,
        description="most bytes of their bodies, which Envoy keeps meanwhile; those above it are bound as they come",
    )

    @model_validator(mode="after")
    def _can_work(self) -> Self:
        if not self.enabled and "enabled" not in self.model_fields_set and self.model_fields_set:
            raise ValueError(
                "has settings but is off, as enabled is missing; write `enabled: on`, or `off` to keep them for later"
            )
        if self.horizon > self.longest_wait:
            raise FaultAtError(
                ("horizon",),
                f"{show_duration(self.horizon)} is above longest_wait, {show_duration(self.longest_wait)}, so that "
                "nobody would wait that long for it; lower one",
            )
        return self

    def theta(self, *, observer: bool, interval: float) -> float:
        """The horizon in seconds; what news of the engines come by decides where it is not given.

        Args:
            observer: whether first tokens are told.
            interval: seconds between two samples of an engine.
        """
        if self.horizon:
            return self.horizon
        return _BY_FIRST_TOKENS if observer else _INTERVALS * interval


def _switch(value: object) -> object:
    if isinstance(value, str):
        raise ValueError("is neither on nor off; write one of the two, or settings below, indented")  # noqa: TRY004
    return {"enabled": value} if isinstance(value, bool) else value


#: As settings, or `on` and `off` alone.
LateBinding = Annotated[LateBindingSettings, BeforeValidator(_switch)]
