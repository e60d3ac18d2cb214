"""Settings of discovery: where a pool's replicas are found beside the list in the file."""

from collections.abc import Callable
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from extproc.errors import ConfigError
from extproc.quantities import Duration, Whole, show_duration
from extproc.settings.base import Settings, form

Family = Literal["any", "ipv4", "ipv6"]


def _checked(check: Callable[[], object]) -> None:
    """Turn what a source refuses into a fault of its setting."""
    try:
        check()
    except ConfigError as error:
        raise ValueError(str(error).partition(": ")[2]) from None


def _named(name: str) -> str:
    """A name of Kubernetes, or nothing. Raises ValueError when it is none."""
    from extproc.io.discovery.selectors import check_name

    if name:
        _checked(lambda: check_name(name, "the name"))
    return name


class DnsDiscoverySettings(Settings):
    """Replicas behind a DNS name."""

    host: str = Field(description="the name to look up")
    port: Whole = Field(default=0, ge=0, le=65535, description="port of the engines; 0 takes SRV records")
    family: Family = Field(default="any", description="which addresses count")
    server: str = Field(default="", description="ip:port of the DNS server; empty for the system's")
    deadline: Duration = Field(default=2.0, ge=0.1, le=30, description="longest wait for one lookup")
    least: Duration = Field(default=1.0, ge=0.1, le=3600, description="shortest time between two looks")
    most: Duration = Field(default=30.0, ge=0.1, le=3600, description="longest time between two looks")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        from extproc.io.discovery.dns import DnsSource  # which imports the settings of Redis

        if self.most < self.least:
            raise ValueError(f"most ({show_duration(self.most)}) is below least; raise it")
        _checked(lambda: DnsSource(self.host, port=self.port or None, server=self.server))
        return self


class FileDiscoverySettings(Settings):
    """Replicas in a file that is reloaded while it changes."""

    path: str = Field(
        pattern=r"^/", json_schema_extra=form("an absolute path"), description="path of the file"
    )
    cluster: str = Field(default="", description="which cluster of an EDS file with several")


class RedisDiscoverySettings(Settings):
    """Replicas that register themselves in Redis (redis.url)."""

    enabled: bool = Field(default=False, description="whether registrations are read")


class ApiServerSettings(Settings):
    """How the API server of a Kubernetes cluster is reached, and which addresses of pods count."""

    namespace: str = Field(default="", description="namespace; empty for the gateway's own")
    family: Family = Field(default="any", description="which addresses count")
    api: str = Field(default="", description="URL of the API server; empty for the pod's own")
    token_file: str = Field(default="", description="file of the bearer token; with api only")
    ca_file: str = Field(default="", description="file of the CA's certificates; with api only")
    deadline: Duration = Field(default=10.0, ge=0.5, le=60, description="longest wait for an answer")

    @field_validator("namespace")
    @classmethod
    def _is_namespace(cls, name: str) -> str:
        return _named(name)

    @model_validator(mode="after")
    def _one_server(self) -> Self:
        if self.api and not self.namespace:
            raise ValueError("has api but no namespace; set namespace")
        if not self.api and (self.token_file or self.ca_file):
            raise ValueError("has token_file or ca_file without api; set api, or remove them")
        return self


class KubernetesDiscoverySettings(ApiServerSettings):
    """Replicas of a Kubernetes cluster: a service's, or pods by label."""

    service: str = Field(default="", description="name of the service")
    selector: str = Field(default="", description="label selector of the pods, instead of a service")
    port: str = Field(default="", description="name or number of the port; empty where there is only one")

    @field_validator("selector")
    @classmethod
    def _is_selector(cls, selector: str) -> str:
        from extproc.io.discovery.selectors import check_selector

        if selector:
            _checked(lambda: check_selector(selector))
        return selector

    @field_validator("service")
    @classmethod
    def _is_service(cls, name: str) -> str:
        return _named(name)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if bool(self.service) == bool(self.selector):
            raise ValueError("needs either service or selector; give one of them")
        return self


class InferencePoolDiscoverySettings(ApiServerSettings):
    """Replicas of an InferencePool (v1): the pods of its selector, each on every target port."""

    name: str = Field(description="name of the InferencePool")

    @field_validator("name")
    @classmethod
    def _is_pool(cls, name: str) -> str:
        from extproc.io.discovery.selectors import check_subdomain

        _checked(lambda: check_subdomain(name, "the name"))
        return name


class DiscoverySettings(Settings):
    """Where replicas are found beside `replicas` (docs/discovery.md)."""

    grace: Duration = Field(
        default=30.0, ge=0, le=3600, description="how long an empty answer must stand to be believed"
    )
    limit: Whole = Field(default=10_000, ge=1, le=100_000, description="most replicas of the pool")
    dns: DnsDiscoverySettings | None = Field(default=None, description="a DNS name")
    file: FileDiscoverySettings | None = Field(default=None, description="a file")
    redis: RedisDiscoverySettings = Field(default_factory=RedisDiscoverySettings)
    kubernetes: KubernetesDiscoverySettings | None = Field(default=None, description="a cluster")
    inference_pool: InferencePoolDiscoverySettings | None = Field(
        default=None, description="an InferencePool of a cluster"
    )

    @property
    def beside_envoy(self) -> bool:
        """Whether there is a source that no mesh follows by itself, as it does pods."""
        return bool(self.dns or self.file or self.redis.enabled)

    @property
    def any(self) -> bool:
        """Whether there is any source beside the list."""
        return self.beside_envoy or bool(self.kubernetes or self.inference_pool)
