"""What every group of settings has in common."""

from pydantic import BaseModel, ConfigDict, JsonValue


def form(words: str) -> dict[str, JsonValue]:
    """What a `pattern` asks for, in words, for messages and the documentation."""
    return {"form": words}


class Settings(BaseModel):
    """Base of every group of settings: unknown keys refused, values frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
