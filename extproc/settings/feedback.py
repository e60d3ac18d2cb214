"""Settings of what the gateway learns from how requests ended."""

from typing import Literal

from pydantic import Field

from extproc.quantities import Number
from extproc.settings.base import Settings


class FeedbackSettings(Settings):
    """How outcomes reach the gateway, and what is made of them."""

    source: Literal["trailers", "headers", "off"] = Field(
        default="trailers",
        description=(
            "what Envoy tells at the end of a response: trailers for status, replica and token usage in one message, "
            "headers for status and replica alone, off for nothing"
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
