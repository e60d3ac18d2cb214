"""The policies: one file each, one small Protocol, and this registry. docs/policies.md describes them."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

from extproc.core.policies.base import Ask, Choice, Policy
from extproc.core.policies.cache_aware import CacheAware
from extproc.core.policies.charged_cost import ChargedCost
from extproc.core.policies.equal_cost import EqualCost
from extproc.core.policies.hybrid_hash import HybridHash
from extproc.core.policies.least_request import LeastRequest
from extproc.core.policies.least_tokens import LeastTokens
from extproc.core.policies.power_of_two import PowerOfTwo
from extproc.core.policies.prefix_hash import PrefixHash
from extproc.core.policies.random_choice import RandomChoice
from extproc.core.policies.round_robin import RoundRobin
from extproc.core.policies.session_hash import SessionHash
from extproc.core.policies.tiered_affinity import TieredAffinity
from extproc.core.policies.weighted_headroom import WeightedHeadroom

__all__ = ["OWN", "POLICIES", "Ask", "Choice", "Policy", "check_policy", "make_policy"]

#: Name in the settings -> what makes the policy. Settings are its keyword arguments.
POLICIES: dict[str, Callable[..., Policy]] = {
    "charged_cost": ChargedCost,
    "round_robin": RoundRobin,
    "random": RandomChoice,
    "least_request": LeastRequest,
    "power_of_two": PowerOfTwo,
    "least_tokens": LeastTokens,
    "cache_aware": CacheAware,
    "prefix_hash": PrefixHash,
    "weighted_headroom": WeightedHeadroom,
    "tiered_affinity": TieredAffinity,
    "equal_cost": EqualCost,
    "session_hash": SessionHash,
    "hybrid_hash": HybridHash,
}

#: The policies of this package: their answers are taken as they are (tests/unit/test_policies.py holds them to it), a
#: plug-in's are checked each time. A class made of one of them is a plug-in too.
OWN: Final = frozenset(POLICIES.values())


def make_policy(name: str, settings: Mapping[str, float]) -> Policy:
    """Build a policy.

    Raises:
        ValueError: no such policy, or a setting it does not have or that is out of range.
    """
    if name not in POLICIES:
        raise ValueError(f"there is no policy {name!r}; known: {', '.join(sorted(POLICIES))}")
    known = policy_settings(name)
    for key in settings:
        if key not in known:
            has = ", ".join(sorted(known)) or "none"
            raise ValueError(f"policy {name!r} has no setting {key!r}; it has: {has}")
    return POLICIES[name](**settings)


def check_policy(name: str, settings: Mapping[str, float]) -> None:
    """Raise ValueError as `make_policy` does when the policy could not be built."""
    make_policy(name, settings)


def policy_settings(name: str) -> dict[str, Any]:
    """Names and defaults of a policy's own settings."""
    made: Any = POLICIES[name]
    return {field.name: field.default for field in fields(made) if field.init} if is_dataclass(made) else {}
