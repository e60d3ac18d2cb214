"""What is wrong with the names of models, their aliases, and mirrors between pools; told with its place."""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from extproc.core.dialects.base import MOST_NAME
from extproc.core.routes import KINDS
from extproc.settings.base import FaultAtError

if TYPE_CHECKING:
    from extproc.settings.pools import PoolSettings

#: Categories of characters that no name has: control characters, halves of surrogate pairs, ends of lines. Envoy
#: refuses a bootstrap with some of them.
_NEVER: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})


def fault_of(name: str) -> str:
    """What keeps a text from being a model's name, in a sentence that says how to mend it; "" for nothing."""
    if not name:
        return "is empty; write the model's name"
    if len(name) > MOST_NAME:
        return f"has {len(name)} characters; {MOST_NAME} are the most, and requests with longer names are not read"
    if "*" in name:
        return f"{name!r} has a *, but names are taken as they are; list each model, or leave models empty for all"
    for place, letter in enumerate(name, 1):
        if unicodedata.category(letter) in _NEVER:
            return f"has the character {letter!r} at place {place}, which no name has; remove it"
    return ""


def check_listed(names: Iterable[str]) -> None:
    """Raise FaultAtError for the first of a pool's models that is no name, at its number."""
    for number, name in enumerate(names):
        if wrong := fault_of(name):
            raise FaultAtError((number,), wrong)


def check_mapped(names: Mapping[str, str]) -> None:
    """Raise FaultAtError where a name or what it stands for is no name, at the name."""
    for name, other in names.items():
        if wrong := fault_of(name):
            raise FaultAtError((name,), f"the name before the colon {wrong}")
        if wrong := fault_of(other):
            raise FaultAtError((name,), wrong)


def check_aliases(aliases: Mapping[str, str], pools: "Sequence[PoolSettings]") -> None:
    """Raise for aliases that hide a model, or lead to none.

    Raises:
        FaultAtError: an alias is a listed model, or leads to another alias or to what no pool takes.
    """
    listed = {model for pool in pools for model in pool.models}
    adapters = {name for pool in pools if pool.adapters.enabled for name in pool.adapters.rules(()).names}
    takes_any = any(not pool.models for pool in pools)
    for alias, model in aliases.items():
        at = ("aliases", alias)
        if alias in listed:
            raise FaultAtError(at, "is listed as a model by a pool; remove one of the two")
        if model in aliases:
            raise FaultAtError(at, f"leads to {model!r}, an alias too; write the model")
        if model not in listed and model not in adapters and not takes_any:
            raise FaultAtError(at, f"leads to {model!r}, which no pool lists; write one that is listed")


def check_adapters(aliases: Mapping[str, str], pools: "Sequence[PoolSettings]") -> None:
    """Raise for adapters whose requests would go elsewhere, or of which two pools think differently.

    Raises:
        FaultAtError: an adapter has the name of a model or an alias, or is loaded by two pools for different models.
    """
    listed = {model: pool.name for pool in pools for model in pool.models}
    loaded: dict[str, PoolSettings] = {}
    for number, pool in enumerate(pools):
        at = ("pools", number, "adapters")
        paths = pool.adapters.loading.paths if pool.adapters.loads else {}
        models = dict.fromkeys(pool.served_as.values(), pool.name) | listed
        for where, names in ((("loading", "paths"), paths), (("names",), pool.adapters.names)):
            for name in names if pool.adapters.enabled else ():
                if name in models:
                    raise FaultAtError((*at, *where, name), _taken(f"a model of the pool {models[name]!r}"))
                if name in aliases:
                    raise FaultAtError((*at, *where, name), _taken("an alias"))
        for name in paths:
            other = loaded.setdefault(name, pool)
            if not _same_parent(name, pool, other):
                raise FaultAtError(
                    (*at, "loading", "paths", name),
                    f"is loaded by the pool {other.name!r} for another model, and a request tells only the name; "
                    "give the two different names",
                )


def _taken(by: str) -> str:
    return f"is the name of {by}, which requests for it mean; give the adapter another name, or remove it"


def _same_parent(name: str, one: "PoolSettings", other: "PoolSettings") -> bool:
    """Whether two pools load an adapter for the same model: versions of it, or parts of its requests."""
    first, second = (pool.adapters.rules(pool.models).names[name] for pool in (one, other))
    if first and second:
        return first == second
    return one is other or bool(set(one.models) & set(other.models)) or not (one.models or other.models)


def check_mirrors(pools: "Sequence[PoolSettings]") -> None:
    """Raise for mirrors that can only do harm.

    Raises:
        FaultAtError: a mirror leads to no pool, to its own, to the same replicas, or where no such request is taken.
    """
    named = {pool.name: pool for pool in pools}
    for number, pool in enumerate(pools):
        at, other = ("pools", number, "mirror", "pool"), named.get(pool.mirror.pool)
        if not pool.mirror.pool:
            continue
        if other is None:
            raise FaultAtError(at, f"{pool.mirror.pool!r} is no pool; name one that is")
        if other is pool:
            raise FaultAtError(at, f"{other.name!r} is the pool itself; name another, or remove it")
        if both := {replica.address for replica in pool.replicas} & {it.address for it in other.replicas}:
            raise FaultAtError(
                at,
                f"{other.name!r} has {min(both)} too, which would compute requests twice; name a pool of others",
            )
        if not set(pool.kinds or KINDS) & set(other.kinds or KINDS):
            raise FaultAtError(
                at,
                f"{other.name!r} takes {' and '.join(other.kinds)} alone, none of what is sent here; name another",
            )
