"""Settings of a pool: its replicas, what it takes, and how one is chosen."""

from math import inf
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from extproc.core.routes import KINDS, Route
from extproc.engines import Engine, made_of
from extproc.quantities import Duration, Number, Whole
from extproc.settings.adapters import AdapterSettings, check_engine_loads, check_policy_weighs
from extproc.settings.base import FaultAtError, Settings, form
from extproc.settings.discovery import DiscoverySettings
from extproc.settings.estate import check_listed, check_mapped
from extproc.settings.factor import FactorSettings
from extproc.settings.late import LateBinding, LateBindingSettings
from extproc.settings.matching import MirrorSettings, ShapeSettings
from extproc.settings.prefill import PrefillSettings, check_roles
from extproc.settings.ranks import RankSettings, check_ranks
from extproc.settings.replicas import (
    CapacitySettings,
    ColdSettings,
    HeadroomSettings,
    MetricsSettings,
    Replica,
    ReplicaSettings,
)
from extproc.settings.tries import RetrySettings, TimeoutSettings


class IndexSettings(Settings):
    """The prefix index of a pool."""

    ttl: Duration = Field(
        default=1800.0, ge=10, le=86400, description="age at which an unused entry is dropped"
    )
    entries: Whole = Field(
        default=4_000_000, ge=1000, le=100_000_000, description="most entries a pool keeps, over all replicas"
    )


class PolicySettings(Settings):
    """Which policy chooses, and its own settings (docs/policies.md)."""

    name: str = Field(default="charged_cost", description="the policy's name")
    settings: dict[str, Number] = Field(default_factory=dict, description="the policy's own settings")


class ShadowSettings(Settings):
    """A second policy that decides beside the first, to compare; nothing is routed by it (docs/policies.md)."""

    name: str = Field(default="", description="the shadow policy's name; empty for none")
    settings: dict[str, Number] = Field(default_factory=dict, description="its own settings")


