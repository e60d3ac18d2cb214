"""The whole settings tree."""

from typing import Self

from pydantic import Field, field_validator, model_validator

from extproc.addresses import HostPort, parse_address
from extproc.core.routes import faults
from extproc.quantities import Whole
from extproc.settings.admission import AdmissionSettings
from extproc.settings.admitting import check_degrades, check_waits_end
from extproc.settings.base import FaultAtError, Settings, form
from extproc.settings.envoy import EnvoySettings
from extproc.settings.estate import check_adapters, check_aliases, check_mapped, check_mirrors
from extproc.settings.feedback import FeedbackSettings
from extproc.settings.grpc import GrpcSettings
from extproc.settings.matching import CanarySettings
from extproc.settings.pools import PoolSettings
from extproc.settings.redis import RedisSettings
from extproc.settings.server import (
    AdminSettings,
    LimitSettings,
    LogSettings,
    ReadingSettings,
    RequestSettings,
)
from extproc.settings.tracing import TracingSettings
from extproc.workers import check_workers

#: Hosts that stand for every address of the machine.
_ANY = ("0.0.0.0", "::")  # noqa: S104 - compared with, not listened on


class GatewaySettings(Settings):
    """The whole tree, as `kvsteer serve -c FILE` reads it."""

    gateway_id: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9_.-]{0,64}$",
        json_schema_extra=form("letters, digits, _, . and -, at most 64 of them"),
        description="name of this gateway; empty makes one",
    )
    workers: Whole = Field(
        default=1,
        ge=1,
        le=64,
        description="gateways `serve` runs on this machine, each on the next port of `grpc` and `admin`",
    )
    grpc: GrpcSettings = Field(default_factory=GrpcSettings)
    admin: AdminSettings = Field(default_factory=AdminSettings)
    redis: RedisSettings = Field(default_factory=RedisSettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    reading: ReadingSettings = Field(default_factory=ReadingSettings)
    requests: RequestSettings = Field(default_factory=RequestSettings)
    pools: list[PoolSettings] = Field(min_length=1, description="who can answer what")
    aliases: dict[str, str] = Field(
        default_factory=dict,
        description="other names of models -> the model, which requests then name when they go on",
    )
    canary: CanarySettings = Field(default_factory=CanarySettings)
    feedback: FeedbackSettings = Field(default_factory=FeedbackSettings)
    admission: AdmissionSettings = Field(default_factory=AdmissionSettings)
    envoy: EnvoySettings = Field(default_factory=EnvoySettings)
    log: LogSettings = Field(default_factory=LogSettings)
    tracing: TracingSettings = Field(default_factory=TracingSettings)

    @field_validator("pools")
    @classmethod
    def _pools_are_apart(cls, pools: list[PoolSettings]) -> list[PoolSettings]:
        names = [pool.name for pool in pools]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two are named {name!r}; rename one")
        if wrong := faults([pool.route for pool in pools]):
            raise ValueError(wrong[0])
        return pools

    @model_validator(mode="after")
    def _every_worker_has_its_ports(self) -> Self:
        if wrong := check_workers(self):
            raise FaultAtError(("workers",), wrong)
        if self.workers > 1 and self.grpc.socket:
            raise FaultAtError(
                ("grpc", "socket"), "is one path for several workers; leave it empty, or set workers to 1"
            )
        return self

    @model_validator(mode="after")
    def _one_process_listens_once_on_a_port(self) -> Self:
        pairs = (
            ("grpc.address", self.grpc.address, "admin.address", self.admin.address),
            ("envoy.listen", self.envoy.listen, "envoy.admin", self.envoy.admin),
        )
        for name, one, other_name, other in pairs:
            if _collide(parse_address(one), parse_address(other)):
                raise FaultAtError(
                    tuple(other_name.split(".")),
                    f"is {other}, where {name} listens already; give it a port of its own",
                )
        return self

    @property
    def lists_models(self) -> bool:
        """Whether `GET /v1/models` is answered by the gateway."""
        many = len(self.pools) > 1 or bool(self.aliases) or any(pool.adapters.loads for pool in self.pools)
        return self.requests.models == "answer" or (self.requests.models == "auto" and many)

    @field_validator("aliases")
    @classmethod
    def _are_names(cls, aliases: dict[str, str]) -> dict[str, str]:
        check_mapped(aliases)
        return aliases

    @model_validator(mode="after")
    def _mirrors_lead_to_other_pools(self) -> Self:
        check_mirrors(self.pools)
        return self

    @model_validator(mode="after")
    def _aliases_end(self) -> Self:
        check_aliases(self.aliases, self.pools)
        return self

    @model_validator(mode="after")
    def _adapters_are_apart(self) -> Self:
        check_adapters(self.aliases, self.pools)
        return self

    @property
    def reads_beside(self) -> bool:
        """Whether large bodies are read in a process of their own."""
        return self.reading.above < self.limits.body

    @property
    def spares_log(self) -> bool:
        """Whether Envoy's access log leaves out what the ends of responses told: where one gateway alone hears it.

        Others learn of a gateway's requests by the log alone, and a name may stand for several gateways.
        """
        if not self.envoy.access_log or self.feedback.source != "trailers" or self.workers > 1:
            return False
        known = self.envoy.gateways
        return len(known) < 2 and all(parse_address(address).is_ip for address in known)

    @property
    def longest_wait(self) -> float:
        """Seconds for which a request may wait here, for admission and then for a replica; 0 where none does.

        What is waited for with a replica is its turn there, or an adapter; no pool has both.
        """
        rooms = [pool.late_binding.longest_wait for pool in self.pools if pool.late_binding.enabled]
        rooms += [pool.adapters.loading.wait for pool in self.pools if pool.adapters.loads]
        return max(rooms, default=0.0) + (self.admission.queue.wait if self.admission.is_on else 0.0)

    @property
    def longest_answer(self) -> float:
        """Seconds until a request is answered at the latest: read, then let go; 0 where none of both takes time."""
        return self.longest_wait + (self.reading.patience if self.reads_beside else 0.0)

    @model_validator(mode="after")
    def _degraded_requests_have_somewhere_to_go(self) -> Self:
        check_degrades(self.admission, self.pools, self.aliases)
        return self

    @model_validator(mode="after")
    def _waits_end(self) -> Self:
        check_waits_end(self.admission, self.pools)
        return self

    @model_validator(mode="after")
    def _feedback_can_come(self) -> Self:
        if self.feedback.source == "access_log" and not self.envoy.access_log:
            raise FaultAtError(
                ("feedback", "source"),
                "is access_log but envoy.access_log is false, so nothing would come; set that to true",
            )
        blind = self.feedback.source == "off" and not self.envoy.access_log
        if blind and self.canary.guard and any(pool.version for pool in self.pools):
            raise ValueError(
                "canary.guard is on but nothing tells how requests end, so it would see no errors of a version; set "
                "feedback.source to trailers or envoy.access_log to true, or canary.guard to false"
            )
        return self

    @model_validator(mode="after")
    def _answers_come_by(self) -> Self:
        for number, pool in enumerate(self.pools):
            if pool.answer_model == "asked" and self.feedback.source != "body":
                raise FaultAtError(
                    ("pools", number, "answer_model"),
                    "is asked, but no answer's body comes to the gateway; set feedback.source to body, or this to "
                    "engine",
                )
        return self

    @model_validator(mode="after")
    def _one_address_where_one_is_read(self) -> Self:
        if self.envoy.steering == "original_dst" and self.requests.fallbacks:
            raise FaultAtError(
                ("envoy", "steering"),
                "is original_dst, for which a list of replicas is no address and every request a 503; "
                "set requests.fallbacks to 0",
            )
        return self

    @model_validator(mode="after")
    def _bodies_go_once(self) -> Self:
        """Envoy knows these limits only within a retry policy, even where nothing is tried again."""
        for number, pool in enumerate(self.pools):
            if self.envoy.request_body_mode == "full_duplex" and (
                pool.timeouts.first_byte or pool.timeouts.silence
            ):
                raise FaultAtError(
                    ("pools", number, "timeouts"),
                    "first_byte and silence don't go with envoy.request_body_mode: full_duplex, as Envoy 1.40 would "
                    "send bodies that end by trailers twice; remove them and use timeouts.total and "
                    "envoy.idle_timeout, or set `request_body_mode: buffered`",
                )
        return self

    @model_validator(mode="after")
    def _discovery_has_what_it_needs(self) -> Self:
        for number, pool in enumerate(self.pools):
            at = ("pools", number, "discovery")
            if pool.discovery.beside_envoy and not self.envoy.eds_dir:
                raise FaultAtError(at, "needs envoy.eds_dir, or Envoy never hears of what is found; set it")
            if pool.discovery.any and self.envoy.steering == "original_dst" and not self.envoy.reachable:
                raise FaultAtError(
                    at,
                    "with envoy.steering: original_dst needs envoy.reachable, or Envoy would refuse what is found; "
                    "name the replicas' networks there, such as 10.0.0.0/8:8000",
                )
            if pool.discovery.redis.enabled and not self.redis.url:
                raise FaultAtError((*at, "redis"), "needs redis.url; set it")
        return self


def _collide(one: HostPort, other: HostPort) -> bool:
    """Whether one process can't listen on both."""
    same_host = one.host == other.host or one.host in _ANY or other.host in _ANY
    return one.port == other.port != 0 and same_host
