"""Settings of how long a try at a replica may take, and of the tries after it."""

from typing import Self

from pydantic import Field, model_validator

from extproc.quantities import Duration, Number, Whole
from extproc.settings.base import FaultAtError, Settings


class TimeoutSettings(Settings):
    """How long a response may take, as Envoy measures it; 0 for no limit (docs/feedback.md)."""

    first_byte: Duration = Field(
        default=0.0,
        ge=0,
        le=86400,
        description="longest wait for a replica's response headers, each replica tried anew; then 504",
    )
    silence: Duration = Field(
        default=0.0,
        ge=0,
        le=86400,
        description="longest silence of a replica, before the first token or between two; then 504, or the end",
    )
    total: Duration = Field(
        default=0.0, ge=0, le=86400, description="longest time from a request to its response's end"
    )


class RetrySettings(Settings):
    """What Envoy may spend on further tries, and where they go; how many for a request says `envoy.retries`
    (docs/operations.md)."""

    share: Number = Field(
        default=0.5,
        ge=0,
        le=1,
        description="most retries at once, as a part of the pool's requests then (half: one replica of two may "
        "refuse everything); 0 for no such bound",
    )
    least: Whole = Field(
        default=64,
        ge=1,
        le=1_000_000,
        description="retries at once that are always allowed, however few requests there are",
    )
    domain_label: str = Field(
        default="",
        description="label of discovered replicas that names what fails together (node, zone ...); empty for none",
    )

    @model_validator(mode="after")
    def _is_a_bound(self) -> Self:
        if not self.share and "least" in self.model_fields_set:
            raise FaultAtError(
                ("least",),
                "bounds nothing, as share is 0, which is no bound at all; raise share, or remove it",
            )
        return self
