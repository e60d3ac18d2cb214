"""Settings of pools whose engines have data-parallel ranks behind one address."""

from pydantic import Field, field_validator

from extproc.core.headers import DATA_PARALLEL_RANK, is_owned
from extproc.quantities import Whole
from extproc.settings.base import Settings, form


class RankSettings(Settings):
    """Data-parallel ranks behind one address, each with its own cache: the gateway names one (docs/engines.md)."""

    enabled: bool = Field(default=False, description="whether the gateway chooses the rank of each request")
    header: str = Field(
        default=DATA_PARALLEL_RANK,
        pattern=r"^[a-z0-9][a-z0-9-]{0,63}$",
        json_schema_extra=form("a header's name in lower case that clients can't send"),
        description="names the rank to the engine: vLLM and SGLang read x-data-parallel-rank",
    )

    few: Whole = Field(
        default=4,
        ge=1,
        le=10_000,
        description="requests below which a rank has room for its conversations, whatever the others have",
    )

    @field_validator("header")
    @classmethod
    def _is_the_gateways(cls, name: str) -> str:
        if not is_owned(name):
            raise ValueError(
                f"is {name}, which clients could send themselves, as Envoy does not strip it; write "
                f"{DATA_PARALLEL_RANK}, or a name that begins with x-kvsteer-"
            )
        return name


def check_ranks(ranks: RankSettings, *, prefill: bool, engine: str) -> None:
    """Raise ValueError where a pool's ranks can't be chosen.

    Args:
        ranks: whether they are.
        prefill: whether prompts are computed apart: a proxy would pass the header on to another engine.
        engine: whose metrics are read.
    """
    if not ranks.enabled:
        return
    if prefill:
        raise ValueError(
            "has ranks.enabled and prefill.enabled, but the header would name a rank to both engines; turn one off"
        )
    if engine not in ("auto", "vllm", "sglang"):
        raise ValueError(
            f"has ranks.enabled, but metrics of engine {engine} tell of no ranks; write engine: vllm or sglang, "
            "or set it to false"
        )
