"""A version of a pool's policy as it stands in Redis (io/policy_store.py), and gateways' reports: read strictly.

Whoever may write to Redis may have written it. What can't be read is a BadVersion or is skipped, in words.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from extproc.config import PolicySettings, ShadowSettings
from extproc.core.policies import check_policy
from extproc.errors import KvsteerError

#: Longest texts taken, in characters.
MOST_WHY, MOST_WHO = 300, 128
#: Field of a pool's hash that names the newest version.
POINTER = b"newest"


class BadVersion(KvsteerError):
    """A version can't be used: it is garbled, or names what this kvsteer does not have. The gateway keeps its own."""


@dataclass(slots=True, frozen=True)
class Chosen:
    """How a pool chooses: its policy, and a shadow policy if that has a name."""

    policy: PolicySettings
    shadow: ShadowSettings

    def check(self) -> None:
        """Raise ValueError, with the reason, when this kvsteer can't choose so."""
        check_policy(self.policy.name, self.policy.settings)
        if self.shadow.name:
            check_policy(self.shadow.name, self.shadow.settings)


@dataclass(slots=True, frozen=True, kw_only=True)
class Version:
    """One change. `restores` is the version whose content was put back; `at` is in seconds of Redis' clock."""

    number: int
    chosen: Chosen
    who: str
    at: float
    why: str
    restores: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """As it is kept and shown."""
        return {
            "version": self.number,
            "policy": self.chosen.policy.model_dump(),
            "shadow": self.chosen.shadow.model_dump(),
            "who": self.who,
            "when": self.at,
            "why": self.why,
            "restores": self.restores,
        }


#: Highest number of a version: what JSON readers everywhere can hold, with room for those that follow it.
_MOST_NUMBER = 2**52
#: Times of versions are below this: the year 10000, which no calendar of ours can write.
_MOST_TIME = 253_402_300_800.0


def _number(value: object, least: int = 1) -> int:
    if type(value) is not int or not least <= value < _MOST_NUMBER:
        raise ValueError
    return value


def _time(value: object) -> float:
    if type(value) not in (int, float) or not 0 <= value < _MOST_TIME:  # type: ignore[operator]
        raise ValueError
    return float(value)  # type: ignore[arg-type]


def _text(value: object, most: int) -> str:
    """One line that a terminal and a log can take."""
    if type(value) is not str:
        raise TypeError
    return "".join(letter if letter.isprintable() else "?" for letter in value[:most])


def read_version(text: bytes) -> Version:
    """A version out of its JSON; keys that are not known here are ignored.

    Raises:
        BadVersion: with the reason.
    """
    try:
        found = orjson.loads(text)
        chosen = Chosen(
            PolicySettings.model_validate(found["policy"]),
            ShadowSettings.model_validate(found.get("shadow") or {}),
        )
        restores = found.get("restores")
        return Version(
            number=_number(found["version"]),
            chosen=chosen,
            who=_text(found["who"], MOST_WHO),
            at=_time(found["when"]),
            why=_text(found["why"], MOST_WHY),
            restores=None if restores is None else _number(restores),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise BadVersion(f"it can't be read ({type(error).__name__})") from None


class Standing(NamedTuple):
    """How a pool's versions stand in Redis.

    Attributes:
        number: of the newest, readable or not; 0 when there is none. The next one is the number after it.
        newest: the version with that number, or the last readable one before it; None when there is none.
        versions: all that can be read, highest number first.
        pointer: what names the newest, as it is in Redis; a change is refused when that changed meanwhile.
        skipped: what somebody else wrote there, in words.
    """

    number: int
    newest: Version | None
    versions: list[Version]
    pointer: bytes | None
    skipped: list[str]

    @property
    def is_current(self) -> bool:
        """Whether `newest` is what gateways are told to use; False when that can't be read."""
        return self.newest is not None and self.newest.number == self.number


def standing_of(held: Mapping[bytes, bytes]) -> Standing:
    """Sort out a pool's hash, whatever somebody wrote into it."""
    versions, skipped, highest = [], [], 0
    pointer = held.get(POINTER)
    for field, text in held.items():
        if field == POINTER:
            continue
        number = pointed(field)
        highest = max(highest, number)
        try:
            version = read_version(text)
        except BadVersion as error:
            skipped.append(f"version {quoted(field)}: {error}")
            continue
        if version.number == number:
            versions.append(version)
        else:
            skipped.append(f"version {quoted(field)}: it says that it is {version.number}")
    versions.sort(key=lambda version: -version.number)
    number = pointed(pointer or b"")
    if pointer is not None and not number:
        skipped.append(f"the number of the newest version: {quoted(pointer)} is none")
    number = number or highest
    newest = next((version for version in versions if version.number <= number), None)
    return Standing(number, newest, versions, pointer, skipped)


def pointed(text: bytes) -> int:
    """The number that a field or the pointer names; 0 for what kvsteer never writes."""
    number = int(text) if text.isdigit() and len(text) < 20 else 0
    return number if 0 < number < _MOST_NUMBER and text == b"%d" % number else 0


def quoted(text: bytes) -> str:
    """Bytes that somebody else wrote, short and printable."""
    return ascii(text[:40])[1:] + ("..." if len(text) > 40 else "")


def gateway_name(text: bytes) -> str:
    """A gateway's id out of its key. Raises ValueError for what no terminal should be given."""
    name = text.decode()
    if not name.isprintable():
        raise ValueError
    return name


def reported(text: bytes) -> dict[str, Any]:
    """A gateway's report. Raises one of the usual errors for what has another form."""
    return {str(pool): _of_pool(said) for pool, said in orjson.loads(text).items()}


def _of_pool(said: dict[str, Any]) -> dict[str, Any]:
    when, refused = said["when"], said["refused"]
    return {
        "version": _number(said["version"], 0),
        "when": None if when is None else _time(when),
        "refused": None
        if refused is None
        else {
            "version": _number(refused["version"], 0),
            "when": _time(refused["when"]),
            "reason": _text(refused["reason"], MOST_WHY),
        },
    }
