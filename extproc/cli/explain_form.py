"""What an explanation must look like to be shown: whoever answers at a port may be no gateway, or a later one."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Number = Annotated[float, Field(allow_inf_nan=False)]


class _Form(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class _Refusal(_Form):
    outcome: str
    why: str | None
    choice: str | None
    candidates: list["_Row"]


class _Row(_Form):
    replica: str
    excluded: str | None
    rank: int | None = None
    score: Number | None = None
    charged_cost: dict[str, Number] | None = None


class _Request(_Form):
    prompt_tokens: Number
    output_tokens_expected: Number
    dialect: str = ""
    model: str = ""


class _Shadow(_Form):
    policy: str
    choice: str | None


class _Decision(_Refusal):
    pool: str
    policy: str
    policy_version: int
    request: _Request
    reason: str
    trouble: str | None
    rho: Number
    shadow: _Shadow | None


def fault_of(said: Any) -> str:
    """Why this is no explanation; "" when it is one."""
    form = _Decision if isinstance(said, dict) and "pool" in said else _Refusal
    try:
        form.model_validate(said)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part)[:64] for part in first["loc"]) or "it"
        return f"{where}: {first['msg']}"
    return ""
