"""One validated settings tree. Unknown keys are refused; messages name file, key and how to mend it."""

import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from extproc.addresses import parse_address
from extproc.errors import ConfigError

_DURATION = re.compile(r"^(\d+(?:\.\d+)?)(ms|s|m|h)?$")
_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}
_SIZE = re.compile(r"^(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB)?$")
_SIZE_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, None: 1}


def _duration(value: object) -> object:
    if isinstance(value, str):
        match = _DURATION.match(value.strip())
        if not match:
            raise ValueError("is not a duration; write for example 500ms, 2s, 10m or 1h")
        return float(match[1]) * _DURATION_UNITS[match[2]]
    return value


def _size(value: object) -> object:
    if isinstance(value, str):
        match = _SIZE.match(value.strip())
        if not match:
            raise ValueError("is not a size; write for example 4KiB, 32MiB or 1GiB")
        return int(float(match[1]) * _SIZE_UNITS[match[2]])
    return value


def _address(value: object) -> object:
    if isinstance(value, str):
        return str(parse_address(value))
    return value


#: Seconds; written as a number or with ms, s, m, h.
Duration = Annotated[float, BeforeValidator(_duration)]
#: Bytes; written as a number or with KiB, MiB, GiB.
Size = Annotated[int, BeforeValidator(_size)]
#: `host:port`, IPv6 in brackets; kept in its canonical form.
Address = Annotated[str, BeforeValidator(_address)]


class Settings(BaseModel):
    """Base of every group of settings: unknown keys refused, values frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class GrpcSettings(Settings):
    """Where Envoy reaches the gateway."""

    address: Address = Field("0.0.0.0:50051", description="where the ext_proc server listens")
    transport: Literal["grpcio"] = Field("grpcio", description="which implementation serves ext_proc")
    drain: Duration = Field(
        30.0, ge=0, le=3600, description="longest wait for open streams when the gateway stops"
    )
    drain_notice: Duration = Field(
        1.5, ge=0, le=60, description="how long health says NOT_SERVING before new streams are refused"
    )


class AdminSettings(Settings):
    """The port for people and Prometheus; keep it from clients."""

    address: Address = Field("127.0.0.1:9095", description="where the admin port listens")
    decisions: int = Field(1000, ge=0, le=100_000, description="decision records kept for /decisions")


class RedisSettings(Settings):
    """The replica registry. Without a URL the gateway works alone."""

    url: str = Field("", description="redis:// or rediss:// URL; empty for none", repr=False)
    prefix: str = Field("kvsteer", pattern=r"^[A-Za-z0-9_.-]+$", description="first part of every key")
    deadline: Duration = Field(0.25, gt=0, le=10, description="longest wait for one Redis call")
    heartbeat: Duration = Field(2.0, ge=0.1, le=60, description="how often the registry is refreshed")


class LimitSettings(Settings):
    """Bounds on what a request may make the gateway hold or do."""

    body: Size = Field(32 * 2**20, ge=1024, le=2**30, description="largest request body; above it 413")
    expanded_body: Size = Field(64 * 2**20, ge=1024, le=2**31, description="largest body once decompressed")
    depth: int = Field(128, ge=4, le=900, description="deepest nesting of JSON that is read for routing")
    parts: int = Field(20_000, ge=16, le=1_000_000, description="most messages and parts read for routing")
    members: int = Field(2048, ge=1, le=100_000, description="most prompts in one batch read for routing")
    streams: int = Field(100_000, ge=1, le=1_000_000, description="most exchanges open at once")


class RequestSettings(Settings):
    """What happens to requests that routing can't place as usual."""

    unreadable: Literal["pass", "reject"] = Field(
        "pass", description="a body that can't be read: sent by load alone, or answered with 400"
    )
    unknown_model: Literal["pass", "reject"] = Field(
        "reject", description="a model no pool declares: answered with 404, or sent to the first pool"
    )
    replica_header: str = Field(
        "x-kvsteer-replica",
        pattern=r"^(|[a-z0-9][a-z0-9-]*)$",
        description="response header that names the replica that answered; empty for none",
    )
    fallbacks: int = Field(2, ge=0, le=4, description="further replicas named after the first, for retries")


class ReplicaSettings(Settings):
    """One engine endpoint."""

    address: Address = Field(description="ip:port of the engine; Envoy needs the IP literal")
    metrics: str = Field("", description="URL of its metrics; empty for http://ADDRESS/metrics")


def _replica(value: object) -> object:
    return {"address": value} if isinstance(value, str) else value


Replica = Annotated[ReplicaSettings, BeforeValidator(_replica)]


