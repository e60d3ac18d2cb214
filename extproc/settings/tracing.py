"""Settings of tracing: where spans are sent, of how many requests, and what may wait."""

from pydantic import Field

from extproc.quantities import Duration, Number, Whole
from extproc.settings.base import Settings, form


class TracingSettings(Settings):
    """A span for each decided request, sent by OTLP over HTTP (docs/tracing.md); off without an endpoint."""

    endpoint: str = Field(
        default="",
        pattern=r"^(|https?://[^\s?#@]+)$",
        json_schema_extra=form("an http or https URL without user, query or fragment, or nothing"),
        description="where a collector takes traces, such as `http://127.0.0.1:4318/v1/traces`; empty for none",
    )
    share: Number = Field(
        default=0.1,
        ge=0,
        le=1,
        description="share of the requests without `traceparent` that have a span; others as their caller says",
    )
    queue: Whole = Field(
        default=4096, ge=1, le=100_000, description="most spans that wait to be sent; older ones are dropped"
    )
    every: Duration = Field(
        default=5.0, ge=0.05, le=60, description="longest wait until they are sent; 512 go at once"
    )
    timeout: Duration = Field(default=5.0, ge=0.1, le=60, description="longest wait for the collector")
