"""Settings of admission: who may use how much, who waits, and who is refused (docs/admission.md)."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from extproc.quantities import Duration, Number, Size, Whole
from extproc.settings.admitting import check_headers_are_apart, check_tenants_are_found
from extproc.settings.base import FaultAtError, Settings, form
from extproc.settings.identity import HEADER, HEADER_FORM, IdentitySettings, check_identity


class DegradeSettings(Settings):
    """A lesser service instead of waiting: exactly one of the three."""

    priority: Whole | None = Field(
        default=None, ge=0, le=1000, description="`priority` written into the body: vLLM's, larger is later"
    )
    pool: str = Field(default="", description="another pool that has room")
    model: str = Field(default="", description="a smaller model, written into the body, whose pool has room")

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        given = [self.priority is not None, bool(self.pool), bool(self.model)]
        if sum(given) != 1:
            raise ValueError("needs exactly one of priority, pool and model; write one an entry")
        return self


class PromiseSettings(Settings):
    """What a tenant may use, in each pool and over all gateways."""

    share: Number = Field(
        default=0.0, ge=0, le=1, description="of a pool's budget, that is its own whenever it wants it"
    )
    weight: Number = Field(
        default=1.0,
        ge=0.001,
        le=1000,
        description="by which what is free is divided among those who want more",
    )
    tokens_in_flight: Whole = Field(
        default=0,
        ge=0,
        le=10**12,
        description="most tokens in flight, prompt and expected output; 0 for no cap",
    )
    tokens_per_minute: Whole = Field(
        default=0, ge=0, le=10**12, description="most tokens a minute; 0 for no cap"
    )
    waiting: Whole = Field(
        default=100, ge=0, le=100_000, description="most requests that wait at one gateway"
    )
    priority: Whole = Field(
        default=1, ge=0, le=3, description="class of its requests in the queue; 0 goes first"
    )
    body: Size = Field(
        default=0,
        ge=0,
        le=2**31,
        description="largest body, refused at its headers; 0 for the gateway's limit",
    )
    degrade: list[DegradeSettings] = Field(
        default_factory=list, max_length=8, description="tried in this order before a request has to wait"
    )


class TenantSettings(PromiseSettings):
    """A tenant: who it is, and what it may use."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9_.-]{1,64}$",
        json_schema_extra=form("letters, digits, _, . and -, 1 to 64 of them"),
        description="names it in metrics and records",
    )
    ids: list[Annotated[str, AfterValidator(check_identity)]] = Field(
        min_length=1,
        description="identities that are its, none of them blank; of an api_key the SHA-256 of the key in hex",
    )


class BudgetSettings(Settings):
    """A pool's tokens in flight, over all gateways."""

    replica_tokens: Whole = Field(
        default=0, ge=0, le=10**12, description="that one replica bears before prompts queue; 0 to learn it"
    )
    cap: Whole = Field(
        default=0, ge=0, le=10**12, description="hard cap of a pool's budget; 0 for what the KV caches hold"
    )
    every: Duration = Field(default=20.0, ge=1, le=600, description="time between two looks at the budget")
    tighten: Number = Field(
        default=0.8,
        gt=0,
        le=10,
        description="load, against what the pool bears, above which the budget goes down",
    )
    relax: Number = Field(default=0.5, ge=0, le=10, description="load below which it goes up")
    interval: Duration = Field(
        default=0.1, ge=0.02, le=1, description="time between two trades of leases in Redis"
    )
    gateways: Whole = Field(
        default=4,
        ge=1,
        le=256,
        description="taken for their number until Redis was reached for the first time",
    )

    @model_validator(mode="after")
    def _leaves_room(self) -> Self:
        if self.relax >= self.tighten:
            raise ValueError(
                f"relax ({self.relax:g}) is not below tighten ({self.tighten:g}), so the budget would swing; lower it"
            )
        if 0 < self.cap < self.replica_tokens:
            raise FaultAtError(
                ("cap",),
                f"{self.cap} is below replica_tokens ({self.replica_tokens}), so that not one replica could be "
                "used; raise it, or lower replica_tokens",
            )
        return self


class AdmissionQueueSettings(Settings):
    """Requests that wait for room, at one gateway and for one pool."""

    wait: Duration = Field(default=10.0, ge=0, le=600, description="longest wait; 0 to refuse at once")
    deadline_header: str = Field(
        default="",
        pattern=HEADER,
        json_schema_extra=HEADER_FORM,
        description="request header in which clients say how many seconds they wait; empty for none",
    )
    requests: Whole = Field(default=1000, ge=1, le=100_000, description="most requests that wait")
    tokens: Whole = Field(default=50_000_000, ge=1, le=10**12, description="most tokens of them")
    size: Size = Field(
        default=256 * 2**20, ge=1024, le=2**40, description="most bytes of their bodies, which Envoy holds"
    )
    age: Duration = Field(
        default=5.0, gt=0, le=600, description="wait after which a request's class is one better"
    )
    long: Whole = Field(
        default=16_000, ge=1, le=10**9, description="tokens from which a request is a long one"
    )
    long_share: Number = Field(
        default=0.25,
        gt=0,
        lt=1,
        description="of a tenant's turns that is kept for long requests while some wait",
    )


class AdmissionSettings(Settings):
    """Who goes, who waits, who is refused, for the whole fleet of gateways (docs/admission.md)."""

    mode: Literal["off", "dry_run", "on"] = Field(
        default="off", description="dry_run decides, counts and records, and lets everything go"
    )
    identity: IdentitySettings = Field(default_factory=IdentitySettings)
    tenants: list[TenantSettings] = Field(
        default_factory=list, max_length=200, description="who is known, and what each may use"
    )
    others: PromiseSettings = Field(
        default_factory=PromiseSettings, description="what all others may use together"
    )
    budget: BudgetSettings = Field(default_factory=BudgetSettings)
    queue: AdmissionQueueSettings = Field(default_factory=AdmissionQueueSettings)

    @field_validator("mode", mode="before")
    @classmethod
    def _unquoted(cls, value: object) -> object:
        """YAML 1.1 reads the bare words off and on as truth values."""
        return {False: "off", True: "on"}.get(value, value) if isinstance(value, bool) else value

    @model_validator(mode="after")
    def _promises_can_be_kept(self) -> Self:
        promised = sum(tenant.share for tenant in self.tenants) + self.others.share
        if promised > 1 + 1e-9:
            raise ValueError(f"guaranteed shares add up to {promised:g}; lower them until they are at most 1")
        return self

    @model_validator(mode="after")
    def _tenants_are_apart(self) -> Self:
        names = [tenant.name for tenant in self.tenants]
        owners: dict[str, str] = {}
        for tenant in self.tenants:
            if tenant.name == "others" or names.count(tenant.name) > 1:
                raise ValueError(f"the tenant name {tenant.name!r} is taken; rename one")
            for identity in tenant.ids:
                if owners.setdefault(identity, tenant.name) != tenant.name:
                    raise ValueError(
                        f"{owners[identity]!r} and {tenant.name!r} list the same identity; remove it from one"
                    )
        return self

    @model_validator(mode="after")
    def _can_work(self) -> Self:
        check_tenants_are_found(self)
        check_headers_are_apart(self)
        return self

    @property
    def is_on(self) -> bool:
        """Whether anything is decided at all."""
        return self.mode != "off"
