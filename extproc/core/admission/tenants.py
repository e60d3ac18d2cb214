"""Tenants: who they are, what they were promised, and the one bucket of all that are unknown."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

#: The tenant of whoever no other tenant names: all of them share its limits, so that they are bounded together.
OTHERS: Final = "others"
#: Most characters of an identity; a longer one is nobody's, and so is one of spaces alone.
LONGEST: Final = 512
#: Priority classes: 0 goes first, the last one last. vLLM counts `priority` the same way.
CLASSES: Final = 4


class Degrade(NamedTuple):
    """A lesser service instead of none.

    Attributes:
        kind: "priority" (a lower one in the engine), "pool" (another one) or "model" (a smaller one).
        to: the engine's priority as digits, the pool's name, or the model's.
    """

    kind: str
    to: str


@dataclass(slots=True, frozen=True, kw_only=True)
class Tenant:
    """What one tenant was promised. Tokens are runtime tokens.

    Attributes:
        name: labels metrics, so it comes from the configuration.
        share: of a pool's budget, 0..1, that is its own whenever it wants it.
        weight: by which what is free is divided among those who want more; above 0.
        in_flight: hard cap on tokens in flight, over all gateways.
        per_minute: hard cap on tokens admitted, over all gateways.
        waiting: most of its requests that wait at one gateway.
        best: the best class its requests may have, 0 to CLASSES - 1.
        body: most bytes of a request's body, 0 for the gateway's own limit.
        degrade: tried in this order before a request has to wait.
    """

    name: str
    share: float = 0.0
    weight: float = 1.0
    in_flight: float = math.inf
    per_minute: float = math.inf
    waiting: int = 100
    best: int = 1
    body: int = 0
    degrade: tuple[Degrade, ...] = ()

    def class_of(self, asked: int | None) -> int:
        """The class of a request that asks for one, or for none: never better than the tenant's best."""
        return self.best if asked is None else min(max(asked, self.best), CLASSES - 1)


class Tenants:
    """Finds tenants by identity.

    Args:
        known: identity -> tenant; several identities may be of one. A blank one is nobody's, as whoever tells none
            would be that tenant.
        others: of everybody else.

    Raises:
        ValueError: guaranteed shares add up to more than all there is, or two tenants have one name.
    """

    def __init__(self, known: Mapping[str, Tenant], others: Tenant | None = None) -> None:
        self.others = others or Tenant(name=OTHERS)
        self._known = dict(known)
        self.all: tuple[Tenant, ...] = tuple(_distinct([*self._known.values(), self.others]))
        promised = sum(tenant.share for tenant in self.all)
        if promised > 1.0 + 1e-9:
            raise ValueError(f"guaranteed shares add up to {promised:g}; lower them until they are at most 1")

    def of(self, identity: str) -> Tenant:
        """The tenant of an identity; of a blank one, which is none, `others`."""
        return self._known.get(identity, self.others) if identity else self.others


def _distinct(tenants: Iterable[Tenant]) -> list[Tenant]:
    by_name: dict[str, Tenant] = {}
    for tenant in tenants:
        if by_name.setdefault(tenant.name, tenant) != tenant:
            raise ValueError(f"two tenants are named {tenant.name!r}; rename one")
    return list(by_name.values())
