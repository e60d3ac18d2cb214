"""Settings of a simulation as they are written on the command line."""

import re
from dataclasses import fields
from pathlib import Path

from extproc.core.policies import POLICIES
from extproc.sim.compare import LATE
from extproc.sim.engine import EngineSettings
from extproc.sim.generators import generated
from extproc.sim.plan import ACTIONS, JOIN, LEAVE, FleetEvent
from extproc.sim.summary import Slo
from extproc.sim.traces import read_trace
from extproc.sim.workload import Workload

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_SHORT = {"kv": "kv_tokens", "prefill": "prefill_speed", "doubling": "prefill_doubling"}


def seconds(text: str) -> float:
    """A duration: "20ms", "1.5s", "2m", "1h"; a bare number is seconds.

    Raises:
        ValueError: it is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|)", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no duration; write for example 20ms, 1.5s or 2m")
    return float(match[1]) * _UNITS[match[2]]


def pairs(text: str) -> dict[str, str]:
    """ "a=1,b=2" -> {"a": "1", "b": "2"}."""
    found = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"{part!r} must be written name=value")
        found[key.strip()] = value.strip()
    return found


def numbers(text: str) -> dict[str, float]:
    """ "a=1,b=2.5" -> {"a": 1.0, "b": 2.5}."""
    found = {}
    for key, value in pairs(text).items():
        try:
            found[key] = float(value)
        except ValueError:
            raise ValueError(f"{key}={value}: the value must be a number") from None
    return found


def slo(text: str) -> Slo:
    """ "ttft=2s,tpot=50ms" -> Slo."""
    given = {key: seconds(value) for key, value in pairs(text).items()}
    unknown = set(given) - {"ttft", "tpot"}
    if unknown:
        raise ValueError(f"an SLO has ttft and tpot, not {sorted(unknown)[0]!r}")
    return Slo(**given)


def fleet_event(text: str) -> FleetEvent:
    """ "600s:restart:r0:30s" -> FleetEvent; the last part is seconds, or for `slow` the speed factor."""
    parts = text.split(":")
    if not 3 <= len(parts) <= 4:
        raise ValueError(f"{text!r}: write time:action:replica[:value], for example 10m:restart:r0:30s")
    at, action, replica = parts[:3]
    if action not in ACTIONS:
        raise ValueError(f"{text!r}: there is no {action!r}; known: {', '.join(ACTIONS)}")
    if len(parts) == 3 and action not in ("fail", JOIN, LEAVE):
        raise ValueError(f"{text!r}: {action} needs a value")
    return FleetEvent(seconds(at), action, replica, seconds(parts[3]) if len(parts) == 4 else 0.0)


def replica_class(text: str) -> tuple[str, int, EngineSettings]:
    """ "big:count=4,speed=2,kv=6000000" -> name, count and settings of one class of replicas."""
    name, _, rest = text.partition(":")
    given = numbers(rest)
    count = int(given.pop("count", 1))
    if count < 1 or not name:
        raise ValueError(f"{text!r}: write name:count=N,setting=value,...")
    return name, count, engine_settings(given)


def engine_settings(given: dict[str, float]) -> EngineSettings:
    """Engine settings by name; `kv`, `prefill` and `doubling` are short for the long ones."""
    known = {field.name: field.type for field in fields(EngineSettings)}
    chosen: dict[str, float | int] = {}
    for key, value in given.items():
        name = _SHORT.get(key, key)
        if name not in known:
            raise ValueError(f"a replica has no setting {key!r}; it has: {', '.join(sorted(known))}")
        chosen[name] = int(value) if known[name] in (int, "int") else value
    return EngineSettings(**chosen)  # type: ignore[arg-type]


def workload(trace: Path | None, generate: str | None) -> Workload:
    """A trace file, or generated traffic ("chat:rate=6"): one of them must be named."""
    if (trace is None) == (generate is None):
        raise ValueError(
            "name either a trace file or --generate, for example --generate chat:rate=6,requests=3000"
        )
    if trace is not None:
        return read_trace(trace)
    assert generate is not None
    name, _, rest = generate.partition(":")
    return generated(name, numbers(rest))


def policies(text: str) -> list[str]:
    """Names of policies with commas, each once. Raises ValueError for one that does not exist, or none."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name.removesuffix(LATE) not in POLICIES:
            raise ValueError(f"there is no policy {name!r}; known: {', '.join(sorted(POLICIES))}")
    if not names:
        raise ValueError("--policies names none")
    return list(dict.fromkeys(names))


def seeds(text: str) -> list[int]:
    """Numbers with commas. Raises ValueError when it is none."""
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise ValueError(f"--seeds {text!r}: write numbers with commas, for example 0,1,2") from None


def policy_settings(sets: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """("charged_cost.gain=4", ..) -> {"charged_cost": {"gain": 4.0}}. Raises ValueError for another form."""
    found: dict[str, dict[str, float]] = {}
    for text in sets:
        for key, value in numbers(text).items():
            policy, dot, name = key.partition(".")
            if not dot:
                raise ValueError(f"--set {text}: write POLICY.SETTING=VALUE, for example charged_cost.gain=4")
            found.setdefault(policy, {})[name] = value
    return found
