"""Settings of LoRA adapters (docs/adapters.md)."""

from collections.abc import Sequence
from typing import Self

from pydantic import Field, field_validator, model_validator

from extproc.core.adapter_loads import LoadRules
from extproc.core.adapters import LONGEST_NAME, MOST_NAMES, AdapterRules
from extproc.quantities import Duration, Whole
from extproc.settings.base import Settings

#: Policies whose cost the adapters enter.
_WEIGHING = ("charged_cost", "equal_cost")


#: Engines with calls that load and unload adapters (extproc/engines/adapter_calls.py).
_LOADING = ("vllm", "sglang")
#: Longest path of an adapter's weights, in characters.
_LONGEST_PATH = 4096


class LoadingSettings(Settings):
    """Whether adapters are loaded and unloaded through the engines' API, and within which bounds."""

    enabled: bool = Field(default=False, description="whether adapters are loaded and unloaded by need")
    paths: dict[str, str] = Field(
        default_factory=dict,
        description="adapters -> where their weights lie, as the engines see it; only these come and go",
    )
    per_replica: Whole = Field(
        default=8, ge=1, le=10_000, description="adapters registered with a replica at once"
    )
    per_minute: Whole = Field(
        default=30, ge=1, le=10_000, description="loads begun within any 60 s, over all of the pool"
    )
    timeout: Duration = Field(default=30.0, ge=0.1, le=600, description="longest wait for one call")
    wait: Duration = Field(
        default=10.0,
        ge=0,
        le=600,
        description="how long a request waits for an adapter that no replica serves; 0 for not at all",
    )
    idle: Duration = Field(
        default=10.0, ge=1, le=86400, description="how long nobody used an adapter that makes room"
    )

    @field_validator("paths")
    @classmethod
    def _are_paths(cls, paths: dict[str, str]) -> dict[str, str]:
        if len(paths) > MOST_NAMES:
            raise ValueError(f"has {len(paths)} adapters; {MOST_NAMES} are the most")
        for name, path in paths.items():
            if not name or len(name) > LONGEST_NAME:
                raise ValueError(f"has a name of {len(name)} characters; write 1 to {LONGEST_NAME}")
            if not path or len(path) > _LONGEST_PATH:
                raise ValueError(
                    f"has a path of {len(path)} characters for {name!r}; write 1 to {_LONGEST_PATH}"
                )
        return paths

    @model_validator(mode="after")
    def _has_something_to_load(self) -> Self:
        if self.enabled and not self.paths:
            raise ValueError(
                "is enabled without paths, so nothing could be loaded; write NAME: PATH under paths"
            )
        return self

    @property
    def rules(self) -> LoadRules:
        """As the core takes them."""
        return LoadRules(
            paths=self.paths, most=self.per_replica, a_minute=self.per_minute, wait=self.wait, idle=self.idle
        )


class AdapterSettings(Settings):
    """Whether requests for LoRA adapters go to replicas that hold them."""

    enabled: bool = Field(
        default=False, description="whether a replica that must load the adapter costs more"
    )
    names: dict[str, str] = Field(
        default_factory=dict,
        description="adapters known beforehand -> their model; others are known once engines tell of them",
    )
    slots: Whole = Field(
        default=4,
        ge=1,
        le=10_000,
        description="adapters a replica computes with at once, where its metrics don't tell",
    )
    load: Duration = Field(default=0.5, ge=0, le=600, description="time that loading an adapter takes")
    keep: Duration = Field(
        default=60.0,
        ge=1,
        le=86400,
        description="how long an adapter that must go is missed, should it be asked for",
    )
    ask: Duration = Field(
        default=10.0,
        ge=0,
        le=3600,
        description="time between two looks at each replica's /v1/models; 0 for none",
    )
    token_file: str = Field(
        default="",
        description="file with the bearer token for /v1/models and for loading, where engines want one",
    )
    loading: LoadingSettings = Field(default_factory=LoadingSettings)

    def rules(self, models: Sequence[str]) -> AdapterRules:
        """As the core takes them; what is loaded belongs to the only one of the pool's models, where there is one."""
        base = models[0] if len(models) == 1 else ""
        paths = self.loading.paths if self.loading.enabled else {}
        names = dict.fromkeys(paths, base) | self.names
        return AdapterRules(slots=self.slots, load=self.load, keep=self.keep, names=names)

    @property
    def loads(self) -> bool:
        """Whether adapters are loaded."""
        return self.enabled and self.loading.enabled

    @model_validator(mode="after")
    def _loading_has_what_it_needs(self) -> Self:
        if not self.loading.enabled:
            return self
        if not self.enabled:
            raise ValueError("has loading enabled but not enabled itself; write adapters.enabled: true")
        if not self.ask:
            raise ValueError(
                "has loading enabled and ask 0, so what replicas serve would never be known; write ask: 10s"
            )
        return self


def check_engine_loads(engine: str, *, hands_over: bool) -> None:
    """Raise ValueError where a pool's engine, or its way of serving, does not go with loading adapters."""
    if engine not in _LOADING:
        why = "may be one without" if engine == "auto" else "has no"
        raise ValueError(
            f"has adapters.loading enabled, and engine {engine} {why} calls for that; write engine: "
            f"{' or '.join(_LOADING)}, or adapters.loading.enabled: false"
        )
    if hands_over:
        raise ValueError(
            "has adapters.loading and prefill enabled, which don't go together: a request needs its adapter on two "
            "replicas; write false for one of them"
        )


def check_policy_weighs(policy: str, late: bool) -> None:
    """Raise ValueError where a pool's way to choose does not look at what adapters cost."""
    if policy not in _WEIGHING:
        raise ValueError(
            f"has adapters enabled, which the policy {policy} does not weigh; "
            f"write policy: {' or '.join(_WEIGHING)}, or adapters.enabled: false"
        )
    if late:
        raise ValueError(
            "has adapters enabled and binds late, which does not weigh them; write late_binding: off, or "
            "adapters.enabled: false"
        )
