"""Settings of replicas: the listed ones, how they are watched, and what each can do."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from extproc.addresses import parse_address
from extproc.quantities import Address, Duration, Number, Whole, show_duration
from extproc.settings.base import Settings, form


class ReplicaSettings(Settings):
    """One engine endpoint."""

    address: Address = Field(description="ip:port of the engine; Envoy needs the IP literal")
    metrics: str = Field(
        default="", description="URL of its metrics; empty for http://ADDRESS and metrics.path"
    )
    telemetry: Literal["pool", "pull", "push", "both"] = Field(
        default="pool", description="how its state is learned, where that is not as the pool says"
    )
    cost: Number = Field(
        default=1.0, ge=0.1, le=10, description="what a second of it costs, against 1 for the others"
    )
    domain: str = Field(
        default="",
        description="what it fails together with, such as a rack; empty for its host (the IP address)",
    )
    role: Literal["both", "prefill", "decode"] = Field(
        default="both",
        description="with `prefill.enabled`: whether it computes prompts for others, answers, or both",
    )

    @field_validator("address")
    @classmethod
    def _can_be_steered_to(cls, address: str) -> str:
        parsed = parse_address(address)
        if not parsed.is_ip:
            raise ValueError("is a host name, which Envoy can't steer to; write the replica's IP address")
        if parsed.port == 0:
            raise ValueError("has port 0; write the port the engine listens on")
        return address

    @field_validator("metrics")
    @classmethod
    def _is_url(cls, url: str) -> str:
        if url and not url.startswith(("http://", "https://")):
            raise ValueError("is no URL; write http://HOST:PORT/PATH or https://HOST:PORT/PATH")
        return url


def _replica(value: object) -> object:
    return {"address": value} if isinstance(value, str | int) else value


Replica = Annotated[ReplicaSettings, BeforeValidator(_replica)]


class MetricsSettings(Settings):
    """How engines are asked for their state."""

    enabled: bool = Field(default=True, description="whether engines are scraped at all")
    path: str = Field(
        default="/metrics",
        pattern=r"^/",
        json_schema_extra=form("a path that begins with /"),
        description="path of the metrics on each replica",
    )
    interval: Duration = Field(
        default=0.5, ge=0.1, le=10, description="time between two scrapes of a replica"
    )
    timeout: Duration = Field(default=1.0, ge=0.05, le=30, description="longest wait for one scrape")
    stale_after: Duration = Field(
        default=15.0, ge=1, le=600, description="age at which a replica is no candidate"
    )
    token: str = Field(default="", description="bearer token for secured metrics", repr=False)
    token_file: str = Field(default="", description="file that holds the bearer token")
    ca_file: str = Field(default="", description="CA certificates for https metrics")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.token and self.token_file:
            raise ValueError("token and token_file are both given; remove one")
        if self.stale_after <= self.interval:
            raise ValueError(
                f"stale_after ({show_duration(self.stale_after)}) must be above "
                f"interval ({show_duration(self.interval)}), or every replica is always stale"
            )
        return self


class HeadroomSettings(Settings):
    """Weights of the headroom score (0..1) and its limits."""

    kv_weight: Number = Field(default=0.4, ge=0, le=1, description="weight of free KV blocks")
    running_weight: Number = Field(default=0.3, ge=0, le=1, description="weight of free running slots")
    waiting_weight: Number = Field(default=0.3, ge=0, le=1, description="weight of an empty queue")
    window: Whole = Field(default=5, ge=1, le=100, description="samples the score is smoothed over")
    forecast: Duration = Field(
        default=3.0, ge=0, le=60, description="how far falling free KV is extrapolated"
    )
    floor: Number = Field(default=0.15, ge=0, le=1, description="score below which a replica counts as full")
    kv_ceiling: Number = Field(
        default=0.97, gt=0, le=1, description="KV use above which a replica gets nothing new"
    )
    length_shift: Number = Field(
        default=0.5, ge=0, le=1, description="how far a request's length moves weight between slots and KV"
    )

    @model_validator(mode="after")
    def _some_weight(self) -> Self:
        if self.kv_weight + self.running_weight + self.waiting_weight <= 0:
            raise ValueError(
                "at least one of kv_weight, running_weight, waiting_weight must be above 0; raise one"
            )
        return self


class CapacitySettings(Settings):
    """What a replica can do, until measured. A metric that tells the same thing wins over these."""

    prefill_speed: Number = Field(
        default=8000.0, gt=0, le=10_000_000, description="prompt tokens one replica computes a second"
    )
    decode_speed: Number = Field(
        default=2000.0, gt=0, le=10_000_000, description="output tokens a full replica makes a second"
    )
    max_running: Whole = Field(
        default=256, ge=1, le=100_000, description="sequences a replica computes at once"
    )
    kv_tokens: Whole = Field(
        default=500_000, ge=1024, le=10_000_000_000, description="KV cache of a replica, in tokens"
    )
    output_tokens: Whole = Field(
        default=256,
        ge=1,
        le=1_000_000,
        description="output tokens assumed of an answer until answers came back",
    )


class ColdSettings(Settings):
    """How a new replica is favoured until its cache is filled."""

    favour: Number = Field(
        default=0.1,
        ge=0,
        le=0.9,
        description="part of its expected cost that an empty, new replica is spared",
    )
    span: Duration = Field(
        default=1800.0, ge=1, le=86400, description="age of an engine at which nothing of that is left"
    )
