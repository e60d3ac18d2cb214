"""Settings of a metric that enters what a second of a replica costs: expert load, price, speed class."""

from collections.abc import Hashable
from functools import lru_cache
from typing import Self, cast

from pydantic import Field, field_validator, model_validator

from extproc.core.bias import Factor
from extproc.engines import Engine, get
from extproc.engines.factored import Factored
from extproc.engines.generic import Selector
from extproc.quantities import Number
from extproc.settings.base import Settings


class FactorSettings(Settings):
    """A replica's cost times 1 + weight * (value - neutral), within low..high; 1 while the value is unknown."""

    metric: str = Field(
        default="",
        description='metric of the engine: `name`, `name{label="value"}`, either with `/ 100` behind; empty for none',
    )
    neutral: Number = Field(
        default=1.0, ge=-1e12, le=1e12, description="value of a replica that costs as usual"
    )
    weight: Number = Field(
        default=1.0,
        ge=-1e9,
        le=1e9,
        description="how much more it costs for each 1 that the value is above that",
    )
    low: Number = Field(default=0.5, ge=0.1, le=1, description="least factor")
    high: Number = Field(default=2.0, ge=1, le=10, description="largest factor")

    @field_validator("metric")
    @classmethod
    def _can_be_read(cls, metric: str) -> str:
        if metric:
            Selector.parse(metric)
        return metric

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if self.metric and not self.weight:
            raise ValueError(
                "has a metric but weight 0, so it changes nothing; raise weight, or remove metric"
            )
        return self

    @property
    def rule(self) -> Factor | None:
        """As the core takes it; None for none."""
        if not self.metric:
            return None
        return Factor(neutral=self.neutral, weight=self.weight, low=self.low, high=self.high)

    def check(self, engine: str) -> None:
        """Raise ValueError where the engine's metrics can't be read together with this one."""
        if self.metric and engine == "auto":
            raise ValueError(
                "has a factor with a metric, which engine auto does not read; write engine: vllm or another"
            )

    def reader(self, engine: str | Engine) -> str | Engine:
        """Who reads the metrics, this one too."""
        if not self.metric:
            return engine
        return (
            _named(engine, self.metric)
            if isinstance(engine, str)
            else _made(cast(Hashable, engine), self.metric)
        )


@lru_cache(maxsize=64)
def _named(engine: str, metric: str) -> Factored:
    return Factored(get(engine), metric)


@lru_cache(maxsize=64)
def _made(engine: Hashable, metric: str) -> Factored:
    return Factored(engine, metric)  # type: ignore[arg-type]
