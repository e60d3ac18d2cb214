"""What a configuration says in vain, or what it means may be something else: warnings, where nothing is wrong."""

from collections.abc import Iterator
from typing import Final

from extproc.core.routes import KINDS
from extproc.faults import Loc
from extproc.settings import GatewaySettings, PoolSettings

#: Policies that weigh what a second of a replica costs (core/bias.py).
WEIGHING: Final = ("charged_cost", "equal_cost", "weighted_headroom")
#: Of a pool that loads adapters without Redis.
_ALONE: Final = (
    "knows nothing of other gateways, as redis.url is empty: several would load more than per_replica and per_minute "
    "allow, and unload what another one uses; set redis.url, or run a single gateway"
)


def doubts(settings: GatewaySettings) -> Iterator[tuple[Loc, str]]:
    """Where the setting stands, and what is doubtful about it with how to mend it, one sentence each."""
    yield from _of_tries(settings)
    named = {pool.name: pool for pool in settings.pools}
    for number, pool in enumerate(settings.pools):
        at = ("pools", number)
        if pool.retries.model_fields_set & {"share", "least"} and not settings.envoy.retries:
            yield (
                (*at, "retries"),
                "bounds tries that Envoy never makes, as envoy.retries is 0; raise that, or remove this",
            )
        if pool.adapters.loads and not settings.redis.url:
            yield (*at, "adapters", "loading"), _ALONE
        for where, sentence in (*_of_costs(pool), *_of_mirror(pool, named.get(pool.mirror.pool))):
            yield (*at, *where), sentence


def _of_tries(settings: GatewaySettings) -> Iterator[tuple[Loc, str]]:
    """Envoy chooses by itself where a further try goes that the gateway names no replica for (core/tries.py)."""
    envoy = settings.envoy
    if settings.requests.fallbacks or not envoy.retries or envoy.steering != "override_host":
        return
    ranked = any(pool.ranks.enabled for pool in settings.pools)
    if envoy.eds_dir and not ranked:
        return
    what = "replicas that drain" if not envoy.eds_dir else ""
    what += " and " if what and ranked else ""
    what += "replicas that lack the rank in ranks.header" if ranked else ""
    eds = ", or set envoy.eds_dir" if not ranked else ""
    yield (
        ("requests", "fallbacks"),
        f"names one replica, so Envoy sends retries to any, {what} among them; raise it, or set envoy.retries to 0"
        + eds,
    )


def _of_costs(pool: PoolSettings) -> Iterator[tuple[Loc, str]]:
    policy = pool.policy.name
    unweighed = (
        f"changes nothing, as the policy {policy} weighs no costs; write policy: {', '.join(WEIGHING[:-1])}"
    )
    unweighed += f" or {WEIGHING[-1]}, or remove it"
    if pool.factor.metric and policy not in WEIGHING:
        yield ("factor",), unweighed
    if pool.factor.metric and pool.factor.low == pool.factor.high:
        yield ("factor",), "is always 1, as low and high are; lower low, raise high, or remove it"
    if pool.factor.metric and not pool.metrics.enabled:
        yield (
            ("factor", "metric"),
            "is never read, as the pool's metrics.enabled is false; set that to true, or remove factor",
        )
    for number, replica in enumerate(pool.replicas if policy not in WEIGHING else ()):
        if replica.cost != 1:
            yield ("replicas", number, "cost"), unweighed


def _of_mirror(pool: PoolSettings, other: PoolSettings | None) -> Iterator[tuple[Loc, str]]:
    if other is None or not pool.mirror.share:
        return
    at = ("mirror", "pool")
    missing = [kind for kind in pool.kinds or KINDS if kind not in (other.kinds or KINDS)]
    if missing:
        kinds = " and ".join(missing)
        yield (
            at,
            f"{other.name!r} gets {kinds} requests too, which it does not take; name other kinds under kinds",
        )
    if not other.models:
        return
    theirs = {other.served_as.get(model, model) for model in other.models}
    names = ((model, pool.served_as.get(model, model)) for model in pool.models)
    strange = next(((model, name) for model, name in names if name not in theirs), None)
    if strange is not None:
        model, name = strange
        known = " and ".join(map(repr, sorted(theirs)[:3]))
        sentence = (
            f"requests for {model!r} go to {other.name!r} as {name!r} too, as Envoy copies them, and its engines are "
            f"said to know {known}; let them answer to {name!r} as well"
        )
        yield at, sentence
