"""What settings of admission can never do together with others of theirs, or with pools; told with its place."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from extproc.quantities import show_duration
from extproc.settings.base import FaultAtError

if TYPE_CHECKING:
    from extproc.settings.admission import AdmissionSettings, PromiseSettings
    from extproc.settings.pools import PoolSettings

#: A SHA-256 as `sha256sum` writes it, which is how keys are looked up.
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def check_tenants_are_found(settings: "AdmissionSettings") -> None:
    """Raise for tenants whose requests could never be told from others'.

    Raises:
        FaultAtError: there is no source of identities, or an identity is none that the source tells.
    """
    source = settings.identity.source
    if settings.tenants and source == "none":
        raise FaultAtError(
            ("tenants",),
            "nobody is ever found, as admission.identity.source is none; write where identities are found",
        )
    for number, tenant in enumerate(settings.tenants if source == "api_key" else ()):
        for place, identity in enumerate(tenant.ids):
            if not _DIGEST.fullmatch(identity):
                raise FaultAtError(
                    ("tenants", number, "ids", place),
                    "is no SHA-256 of a key in lower-case hex, as admission.identity.source is api_key; write the 64 "
                    "digits that `printf %s KEY | sha256sum` says",
                )


def check_headers_are_apart(settings: "AdmissionSettings") -> None:
    """Raise where one header would say who waits, and for how long.

    Raises:
        FaultAtError: it is the same one.
    """
    header = settings.queue.deadline_header
    if header and settings.identity.source in ("api_key", "header") and header == settings.identity.header:
        raise FaultAtError(
            ("queue", "deadline_header"),
            f"is {header}, which admission.identity.header names too; name another, or remove it",
        )


def check_degrades(
    settings: "AdmissionSettings", pools: "list[PoolSettings]", aliases: dict[str, str]
) -> None:
    """Raise for lesser services that nobody could ever get.

    Raises:
        FaultAtError: a pool or a model is none, is an alias, or is where every such request is already.
    """
    names = {pool.name for pool in pools}
    models = {model for pool in pools for model in pool.models}
    for where, promise in _promises(settings):
        for number, lesser in enumerate(promise.degrade):
            at = (*where, "degrade", number)
            if lesser.pool and lesser.pool not in names:
                raise FaultAtError((*at, "pool"), f"{lesser.pool!r} is no pool; name one that is")
            if lesser.pool and len(names) == 1:
                raise FaultAtError(
                    (*at, "pool"),
                    f"{lesser.pool!r} is the only pool, where requests are already; add one, or remove it",
                )
            if lesser.model in aliases:
                raise FaultAtError(
                    (*at, "model"),
                    f"{lesser.model!r} is an alias; write its model, {aliases[lesser.model]!r}",
                )
            if lesser.model and lesser.model not in models:
                raise FaultAtError(
                    (*at, "model"), f"{lesser.model!r} is none of a pool's models; name one that is"
                )


def check_waits_end(settings: "AdmissionSettings", pools: "list[PoolSettings]") -> None:
    """Raise where every request that waits as long as it may would be cut off by Envoy before it goes.

    Only waits that are written count: who sets a shorter total need not know the defaults, and shorter waits do go.

    Raises:
        FaultAtError: a wait, for admission or for a replica, is above the pool's `timeouts.total`.
    """
    for number, pool in enumerate(pools):
        total, late = pool.timeouts.total, pool.late_binding
        if late.enabled and "longest_wait" in late.model_fields_set and 0 < total < late.longest_wait:
            raise FaultAtError(
                ("pools", number, "late_binding", "longest_wait"),
                f"{show_duration(late.longest_wait)} is above the pool's timeouts.total, "
                f"{show_duration(total)}, which ends a request before; lower it",
            )
        if settings.is_on and "wait" in settings.queue.model_fields_set and 0 < total < settings.queue.wait:
            raise FaultAtError(
                ("admission", "queue", "wait"),
                f"{show_duration(settings.queue.wait)} is above pools[{number}].timeouts.total, "
                f"{show_duration(total)}, which ends a request before; lower it",
            )


def _promises(settings: "AdmissionSettings") -> "Iterator[tuple[tuple[int | str, ...], PromiseSettings]]":
    for number, tenant in enumerate(settings.tenants):
        yield ("admission", "tenants", number), tenant
    yield ("admission", "others"), settings.others
