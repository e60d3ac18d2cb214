"""Settings of admission's identities: where a request's is found, and what one may be."""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from extproc.core.admission.tenants import LONGEST
from extproc.settings.base import Settings, form

HEADER = r"^(|[a-z0-9][a-z0-9-]{0,63})$"
HEADER_FORM = form("a header's name in lower case, or nothing")
#: Headers that the gateway owns, and so can't be anybody's.
_OWNED = ("x-gateway-", "x-kvsteer-", "x-envoy-")


class IdentitySettings(Settings):
    """Where a request's identity is found: only where a client can't write it."""

    source: Literal["none", "metadata", "certificate", "api_key", "header"] = Field(
        default="none",
        description=(
            "metadata for what Envoy's auth filters found (a JWT's claim), certificate for the subject of the "
            "client's certificate, api_key for the digest of a key, header for one that something before the gateway "
            "sets on every request, none for nobody known"
        ),
    )
    namespace: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9_.-]{0,128}$",
        json_schema_extra=form("letters, digits, _, . and -"),
        description="of dynamic metadata, such as envoy.filters.http.jwt_authn",
    )
    path: list[str] = Field(
        default_factory=list, max_length=8, description="keys from the namespace down to the identity"
    )
    header: str = Field(
        default="authorization",
        pattern=HEADER,
        json_schema_extra=HEADER_FORM,
        description="that carries the key (api_key), or the identity (header)",
    )

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.source == "metadata" and not (self.namespace and self.path):
            raise ValueError("source is metadata, which needs namespace and path; write both")
        if self.source in ("api_key", "header") and not self.header:
            raise ValueError(f"source is {self.source}, which needs header; write its name")
        return self

    @field_validator("header")
    @classmethod
    def _can_be_sent(cls, name: str) -> str:
        if name.startswith(_OWNED):
            raise ValueError("is a header that the gateway removes; name another")
        return name


def check_identity(identity: str) -> str:
    """An identity as it is.

    Raises:
        ValueError: it is blank, which everybody would be of whom nothing is known, or too long to be anybody's.
    """
    if not identity.strip():
        raise ValueError(
            "is blank, as of requests that tell none; write an identity, or use admission.others"
        )
    if len(identity) > LONGEST:
        raise ValueError(
            f"has {len(identity)} characters, of which at most {LONGEST} are looked at; shorten it"
        )
    return identity
