"""What a gateway believes of its fleet at one moment, as numbers: written for `explain` and read back into a core.

Its size grows with the replicas and with nothing else. Of the prefix index there are only counts, so a core made of
a snapshot believes every cache cold. Infinity, which JSON lacks, is null.
"""

import math
import random
from dataclasses import asdict, fields
from typing import Any

from pydantic import ValidationError

from extproc import __version__
from extproc.core.dialects import Limits
from extproc.core.fleet import Replica
from extproc.core.headroom import Weights
from extproc.core.pool import Busy, Pool
from extproc.core.sample import Sample
from extproc.core.shadow import Shadow
from extproc.core.steering import Rules, Steering
from extproc.core.traits import Traits
from extproc.errors import KvsteerError
from extproc.io.snapshot_form import PoolForm, ReplicaForm, SnapshotForm

#: Changes when an older kvsteer could no longer read a snapshot.
_FORMAT = 1
#: A replica's numbers as decisions read them.
_NUMBERS = (
    "barred", "share", "headroom", "lean", "cost", "bias", "prefill_speed", "decode_speed", "max_running",
    "kv_tokens", "occupancy", "crowded", "kv_load", "context",
)  # fmt: skip
_SAMPLED = ("running", "waiting", "kv_used", "kv_capacity", "max_running")
_TRAITS = tuple(entry.name for entry in fields(Traits) if type(entry.default) in (int, float))
_RULES = ("unreadable_passes", "unknown_model_passes", "fallbacks", "body", "expanded_body")


class BadSnapshot(KvsteerError):
    """A file is no snapshot, or one of another kvsteer. The command prints it and exits with 2."""


class _Known(Busy):
    """A pool's rho as it was."""

    def __init__(self, rho: float) -> None:
        super().__init__(0.0)
        self._rho = rho

    def rho(self, replicas: int, now: float) -> float:
        return self._rho


def take(steering: Steering, gateway_id: str, wall: float, now: float) -> dict[str, Any]:
    """A snapshot, ready for JSON. `wall` is in seconds since the epoch, `now` in the core's clock."""
    return {
        "snapshot": _FORMAT,
        "kvsteer": __version__,
        "gateway": gateway_id,
        "at": wall,
        "rules": {name: getattr(steering.rules, name) for name in _RULES}
        | {"limits": asdict(steering.rules.limits)},
        "pools": [_pool(pool, now) for pool in steering.pools],
    }


def restore(snapshot: Any) -> Steering:
    """A core that believes what the snapshot says, at time 0, with an empty prefix index.

    Raises:
        BadSnapshot: it is none, or of another kvsteer.
    """
    if not isinstance(snapshot, dict) or snapshot.get("snapshot") != _FORMAT:
        raise BadSnapshot("is no snapshot of this kvsteer; make one with: curl -s http://ADMIN/snapshot")
    rng = random.Random(0)  # noqa: S311 - breaks ties
    try:
        form = SnapshotForm.model_validate(snapshot)
        pools = [_restored(pool, rng) for pool in form.pools]
    except ValueError as error:
        raise BadSnapshot(f"is not as kvsteer writes it: {_fault(error)}; take it anew") from None
    limits = Limits(**form.rules.limits.model_dump())
    rules = Rules(**{name: getattr(form.rules, name) for name in _RULES}, limits=limits)
    return Steering(pools, rules, rng)


def _fault(error: ValueError) -> str:
    """The first fault, with the place it is at."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part)[:64] for part in first["loc"])
    return f"{where}: {first['msg']}"


def _pool(pool: Pool, now: float) -> dict[str, Any]:
    shadow = pool.shadow
    return {
        "name": pool.name,
        "models": sorted(pool.models),
        "policy": {"name": pool.policy_name, "settings": pool.policy_settings},
        "policy_version": pool.policy_version,
        "shadow": {"name": shadow.name, "settings": shadow.settings} if shadow else None,
        "rho": pool.busy.rho(len(pool.replicas), now),
        "traits": {name: _finite(getattr(pool.traits, name)) for name in _TRAITS}
        | {"weights": asdict(pool.traits.weights)},
        "index_entries": len(pool.index),
        "replicas": [_replica(pool, replica, now) for replica in pool.replicas],
    }


def _replica(pool: Pool, replica: Replica, now: float) -> dict[str, Any]:
    sample = replica.sample
    return {
        "replica": replica.address,
        "incarnation": replica.incarnation,
        "excluded": replica.excluded(now),
        "fresh_for": _finite(replica.fresh_until - now),
        **{name: getattr(replica, name) for name in _NUMBERS},
        "books": {
            "requests": replica.books.requests,
            "tokens": replica.books.tokens,
            "backlog_seconds": replica.backlog(now),
        },
        "sample": sample and {"age": now - sample.at, **{name: getattr(sample, name) for name in _SAMPLED}},
        "index_entries": pool.index.count(replica.slot),
    }


def _restored(said: PoolForm, rng: random.Random) -> Pool:
    traits: dict[str, Any] = {name: _infinite(getattr(said.traits, name)) for name in _TRAITS}
    pool = Pool(
        said.name,
        models=said.models,
        policy=said.policy.name,
        policy_settings=said.policy.settings,
        traits=Traits(**traits, weights=Weights(**said.traits.weights.model_dump())),
        now=0.0,
    )
    if said.shadow is not None:
        pool.shadow = Shadow(said.shadow.name, said.shadow.settings, rng)
    pool.policy_version = said.policy_version
    pool.busy = _Known(said.rho)
    with pool.at_once():
        for replica in said.replicas:
            if pool.get(replica.replica) is not None:
                raise ValueError(f"pool {said.name!r} has a replica twice")
            _fill(pool.join(replica.replica, 0.0), replica)
    return pool


def _fill(replica: Replica, said: ReplicaForm) -> None:
    """Make a new replica's numbers those of the snapshot."""
    pending = said.books.backlog_seconds * said.prefill_speed
    replica.books.send(0, pending, said.books.tokens, 0.0, said.prefill_speed)
    replica.books.requests = said.books.requests
    if said.sample is not None:
        sampled = {name: getattr(said.sample, name) for name in _SAMPLED}
        replica.sample = Sample(at=-said.sample.age, **sampled)
    replica.incarnation = said.incarnation
    replica.fresh_until = _infinite(said.fresh_for)
    for name in _NUMBERS:
        setattr(replica, name, getattr(said, name))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _infinite(value: float | None) -> float:
    return math.inf if value is None else value
