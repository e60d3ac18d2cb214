"""Settings of pools whose prompts may be computed on one replica and answered by another."""

from collections.abc import Collection
from typing import Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from extproc.core.headers import ALWAYS_REMOVED, DATA_PARALLEL_RANK, SELECTION, SERVED, SUBSET, is_owned
from extproc.quantities import Number, Whole
from extproc.settings.base import FaultAtError, Settings, form

#: Further headers that mean something else to the gateway, to Envoy or to engines.
_TAKEN: Final = frozenset({SERVED, SUBSET, SELECTION, DATA_PARALLEL_RANK})


class PrefillSettings(Settings):
    """Prompts computed apart from where they are answered, by replicas' roles (docs/prefill-decode.md)."""

    enabled: bool = Field(
        default=False, description="whether prompts may be computed on another replica than answers"
    )
    least: Whole = Field(
        default=512,
        ge=1,
        le=10_000_000,
        description="uncached prompt tokens below which the replica that answers computes them itself",
    )
    transfer_speed: Number = Field(
        default=200_000.0,
        gt=0,
        le=1_000_000_000,
        description="prompt tokens a second whose keys and values come over from one replica to the other",
    )
    stall: Number = Field(
        default=1.0,
        ge=0,
        le=1000,
        description="seconds charged for each second and answer that a prompt computed beside them holds up",
    )
    header: str = Field(
        default="x-prefiller-host-port",
        pattern=r"^[a-z0-9][a-z0-9-]{0,63}$",
        json_schema_extra=form("a header's name in lower case that clients can't send"),
        description="names the replica that computes the prompt, to the proxy in front of the engine that answers",
    )
    decode_header: str = Field(
        default="",
        pattern=r"^(|[a-z0-9][a-z0-9-]{0,63})$",
        json_schema_extra=form("a header's name in lower case that clients can't send, or nothing"),
        description="names the replica that answers, to a router that stands before both; empty for none",
    )
    form: Literal["host_port", "url"] = Field(
        default="host_port", description="how they name it: ip:port, or http://ip:port"
    )
    role_label: str = Field(
        default="llm-d.ai/role",
        description="label of discovered replicas that says prefill, decode or both; those without it decode",
    )

    @field_validator("header", "decode_header")
    @classmethod
    def _is_the_gateways(cls, name: str) -> str:
        if name and not is_owned(name):
            raise ValueError(
                f"is {name}, which clients could send themselves, as Envoy does not strip it; write "
                "x-prefiller-host-port, or a name that begins with x-kvsteer-"
            )
        if name in ALWAYS_REMOVED or name in _TAKEN:
            raise ValueError(
                f"is {name}, in which the gateway says something else; write x-prefiller-host-port, or another name "
                "that begins with x-kvsteer-"
            )
        return name

    @model_validator(mode="after")
    def _tell_two_things(self) -> Self:
        if self.header == self.decode_header:
            raise FaultAtError(
                ("decode_header",),
                f"is {self.header}, in which the replica that computes the prompt is named; write another name",
            )
        return self


def check_roles(prefill: PrefillSettings, roles: Collection[str], *, found: bool, late: bool) -> None:
    """Raise ValueError where the roles of a pool's listed replicas don't fit how it is set.

    Args:
        prefill: how it sends prompts apart.
        roles: of its listed replicas.
        found: whether more are found by discovery.
        late: whether it binds late.
    """
    if not prefill.enabled:
        if any(role != "both" for role in roles):
            raise ValueError(
                "has replicas with a role, but prefill.enabled is false, so that each would get whole requests; "
                "set it to true, or remove the roles"
            )
        return
    if late:
        raise ValueError(
            "has prefill.enabled and late_binding, but a room waits for one replica, not for a pair; turn one off"
        )
    if not found and all(role == "prefill" for role in roles):
        raise ValueError("has no replica that answers; give one the role decode or both")
    if not found and all(role == "decode" for role in roles):
        raise ValueError(
            "has prefill.enabled but no replica that computes prompts; give one the role prefill or both"
        )
