"""Faults on request: what may go wrong, and which request it hits. No I/O.

A share is dealt out evenly and not by chance: 0.25 hits every fourth request, so tests can count.
"""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

#: Which requests a fault hits: those that compute, GET /metrics, GET /health, or all three.
Scope = Literal["requests", "metrics", "health", "all"]
_Share = Annotated[float, Field(gt=0, le=1)]


class BadControl(ValueError):
    """A control body can't be used; the message says where and why. Answered with 400."""


class _Fault(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ErrorFault(_Fault):
    """Answer with `status` at once. `retry_after` (seconds) becomes a Retry-After header."""

    status: int = Field(500, ge=400, le=599)
    share: _Share = 1.0
    retry_after: int | None = Field(None, ge=0, le=3600)
    scope: Scope = "requests"


class HangFault(_Fault):
    """Accept and never answer, until the client goes away."""

    share: _Share = 1.0
    scope: Scope = "requests"


class ResetFault(_Fault):
    """Reset the connection: before the response's headers, or after `after_chunks` SSE chunks of a stream."""

    share: _Share = 1.0
    when: Literal["before_headers", "mid_stream"] = "before_headers"
    after_chunks: int = Field(1, ge=1)
    scope: Scope = "requests"


class RestartFault(_Fault):
    """Drop connections, cache, counters and start time, once; refuse connections for `down` seconds."""

    down: float = Field(1.0, ge=0, le=3600)


class DropCacheFault(_Fault):
    """Forget the prefix cache now, or every `every` seconds."""

    every: float | None = Field(None, ge=0.01)


class Control(_Fault):
    """The body of POST /_control. Keys that are absent stay as they are; null ends a fault."""

    slow: float | None = Field(None, gt=0, le=1e6)
    error: ErrorFault | None = None
    hang: HangFault | None = None
    reset: ResetFault | None = None
    restart: RestartFault | None = None
    drop_cache: DropCacheFault | None = None
    freeze_metrics: bool | None = None

    @classmethod
    def read(cls, body: bytes | str) -> Self:
        """Parse JSON.

        Raises:
            BadControl: not JSON, an unknown key or a value out of range.
        """
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            raise BadControl("; ".join(_sentence(fault) for fault in error.errors())) from None


def _sentence(fault: object) -> str:
    assert isinstance(fault, dict)
    where = ".".join(str(part) for part in fault["loc"]) or "body"
    if fault["type"] == "extra_forbidden":
        return f"{where}: unknown key; known are {', '.join(Control.model_fields)}"
    return f"{where}: {fault['msg']}"


class Faults:
    """The faults that are on."""

    def __init__(self) -> None:
        self.slow = 1.0
        self.error: ErrorFault | None = None
        self.hang: HangFault | None = None
        self.reset: ResetFault | None = None
        self.drop_cache_every: float | None = None
        self.freeze_metrics = False
        self._dealt: dict[str, float] = {}

    def apply(self, control: Control) -> None:
        """Take over the keys that `control` names."""
        named = control.model_fields_set
        if "slow" in named:
            self.slow = control.slow or 1.0
        for name in ("error", "hang", "reset"):
            if name in named:
                setattr(self, name, getattr(control, name))
                self._dealt.pop(name, None)
        if "drop_cache" in named:
            self.drop_cache_every = control.drop_cache.every if control.drop_cache else None
        if "freeze_metrics" in named:
            self.freeze_metrics = bool(control.freeze_metrics)

    def hit_by_error(self, scope: Scope) -> ErrorFault | None:
        """The error this request of `scope` gets, if any."""
        return self.error if self.error and self._hits("error", self.error, scope) else None

    def hit_by_hang(self, scope: Scope) -> bool:
        """Whether this request of `scope` is never answered."""
        return bool(self.hang and self._hits("hang", self.hang, scope))

    def hit_by_reset(self, scope: Scope) -> ResetFault | None:
        """The reset that this request of `scope` meets, if any."""
        return self.reset if self.reset and self._hits("reset", self.reset, scope) else None

    def state(self) -> dict[str, object]:
        """What is on, in the form of a control body."""
        return {
            "slow": self.slow,
            "error": self.error and self.error.model_dump(),
            "hang": self.hang and self.hang.model_dump(),
            "reset": self.reset and self.reset.model_dump(),
            "drop_cache": self.drop_cache_every and {"every": self.drop_cache_every},
            "freeze_metrics": self.freeze_metrics,
        }

    def _hits(self, name: str, fault: ErrorFault | HangFault | ResetFault, scope: Scope) -> bool:
        if fault.scope not in (scope, "all"):
            return False
        dealt = self._dealt.get(name, 0.0) + fault.share
        # A little more than nothing, so that ten times a share of 0.1 makes one hit in spite of rounding.
        hit = dealt > 1 - 1e-9
        self._dealt[name] = dealt - 1 if hit else dealt
        return hit
