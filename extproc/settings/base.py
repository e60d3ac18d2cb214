"""What every group of settings has in common."""

from pydantic import BaseModel, ConfigDict, JsonValue


def form(words: str) -> dict[str, JsonValue]:
    """What a `pattern` asks for, in words, for messages and the documentation."""
    return {"form": words}


class Settings(BaseModel):
    """Base of every group of settings: unknown keys refused, values frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class FaultAtError(ValueError):
    """A fault of a setting deeper down than the group whose check found it.

    Its value is not quoted in messages, as that of the group is none that could be.

    Args:
        where: keys and numbers from the group down to the setting.
        message: what is wrong with it and how to mend it.
    """

    def __init__(self, where: tuple[int | str, ...], message: str) -> None:
        super().__init__(message)
        self.where = where