class MetricsSettings(Settings):
    """How engines are asked for their state."""

    enabled: bool = Field(True, description="whether engines are scraped at all")
    path: str = Field("/metrics", pattern=r"^/", description="path of the metrics on each replica")
    interval: Duration = Field(0.5, ge=0.1, le=10, description="time between two scrapes of a replica")
    timeout: Duration = Field(1.0, ge=0.05, le=30, description="longest wait for one scrape")
    stale_after: Duration = Field(15.0, ge=1, le=600, description="age at which a replica is no candidate")
    token: str = Field("", description="bearer token for secured metrics", repr=False)
    token_file: str = Field("", description="file that holds the bearer token")
    ca_file: str = Field("", description="CA certificates for https metrics")


class HeadroomSettings(Settings):
    """Weights of the headroom score (0..1) and its limits."""

    kv_weight: float = Field(0.4, ge=0, le=1, description="weight of free KV blocks")
    running_weight: float = Field(0.3, ge=0, le=1, description="weight of free running slots")
    waiting_weight: float = Field(0.3, ge=0, le=1, description="weight of an empty queue")
    window: int = Field(5, ge=1, le=100, description="samples the score is smoothed over")
    forecast: Duration = Field(3.0, ge=0, le=60, description="how far falling free KV is extrapolated")
    floor: float = Field(0.15, ge=0, le=1, description="score below which a replica counts as full")
    kv_ceiling: float = Field(0.97, gt=0, le=1, description="KV use above which a replica gets nothing new")

    @model_validator(mode="after")
    def _some_weight(self) -> Self:
        if self.kv_weight + self.running_weight + self.waiting_weight <= 0:
            raise ValueError("at least one of kv_weight, running_weight, waiting_weight must be above 0")
        return self


class CapacitySettings(Settings):
    """What a replica can do, until measured. A metric that tells the same thing wins over these."""

    prefill_speed: float = Field(8000.0, gt=0, description="prompt tokens a second one replica computes")
    decode_speed: float = Field(2000.0, gt=0, description="output tokens a second of a full replica")
    max_running: int = Field(256, ge=1, description="sequences a replica computes at once")
    kv_tokens: int = Field(500_000, ge=1024, description="KV cache of a replica, in tokens")
    output_tokens: int = Field(256, ge=1, description="output length assumed when a request names none")


class IndexSettings(Settings):
    """The prefix index of a pool."""

    ttl: Duration = Field(1800.0, ge=10, le=86400, description="age at which an unused entry is dropped")
    entries: int = Field(
        4_000_000, ge=1000, le=100_000_000, description="most entries a pool keeps, over all replicas"
    )


class PolicySettings(Settings):
    """Which policy chooses, and its own settings (docs/policies.md)."""

    name: str = Field("charged_cost", description="the policy's name")
    settings: dict[str, float] = Field(default_factory=dict, description="the policy's own settings")


