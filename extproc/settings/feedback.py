"""Settings of what the gateway learns from how requests ended."""

from typing import Literal

from pydantic import Field, field_validator

from extproc.quantities import Number, Size
from extproc.settings.base import Settings


class FeedbackSettings(Settings):
    """How outcomes reach the gateway, and what is made of them."""

    source: Literal["trailers", "access_log", "body", "headers", "off"] = Field(
        default="trailers",
        description=(
            "how Envoy tells of a response: trailers for status, replica and token usage in one message at its end, "
            "access_log for the same in the access log, body for all of it piece by piece, headers for status and "
            "replica alone, off for nothing"
        ),
    )
    body_limit: Size = Field(
        default=64 * 2**10,
        ge=2**10,
        le=16 * 2**20,
        description="most memory for each response read here; longer events and JSON are scanned as they pass",
    )
    include_usage: bool = Field(
        default=False,
        description=(
            "whether streams of OpenAI's APIs are asked for usage when clients did not; they then get one more "
            "chunk (with source trailers and access_log not of /v1/completions, where it could not be read)"
        ),
    )
    observer: bool = Field(
        default=False,
        description="whether Envoy also tells when the first token of a streamed response comes",
    )
    distrust: Number = Field(
        default=0.5,
        ge=0,
        le=1,
        description="share of a replica's predicted cached tokens that must come true, or its predictions count less",
    )

    @field_validator("source", mode="before")
    @classmethod
    def _unquoted(cls, value: object) -> object:
        """YAML 1.1 reads the bare word off as false."""
        return "off" if value is False else value
