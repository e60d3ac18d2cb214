"""What admission says: allow, queue, degrade or reject (A3), each with a reason of a closed set and its numbers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from extproc.core.admission.budget import (
    POOL_FULL,
    TENANT_IN_FLIGHT,
    TENANT_RATE,
    TENANT_SHARE,
    TENANT_TOO_LARGE,
)
from extproc.core.admission.queue import DEADLINE, QUEUE_FULL, TENANT_QUEUE_FULL, WAITED
from extproc.core.admission.tenants import Degrade

ALLOW: Final = "allow"
QUEUE: Final = "queue"
DEGRADE: Final = "degrade"
REJECT: Final = "reject"
VERDICTS: Final = (ALLOW, QUEUE, DEGRADE, REJECT)
#: The reason of whoever found room.
ROOM: Final = "room"

#: Longest Retry-After, seconds: later nobody knows.
_LONGEST: Final = 60.0


class Refusal(NamedTuple):
    """How a reason is told to a client: status, OpenAI's error type and code, and what to do."""

    status: int
    kind: str
    code: str
    message: str


_RATE: Final = ("rate_limit_error", "rate_limit_exceeded")
_LATER: Final = "Try again after the seconds in Retry-After."
#: Every reason a request may be refused, or have to wait or be degraded, for.
REFUSALS: Final[Mapping[str, Refusal]] = {
    TENANT_TOO_LARGE: Refusal(
        429, "insufficient_quota", "insufficient_quota",
        "The request needs more tokens than your quota has; send a shorter one, or ask for a higher quota.",
    ),
    TENANT_IN_FLIGHT: Refusal(429, *_RATE, f"Your requests in flight take all tokens of your quota. {_LATER}"),
    TENANT_RATE: Refusal(429, *_RATE, f"Your tokens per minute are used up. {_LATER}"),
    TENANT_SHARE: Refusal(429, *_RATE, f"Your share of the fleet is in use. {_LATER}"),
    TENANT_QUEUE_FULL: Refusal(429, *_RATE, f"Too many of your requests wait already. {_LATER}"),
    POOL_FULL: Refusal(503, "server_error", "overloaded", f"The fleet is fully loaded. {_LATER}"),
    QUEUE_FULL: Refusal(503, "server_error", "overloaded", f"Too many requests wait already. {_LATER}"),
    DEADLINE: Refusal(
        503, "server_error", "overloaded", f"The request would wait longer than it may. {_LATER}"
    ),
    WAITED: Refusal(
        503, "server_error", "overloaded", f"The request waited as long as it may without getting room. {_LATER}"
    ),
}  # fmt: skip
#: Every reason of an answer: a closed set that labels metrics.
REASONS: Final = (ROOM, *REFUSALS)


@dataclass(slots=True, frozen=True, kw_only=True)
class Answer:
    """What becomes of a request.

    Attributes:
        verdict: of VERDICTS.
        reason: of REASONS: why there was no room at first, or "room".
        tenant: its name.
        pool: where it goes or would have gone.
        retry_after: seconds; for a request that waits, how long it is predicted to.
        degrade: what it gets instead, with that verdict.
        numbers: which explain the answer: tokens asked, used, leased, left of the rate, waiting, total.
        dry: the answer was only counted; the request went on.
        waited: seconds that it waited until it went or was refused; None where it did not wait, or still does.
    """

    verdict: str
    reason: str
    tenant: str
    pool: str = ""
    retry_after: float = 0.0
    degrade: Degrade | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    dry: bool = False
    waited: float | None = None

    @property
    def goes(self) -> bool:
        """Whether the request is sent on now."""
        return (
            self.verdict in (ALLOW, DEGRADE)
            or self.dry
            or (self.verdict == QUEUE and self.waited is not None)
        )

    @property
    def waits(self) -> bool:
        """Whether it is to wait for its turn."""
        return self.verdict == QUEUE and not self.goes

    @property
    def lesser(self) -> Degrade | None:
        """The lesser service that the request really gets."""
        return None if self.dry else self.degrade

    @property
    def is_final(self) -> bool:
        """Whether the same request would be refused again whenever it comes."""
        return self.reason == TENANT_TOO_LARGE

    @property
    def refusal(self) -> Refusal:
        """How it is told to a client that is refused."""
        return REFUSALS[self.reason]


def whole_seconds(seconds: float) -> int:
    """A Retry-After: whole seconds, at least 1, at most a minute; 1 where nothing is known."""
    if math.isinf(seconds) or math.isnan(seconds):
        return 1
    return max(math.ceil(min(seconds, _LONGEST)), 1)


def ratelimit_headers(answer: Answer) -> list[tuple[str, str]]:
    """x-ratelimit-* as OpenAI's clients read them: tokens a minute, what is left of them here, and when more is."""
    limit = answer.numbers.get("per_minute", math.inf)
    if math.isinf(limit):
        return []
    left = max(answer.numbers.get("rate_left", 0.0), 0.0)
    return [
        ("x-ratelimit-limit-tokens", str(int(limit))),
        ("x-ratelimit-remaining-tokens", str(int(left))),
        ("x-ratelimit-reset-tokens", f"{whole_seconds(answer.retry_after)}s"),
    ]