def _policy(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


class PoolSettings(Settings):
    """Replicas that can answer for the same models."""

    name: str = Field("default", pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$", description="the pool's name")
    models: list[str] = Field(
        default_factory=list, description="models the pool answers for; empty for every model"
    )
    engine: Literal["auto", "vllm", "sglang", "tgi", "trtllm", "triton", "llamacpp"] = Field(
        "auto", description="whose metric names are read"
    )
    replicas: list[Replica] = Field(min_length=1, description="the engine endpoints")
    policy: Annotated[PolicySettings, BeforeValidator(_policy)] = Field(
        default_factory=PolicySettings, description="how a replica is chosen"
    )
    metrics: MetricsSettings = Field(default_factory=MetricsSettings)
    headroom: HeadroomSettings = Field(default_factory=HeadroomSettings)
    capacity: CapacitySettings = Field(default_factory=CapacitySettings)
    index: IndexSettings = Field(default_factory=IndexSettings)

    @field_validator("replicas")
    @classmethod
    def _distinct(cls, replicas: list[ReplicaSettings]) -> list[ReplicaSettings]:
        seen: set[str] = set()
        for replica in replicas:
            if replica.address in seen:
                raise ValueError(f"names {replica.address} twice; remove one")
            seen.add(replica.address)
        return replicas

    @field_validator("policy")
    @classmethod
    def _known(cls, policy: PolicySettings) -> PolicySettings:
        from extproc.core.policies import check_policy  # the registry imports no settings

        check_policy(policy.name, policy.settings)
        return policy


class EnvoySettings(Settings):
    """What `kvsteer envoy-config` writes into Envoy's bootstrap."""

    listen: Address = Field("0.0.0.0:8080", description="where clients reach Envoy")
    admin: Address = Field("127.0.0.1:9901", description="Envoy's admin port")
    gateways: list[Address] = Field(
        default_factory=list, description="gateways Envoy may ask; empty for this one on loopback"
    )
    eds_dir: str = Field("", description="folder of the EDS files; empty writes replicas into the bootstrap")
    fallback: Literal["least_request", "round_robin", "random"] = Field(
        "least_request", description="Envoy's own balancing while no gateway answers"
    )
    message_timeout: Duration = Field(1.0, ge=0.05, le=60, description="longest wait for the gateway")
    idle_timeout: Duration = Field(600.0, ge=1, le=86400, description="longest silence within a response")
    connect_timeout: Duration = Field(1.0, ge=0.05, le=60, description="longest wait for a replica's connection")
    retries: int = Field(2, ge=0, le=5, description="further replicas Envoy tries before output has begun")
    concurrent: int = Field(100_000, ge=1024, description="circuit breaker limit on requests and streams")


class LogSettings(Settings):
    """What is written to standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level written")
    format: Literal["json", "text"] = Field("json", description="one JSON object a line, or text")
    requests: bool = Field(False, description="one line for every request")


class GatewaySettings(Settings):
    """The whole tree, as `kvsteer serve -c FILE` reads it."""

    gateway_id: str = Field(
        "", pattern=r"^[A-Za-z0-9_.-]{0,64}$", description="name of this gateway; empty makes one"
    )
    grpc: GrpcSettings = Field(default_factory=GrpcSettings)
    admin: AdminSettings = Field(default_factory=AdminSettings)
    redis: RedisSettings = Field(default_factory=RedisSettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    requests: RequestSettings = Field(default_factory=RequestSettings)
    pools: list[PoolSettings] = Field(min_length=1, description="who can answer what")
    envoy: EnvoySettings = Field(default_factory=EnvoySettings)
    log: LogSettings = Field(default_factory=LogSettings)

    @model_validator(mode="after")
    def _pools_are_apart(self) -> Self:
        names: set[str] = set()
        models: dict[str, str] = {}
        for pool in self.pools:
            if pool.name in names:
                raise ValueError(f"pools: the name {pool.name!r} is used twice; rename one")
            names.add(pool.name)
            for model in pool.models or ["*"]:
                if model in models:
                    what = "every model" if model == "*" else f"model {model!r}"
                    raise ValueError(f"pools: {what} is claimed by {models[model]!r} and {pool.name!r}")
                models[model] = pool.name
        return self


def load(path: str | Path) -> GatewaySettings:
    """Read and check a configuration file.

    Raises:
        ConfigError: the file can't be read, is not YAML, or has a fault; one line for each fault.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't be read ({error}); give a YAML file's path") from None
    return parse(text, str(path))


def parse(text: str, source: str) -> GatewaySettings:
    """Check a configuration given as YAML text; `source` is named in errors.

    Raises:
        ConfigError: as `load`.
    """
    try:
        tree = yaml.load(text, Loader=_UniqueKeyLoader)  # noqa: S506 - a SafeLoader underneath
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: is not YAML: {_yaml_fault(error)}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{source}: holds no settings; start with `pools:`")
    try:
        return GatewaySettings.model_validate(tree)
    except ValidationError as error:
        raise ConfigError("\n".join(_faults(error, source))) from None


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML that refuses a key given twice in one mapping, where plain YAML lets the last win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = str(key_node.value)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _yaml_fault(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "can't be parsed"
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else str(problem)


def _faults(error: ValidationError, source: str) -> Iterator[str]:
    for fault in error.errors():
        where = ".".join(str(part) for part in fault["loc"]) or "(top level)"
        yield f"{source}: {where}: {_explain(fault)}"


def _explain(fault: Any) -> str:
    kind, message = fault["type"], fault["msg"]
    if kind == "extra_forbidden":
        return "is not a setting" + _suggestion(fault["loc"])
    if kind == "missing":
        return "is missing; it has no default"
    return str(message).removeprefix("Value error, ")


def _suggestion(loc: tuple[str | int, ...]) -> str:
    model = _model_at(GatewaySettings, loc[:-1])
    if model is None:
        return "; remove it"
    near = difflib.get_close_matches(str(loc[-1]), model.model_fields, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known here: {', '.join(sorted(model.model_fields))}"


def _model_at(model: type[BaseModel], loc: tuple[str | int, ...]) -> type[BaseModel] | None:
    for part in loc:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        inner = next(_models_in(field.annotation), None) if field else None
        if inner is None:
            return None
        model = inner
    return model


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)
