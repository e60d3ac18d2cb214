"""Settings by which a pool takes some requests and leaves others."""

from typing import Self

from pydantic import Field, model_validator

from extproc.quantities import Duration, Number, Whole
from extproc.settings.base import Settings


class ShapeSettings(Settings):
    """How long the prompts are that a pool takes, in tokens as estimated before anything is computed."""

    least: Whole = Field(default=0, ge=0, le=1_000_000_000, description="tokens from which on it takes them")
    below: Whole = Field(
        default=0, ge=0, le=1_000_000_000, description="tokens below which it takes them; 0 for no bound"
    )

    @model_validator(mode="after")
    def _holds_some(self) -> Self:
        if self.below and self.below <= self.least:
            raise ValueError(
                f"below ({self.below}) must be above least ({self.least}), or it takes nothing; "
                "raise below, or set it to 0 for no bound"
            )
        return self


class MirrorSettings(Settings):
    """Requests of a pool that Envoy sends to another one too, whose answers nobody sees (docs/pools.md)."""

    pool: str = Field(default="", description="the other pool's name; empty for none")
    share: Number = Field(default=0.0, ge=0, le=1, description="part of the requests that are mirrored")

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        if self.share and not self.pool:
            raise ValueError("has a share but no pool; name the pool that gets it, or remove the share")
        if self.pool and "share" not in self.model_fields_set:
            raise ValueError("has a pool but no share, so nothing is mirrored; write the share, such as 0.3")
        return self


class CanarySettings(Settings):
    """When a version of a model steps back by itself, compared with another one (docs/pools.md)."""

    guard: bool = Field(default=True, description="whether a worse version's weight is set to 0")
    errors: Number = Field(
        default=0.02,
        ge=0,
        le=1,
        description="how much larger its share of errors may be, and of clients left unanswered (0.02: 2 points)",
    )
    ttft: Number = Field(
        default=0.5,
        ge=0,
        le=100,
        description="how much longer its P99 time to first token may be (0.5: by half)",
    )
    requests: Whole = Field(
        default=20, ge=5, le=4096, description="requests of each that are needed to compare them"
    )
    window: Duration = Field(default=60.0, ge=1, le=3600, description="how far back requests count")