def _policy(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


class PoolSettings(Settings):
    """Replicas that can answer for the same models."""

    name: str = Field(
        default="default",
        pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$",
        json_schema_extra=form("small letters, digits, _ and -, 1 to 63 of them"),
        description="the pool's name",
    )
    models: list[str] = Field(
        default_factory=list, description="models the pool answers for; empty for every model"
    )
    kinds: list[Literal["generate", "embed", "rerank"]] = Field(
        default_factory=list, description="kinds of requests it takes; empty for every kind"
    )
    prompt_tokens: ShapeSettings = Field(default_factory=ShapeSettings)
    served_as: dict[str, str] = Field(
        default_factory=dict,
        description="a model -> the name by which the replicas serve it, where that is another",
    )
    answer_model: Literal["engine", "asked"] = Field(
        default="engine",
        description="which name answers tell in `model`: the engine's own, or that by which the client asked",
    )
    version: str = Field(
        default="",
        pattern=r"^(|[A-Za-z0-9][A-Za-z0-9._-]{0,62})$",
        json_schema_extra=form("letters, digits, ., _ and -, at most 63 of them"),
        description="what it serves of its models, where other pools serve other versions of the same",
    )
    weight: Number = Field(
        default=100.0,
        ge=0,
        le=100,
        description="its version's share of the conversations, against the weights of the others",
    )
    engine: Literal["auto", "vllm", "sglang", "tgi", "trtllm", "triton", "llamacpp", "generic"] = Field(
        default="auto", description="whose metric names are read"
    )
    names: dict[str, str] = Field(
        default_factory=dict, description="with engine generic: a quantity -> its metric (docs/engines.md)"
    )
    replicas: list[Replica] = Field(default_factory=list, description="the engine endpoints")
    discovery: DiscoverySettings = Field(
        default_factory=DiscoverySettings, description="where replicas are found beside that list"
    )
    app_protocol: Literal["http", "h2c"] = Field(
        default="http",
        description="what Envoy speaks with the engines: HTTP/1.1, or HTTP/2 without TLS; scrapes are HTTP/1.1",
    )
    policy: Annotated[PolicySettings, BeforeValidator(_policy)] = Field(
        default_factory=PolicySettings, description="how a replica is chosen"
    )
    shadow: Annotated[ShadowSettings, BeforeValidator(_policy)] = Field(
        default_factory=ShadowSettings, description="a second policy, only compared with the first"
    )
    late_binding: LateBinding = Field(
        default_factory=LateBindingSettings,
        description="whether requests wait for a replica that is nearly free; `on` and `off` will do",
    )
    telemetry: Literal["pull", "push", "both"] = Field(
        default="pull",
        description="whether engines are scraped, report by themselves (`kvsteer report`), or both",
    )
    metrics: MetricsSettings = Field(default_factory=MetricsSettings)
    headroom: HeadroomSettings = Field(default_factory=HeadroomSettings)
    capacity: CapacitySettings = Field(default_factory=CapacitySettings)
    cold: ColdSettings = Field(default_factory=ColdSettings)
    index: IndexSettings = Field(default_factory=IndexSettings)
    timeouts: TimeoutSettings = Field(default_factory=TimeoutSettings)
    retries: RetrySettings = Field(default_factory=RetrySettings)
    mirror: MirrorSettings = Field(default_factory=MirrorSettings)
    adapters: AdapterSettings = Field(default_factory=AdapterSettings)
    factor: FactorSettings = Field(default_factory=FactorSettings)
    prefill: PrefillSettings = Field(default_factory=PrefillSettings)
    ranks: RankSettings = Field(default_factory=RankSettings)

    @property
    def reader(self) -> str | Engine:
        """Who reads the metrics: the name of an engine, `auto`, or the one made of `names`."""
        return self.factor.reader(made_of(self.names) if self.engine == "generic" else self.engine)

    @property
    def route(self) -> Route:
        """What it takes."""
        return Route(
            pool=self.name,
            models=frozenset(self.models),
            kinds=frozenset(self.kinds or KINDS),
            least=self.prompt_tokens.least,
            below=self.prompt_tokens.below or inf,
            version=self.version,
            weight=self.weight,
        )

    @property
    def costs(self) -> dict[str, float]:
        """Address -> cost of the replicas that cost something else than 1."""
        return {replica.address: replica.cost for replica in self.replicas if replica.cost != 1}

    @property
    def domains(self) -> dict[str, str]:
        """Address -> failure domain of the listed replicas that name one."""
        return {replica.address: replica.domain for replica in self.replicas if replica.domain}

    @property
    def roles(self) -> dict[str, str]:
        """Address -> role of the listed replicas."""
        return {replica.address: replica.role for replica in self.replicas}

    @field_validator("names")
    @classmethod
    def _can_be_read(cls, names: dict[str, str]) -> dict[str, str]:
        if names:
            made_of(names)
        return names

    @field_validator("models")
    @classmethod
    def _are_names(cls, models: list[str]) -> list[str]:
        check_listed(models)
        return models

    @field_validator("served_as")
    @classmethod
    def _are_names_too(cls, served: dict[str, str]) -> dict[str, str]:
        check_mapped(served)
        return served

    @model_validator(mode="after")
    def _serves_what_it_answers_for(self) -> Self:
        for model in self.served_as:
            if self.models and model not in self.models:
                raise FaultAtError(
                    ("served_as", model), "is not among the pool's models; add it there or remove it"
                )
        return self

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        if self.engine == "generic" and not self.names:
            raise ValueError(
                "engine generic needs names; write at least running: NAME_OF_THE_METRIC under names"
            )
        if self.names and self.engine != "generic":
            raise ValueError(f"has names, which engine {self.engine} does not read; write engine: generic")
        return self

    @model_validator(mode="after")
    def _late_binding_has_a_price(self) -> Self:
        if self.late_binding.enabled and self.policy.name != "charged_cost":
            raise ValueError(
                f"binds late by the policy {self.policy.name}, which does not say what waiting is worth; "
                "write policy: charged_cost, or late_binding: off"
            )
        return self

    @model_validator(mode="after")
    def _adapters_and_factor_fit(self) -> Self:
        if self.adapters.enabled:
            check_policy_weighs(self.policy.name, self.late_binding.enabled)
        if self.adapters.loads:
            check_engine_loads(self.engine, hands_over=self.prefill.enabled)
        self.factor.check(self.engine)
        return self

    @model_validator(mode="after")
    def _roles_fit(self) -> Self:
        found = self.discovery.any
        check_ranks(self.ranks, prefill=self.prefill.enabled, engine=self.engine)
        check_roles(self.prefill, self.roles.values(), found=found, late=self.late_binding.enabled)
        return self

    @model_validator(mode="after")
    def _has_replicas(self) -> Self:
        if not self.replicas and not self.discovery.any:
            raise ValueError("has neither replicas nor discovery; give one of them")
        return self

    @model_validator(mode="after")
    def _reports_can_be_judged(self) -> Self:
        modes = {self.telemetry, *(replica.telemetry for replica in self.replicas)}
        if not self.metrics.enabled and modes & {"push", "both"}:
            raise ValueError(
                "takes reports but metrics.enabled is false, so none would ever count as stale; set it to true "
                "(telemetry: push scrapes nothing)"
            )
        return self

    @field_validator("replicas")
    @classmethod
    def _distinct(cls, replicas: list[ReplicaSettings]) -> list[ReplicaSettings]:
        seen: set[str] = set()
        for replica in replicas:
            if replica.address in seen:
                raise ValueError(f"holds {replica.address} twice; remove one")
            seen.add(replica.address)
        return replicas

    @field_validator("policy")
    @classmethod
    def _known(cls, policy: PolicySettings) -> PolicySettings:
        from extproc.core.policies import check_policy  # the registry imports no settings

        check_policy(policy.name, policy.settings)
        return policy

    @field_validator("shadow")
    @classmethod
    def _shadow_known(cls, shadow: ShadowSettings) -> ShadowSettings:
        from extproc.core.policies import check_policy  # the registry imports no settings

        if shadow.name:
            check_policy(shadow.name, shadow.settings)
        elif shadow.settings:
            raise ValueError("has settings but no name; name a policy, or remove the settings")
        return shadow
