"""Settings of the shared state in Redis: where it is, how to log in, and how long to wait for it."""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from extproc.quantities import Duration, Whole
from extproc.settings.base import Settings, form
from extproc.settings.redis_url import RedisPlace, read_url

#: How a password is named that stands in the environment.
_IN_ENVIRONMENT = "env:"


class RedisSettings(Settings):
    """The state that gateways share (docs/redis.md). Without a URL the gateway works alone."""

    url: str = Field(
        default="",
        description=(
            "redis://HOST:PORT/DATABASE, redis+sentinel://HOST:PORT,HOST:PORT/MASTER/DATABASE, "
            "redis+cluster://HOST:PORT,HOST:PORT, each with rediss for TLS, or unix://PATH; empty for none"
        ),
        repr=False,
    )
    username: str = Field(default="", description="the ACL user; empty for the URL's, or the default user")
    password: str = Field(
        default="",
        pattern=r"^(|env:[A-Za-z_][A-Za-z0-9_]*)$",
        json_schema_extra=form("env:NAME, or nothing"),
        description="`env:NAME`: the environment variable that holds the password",
        repr=False,
    )
    password_file: str = Field(
        default="", description="file that holds the password; read at each connection, so that it can change"
    )
    sentinel_username: str = Field(default="", description="the ACL user for the Sentinels themselves")
    sentinel_password_file: str = Field(
        default="", description="file that holds the password for the Sentinels themselves"
    )
    ca_file: str = Field(
        default="", description="CA certificates in PEM for rediss; empty for the system's own"
    )
    cert_file: str = Field(
        default="", description="the gateway's certificate in PEM, where Redis asks for it"
    )
    key_file: str = Field(default="", description="the key of cert_file in PEM, without a passphrase")
    verify_host: bool = Field(
        default=True, description="whether Redis' certificate must name the host that was connected to"
    )
    protocol: Literal[2, 3] = Field(
        default=3, description="RESP version; 2 for proxies and servers that know no HELLO"
    )
    prefix: str = Field(
        default="kvsteer",
        pattern=r"^[A-Za-z0-9_.-]{1,64}$",
        json_schema_extra=form("letters, digits, _, . and -, 1 to 64 of them"),
        description="first part of every key",
    )
    deadline: Duration = Field(default=0.25, gt=0, le=10, description="longest wait for one Redis call")
    connect_timeout: Duration = Field(
        default=0.5, gt=0, le=10, description="longest wait to connect and log in, beside the deadline"
    )
    breaker_failures: Whole = Field(
        default=3,
        ge=1,
        le=1000,
        description="failed calls in a row after which calls fail at once for a while",
    )
    breaker_rest: Duration = Field(
        default=1.0,
        gt=0,
        le=60,
        description="longest time in which calls fail at once before one tries again",
    )
    share: bool = Field(
        default=True,
        description="whether gateways tell each other what they place and what runs, and share scraping",
    )
    heartbeat: Duration = Field(default=2.0, ge=0.1, le=60, description="how often the registry is refreshed")

    @field_validator("url")
    @classmethod
    def _can_be_read(cls, url: str) -> str:
        if url:
            read_url(url)
        return url

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.password and self.password_file:
            raise ValueError("password and password_file are both given; remove one")
        if bool(self.cert_file) != bool(self.key_file):
            raise ValueError("cert_file and key_file go together; give both, or none")
        if (self.ca_file or self.cert_file) and self.url and not self.place.tls:
            raise ValueError("ca_file and cert_file need TLS; write rediss instead of redis in url")
        return self

    @property
    def place(self) -> RedisPlace:
        """The URL taken apart. Raises ValueError without one."""
        return read_url(self.url)

    @property
    def password_variable(self) -> str:
        """The environment variable that holds the password; "" for none."""
        return self.password.removeprefix(_IN_ENVIRONMENT)

    @property
    def key_prefix(self) -> str:
        """First part of every key as it stands in Redis.

        In a Cluster it is a hash tag (cluster specification, "Hash tags"), so that every key is in one slot:
        transactions and scripts over several keys work there as elsewhere.
        """
        if self.url and self.place.kind == "cluster":
            return f"{{{self.prefix}}}"
        return self.prefix
