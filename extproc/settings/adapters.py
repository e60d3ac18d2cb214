"""Settings of LoRA adapters (docs/adapters.md)."""

from pydantic import Field

from extproc.core.adapters import AdapterRules
from extproc.quantities import Duration, Whole
from extproc.settings.base import Settings

#: Policies whose cost the adapters enter.
_WEIGHING = ("charged_cost", "equal_cost")


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

    @property
    def rules(self) -> AdapterRules:
        """As the core takes them."""
        return AdapterRules(slots=self.slots, load=self.load, keep=self.keep, names=self.names)


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
