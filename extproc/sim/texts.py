"""Settings of a simulation as they are written on the command line."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, TypeVar

from extproc.core.policies import POLICIES, check_policy
from extproc.core.waiting import RoomSettings
from extproc.quantities import show_duration
from extproc.sim.bounds import DAY, MOST_SECONDS, shown, whole, within
from extproc.sim.compare import LATE
from extproc.sim.engine import EngineSettings
from extproc.sim.generators import generated
from extproc.sim.plan import ACTIONS, MOST_REPLICAS, RESTART, SLOW, FleetEvent
from extproc.sim.summary import Slo
from extproc.sim.traces import read_trace
from extproc.sim.workload import Workload, WorkloadError

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY, "": 1.0}
_SHORT = {"kv": "kv_tokens", "prefill": "prefill_speed", "doubling": "prefill_doubling"}
#: Most of each setting of late binding; a whole number where only whole ones will do.
_ROOM_MOST: Final[dict[str, float]] = {
    "theta": 3600.0, "alpha": 1000.0, "cap": DAY, "most": 1000.0, "dry": 1000.0, "patience": 3600.0,
    "requests": 10**7, "tokens": 10**12,
}  # fmt: skip
_MOST_SEEDS: Final = 100

T = TypeVar("T")


def option(name: str, read: Callable[[str], T], text: str) -> T:
    """What `read` makes of an option's text; a fault is told with the option and the text.

    Raises:
        ValueError: `read` refused it.
    """
    try:
        return read(text)
    except (ValueError, WorkloadError) as error:
        raise ValueError(f"{name} {shown(text)}: {error}") from None


def seconds(text: str, low: float = 0.0, high: float = DAY) -> float:
    """A duration: "20ms", "1.5s", "2m", "1h", "1d"; a bare number is seconds.

    Raises:
        ValueError: it is none, or not within low..high seconds.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|)", text.strip())
    if match is None:
        raise ValueError(f"{shown(text)} is no duration; write for example 20ms, 1.5s, 2m, 1h or 1d")
    found = float(match[1]) * _UNITS[match[2]]
    if not low <= found <= high:
        raise ValueError(f"a duration here is from {show_duration(low)} to {show_duration(high)}")
    return found


def pairs(text: str) -> dict[str, str]:
    """ "a=1,b=2" -> {"a": "1", "b": "2"}. Raises ValueError for another form, and for a name that comes twice."""
    found: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not key:
            raise ValueError(f"{shown(part)} must be written name=value")
        if key in found:
            raise ValueError(f"{shown(key)} is given twice")
        found[key] = value
    return found


def numbers(text: str) -> dict[str, float]:
    """ "a=1,b=2.5" -> {"a": 1.0, "b": 2.5}. Raises ValueError also for NaN; what infinity means is the caller's."""
    return {key: number(value, key) for key, value in pairs(text).items()}


