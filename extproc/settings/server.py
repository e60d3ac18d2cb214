"""Settings of the gateway process itself."""

from typing import Literal, Self

from pydantic import Field, model_validator

from extproc.quantities import Address, Duration, Size, Whole, show_size
from extproc.settings.base import Settings, form


class AdminSettings(Settings):
    """The port for people and Prometheus; keep it from clients."""

    address: Address = Field(default="127.0.0.1:9095", description="where the admin port listens")
    decisions: Whole = Field(
        default=1000, ge=0, le=100_000, description="decision records kept for /decisions"
    )
    token_file: str = Field(
        default="",
        description=(
            "file of the token that every order on this port must carry (drains, policies, weights), also the live "
            "page's; empty takes orders of commands without one, and none of the page"
        ),
    )
    report_token_file: str = Field(
        default="",
        description="file of the bearer token that reports of engines must carry; empty takes any report",
    )


class LimitSettings(Settings):
    """Bounds on what a request may make the gateway hold or do."""

    body: Size = Field(
        default=32 * 2**20, ge=1024, le=2**30, description="largest request body; above it 413"
    )
    expanded_body: Size = Field(
        default=64 * 2**20, ge=1024, le=2**31, description="largest body once decompressed"
    )
    bodies: Size = Field(
        default=2**30,
        ge=1024,
        le=2**40,
        description="most memory for bodies that come in full duplex, all together; above it 503",
    )
    depth: Whole = Field(
        default=128, ge=4, le=900, description="deepest nesting of JSON that is read for routing"
    )
    parts: Whole = Field(
        default=20_000, ge=16, le=1_000_000, description="most messages and parts read for routing"
    )
    members: Whole = Field(
        default=2048, ge=1, le=100_000, description="most prompts in one batch read for routing"
    )
    streams: Whole = Field(default=100_000, ge=1, le=1_000_000, description="most exchanges open at once")

    @model_validator(mode="after")
    def _expanded_is_larger(self) -> Self:
        if self.expanded_body < self.body:
            raise ValueError(
                f"expanded_body ({show_size(self.expanded_body)}) is below body ({show_size(self.body)}); "
                "raise it, or lower body"
            )
        if self.bodies < self.body:
            raise ValueError(
                f"bodies ({show_size(self.bodies)}) is below body ({show_size(self.body)}); raise it, or lower body"
            )
        return self


class ReadingSettings(Settings):
    """Large bodies are read in a process of their own, which the first of them starts, and hold up nobody."""

    above: Size = Field(
        default=256 * 1024,
        ge=16 * 1024,
        le=2**31,
        description="bodies above it, or that expand beyond it, are read there; above `limits.body` reads all in the "
        "gateway itself",
    )
    patience: Duration = Field(
        default=5.0,
        ge=0.05,
        le=300,
        description="longest wait until one was read; then it goes by load alone",
    )
    waiting: Size = Field(
        default=512 * 2**20,
        ge=2**20,
        le=2**40,
        description="most bytes of such bodies that wait to be read; further ones go by load alone",
    )


class RequestSettings(Settings):
    """What happens to requests that routing can't place as usual."""

    unreadable: Literal["pass", "reject"] = Field(
        default="pass", description="a body that can't be read: sent by load alone, or answered with 400"
    )
    unknown_model: Literal["pass", "reject"] = Field(
        default="reject", description="a model no pool declares: answered with 404, or sent to the first pool"
    )
    models: Literal["auto", "answer", "pass"] = Field(
        default="auto",
        description=(
            "GET /v1/models: answered by the gateway for all pools, sent to the first pool, or answered where there "
            "are several pools or aliases, or adapters are loaded"
        ),
    )
    replica_header: str = Field(
        default="x-kvsteer-replica",
        pattern=r"^(|x-[a-z0-9][a-z0-9-]{0,60})$",
        json_schema_extra=form("x- and then small letters, digits and -, or nothing"),
        description="response header that names the replica that answered; empty for none",
    )
    fallbacks: Whole = Field(
        default=2, ge=0, le=4, description="further replicas named after the first, for retries"
    )
    test_selection: bool = Field(
        default=False,
        description=(
            "whether clients may name the endpoints they want in test-epp-endpoint-selection, and are told who "
            "answered in x-conformance-test-served-endpoint: for conformance tests alone"
        ),
    )


class LogSettings(Settings):
    """What is written to standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least level written"
    )
    format: Literal["json", "text"] = Field(default="json", description="one JSON object a line, or text")
    requests: bool = Field(default=False, description="one line for every request")
