"""Settings by which a pool takes some requests and leaves others."""

from typing import Self

from pydantic import Field, model_validator

from extproc.quantities import Number, Whole
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
        return self