def number(text: str, what: str) -> float:
    """A number, possibly infinite. Raises ValueError when it is none."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if math.isnan(found):
        raise ValueError(f"{what}={shown(text)}: the value must be a number")
    return found


def slo(text: str) -> Slo:
    """ "ttft=2s,tpot=50ms" -> Slo."""
    given = {key: seconds(value) for key, value in pairs(text).items()}
    unknown = set(given) - {"ttft", "tpot"}
    if unknown:
        raise ValueError(f"an SLO has ttft and tpot, not {shown(min(unknown))}")
    if not given:
        raise ValueError("write for example ttft=2s,tpot=50ms")
    return Slo(**given)


def fleet_event(text: str) -> FleetEvent:
    """ "600s:restart:r0:30s" -> FleetEvent; the last part is a duration for `restart`, a factor for `slow`."""
    parts = [part.strip() for part in text.split(":")]
    if not 3 <= len(parts) <= 4:
        raise ValueError(f"{shown(text)}: write time:action:replica[:value], for example 10m:restart:r0:30s")
    at, action, replica = parts[:3]
    if action not in ACTIONS:
        raise ValueError(f"there is no {shown(action)}; known: {', '.join(ACTIONS)}")
    takes_value = action in (RESTART, SLOW)
    if takes_value != (len(parts) == 4):
        raise ValueError(f"{action} needs a value" if takes_value else f"{action} takes no value")
    value = 0.0
    if takes_value:
        value = seconds(parts[3], high=MOST_SECONDS) if action == RESTART else number(parts[3], action)
    return FleetEvent(seconds(at, high=MOST_SECONDS), action, replica_name(replica), value)


def replica_name(text: str) -> str:
    """A replica's or class's name: letters, digits, "_", "-" and ".". Raises ValueError for another."""
    if re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", text) is None:
        raise ValueError(f"{shown(text)} is no name; write 1 to 64 letters, digits, '_', '-' or '.'")
    return text


def replica_class(text: str) -> tuple[str, int, EngineSettings]:
    """ "big:count=4,speed=2,kv=6000000" -> name, count and settings of one class of replicas."""
    name, _, rest = text.partition(":")
    given = numbers(rest)
    count = given.pop("count", 1.0)
    if count < 1 or not name:
        raise ValueError(f"{shown(text)}: write name:count=N,setting=value,...")
    return replica_name(name), whole("count", count, 1, MOST_REPLICAS), engine_settings(given)


def engine_settings(given: dict[str, float]) -> EngineSettings:
    """Engine settings by name; `kv`, `prefill` and `doubling` are short for the long ones."""
    known = {field.name: field.type for field in fields(EngineSettings)}
    chosen: dict[str, float | int] = {}
    for key, value in given.items():
        name = _SHORT.get(key, key)
        if name not in known:
            raise ValueError(f"a replica has no setting {shown(key)}; it has: {', '.join(sorted(known))}")
        if name in chosen:
            raise ValueError(f"{name} is given twice")
        # Fractions stay as they are, for the settings to refuse.
        chosen[name] = int(value) if known[name] in (int, "int") and value.is_integer() else value
    return EngineSettings(**chosen)  # type: ignore[arg-type]


def room(given: Mapping[str, str | float]) -> RoomSettings:
    """Settings of late binding by name, as text or numbers.

    Raises:
        ValueError: an unknown one, or a value out of its range.
    """
    chosen: dict[str, Any] = {}
    for key, value in given.items():
        if key not in RoomSettings.__slots__:
            raise ValueError(
                f"late binding has no setting {shown(key)}; it has: {', '.join(RoomSettings.__slots__)}"
            )
        if key == "order":
            chosen[key] = str(value)
            continue
        amount = number(value, key) if isinstance(value, str) else value
        high = _ROOM_MOST[key]
        chosen[key] = whole(key, amount, 0, high) if isinstance(high, int) else within(key, amount, 0, high)
    return RoomSettings(**chosen)


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
    return option("--generate", lambda _: generated(name, numbers(rest)), generate)


def policies(text: str) -> list[str]:
    """Names of policies with commas. Raises ValueError for none, one that does not exist, or that comes twice."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        known_policy(name.removesuffix(LATE))
    if not names:
        raise ValueError(f"names no policy; known: {', '.join(sorted(POLICIES))}")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} is named twice; write each once, or several --seeds to play it again")
    return names


def known_policy(name: str) -> str:
    """The name of a policy. Raises ValueError when there is none."""
    if name not in POLICIES:
        raise ValueError(f"there is no policy {shown(name)}; known: {', '.join(sorted(POLICIES))}")
    return name


def seeds(text: str) -> list[int]:
    """Whole numbers with commas, each once. Raises ValueError for another form, and for too many."""
    try:
        found = [int(seed) for seed in text.split(",")]
    except ValueError:
        raise ValueError("write numbers with commas, for example 0,1,2") from None
    for seed in found:
        whole("a seed", seed, -(2**53))
    if len(set(found)) < len(found) or len(found) > _MOST_SEEDS:
        raise ValueError(f"write at most {_MOST_SEEDS} seeds, each once")
    return found


def policy_settings(sets: tuple[str, ...], played: Iterable[str]) -> dict[str, dict[str, float]]:
    """("charged_cost.gain=4", ..) -> {"charged_cost": {"gain": 4.0}}, checked.

    Args:
        sets: as written.
        played: the policies of the run, with or without `+late`.

    Raises:
        ValueError: another form; a policy that does not exist or is not played; a setting it lacks or refuses.
    """
    names = dict.fromkeys(name.removesuffix(LATE) for name in played)
    found: dict[str, dict[str, float]] = {}
    for text in sets:
        option("--set", lambda words: _set(words, names, found), text)
    for policy, settings in found.items():  # all of them together: some bound each other
        try:
            check_policy(policy, settings)
        except ValueError as error:
            raise ValueError(f"--set: {error}") from None
    return found


def _set(text: str, played: Iterable[str], found: dict[str, dict[str, float]]) -> None:
    given = numbers(text)
    if not given:
        raise ValueError("write POLICY.SETTING=VALUE, for example charged_cost.gain=4")
    for key, value in given.items():
        policy, dot, name = key.partition(".")
        if not dot:
            raise ValueError("write POLICY.SETTING=VALUE, for example charged_cost.gain=4")
        if known_policy(policy) not in played:
            raise ValueError(f"{policy} is not played; played are: {', '.join(played)}")
        settings = found.setdefault(policy, {})
        if name in settings:
            raise ValueError(f"{key} is given twice")
        if math.isinf(value):
            raise ValueError(f"{key} must be finite")
        settings[name] = value
