"""What was learned of caches and tokens, ready to be shown, and told in the log when it turns over."""

from typing import Any

import structlog

from extproc.core.announced import WATCHER
from extproc.core.fleet import Replica
from extproc.core.pool import Pool
from extproc.io.repeats import VOIDED

_log = structlog.get_logger("kvsteer.feedback")

#: Models of a pool that are shown where it declares none, and replicas named in one round of the log.
_MODELS = 64
_NAMED = 16


def cache_of(pool: Pool, replica: Replica) -> dict[str, Any] | None:
    """How far a replica's cache is believed in (core/truth.View), ready for JSON; None where nothing is learned."""
    if pool.feedback is None:
        return None
    view = pool.feedback.truth.view(replica.slot)
    return {
        "samples": view.samples,
        "predicted_tokens": round(view.predicted),
        "cached_tokens": round(view.actual),
        "unexpected_tokens": round(view.unexpected),
        "precision": _short(view.precision),
        "recent_precision": _short(view.recent),
        "scale": round(view.scale, 4),
        "believed_bytes": view.believed,
        "configured_bytes": view.configured,
        "believed_share": _short(view.believed / view.configured if view.configured else None),
        "emptied": view.emptied,
        "distrusted": view.distrusted,
        "voided": view.voided,
    }


def ratios_of(pool: Pool) -> list[dict[str, Any]]:
    """Tokens per byte as learned: of the models that the pool declares, else of those it was asked for."""
    rows = [row for row in pool.ratios.export() if not pool.models or row.model in pool.models]
    shown = []
    for row in rows[-_MODELS:]:
        ratio, template = pool.ratios.line(row.model, row.script)
        shown.append(
            {
                "model": row.model,
                "script": row.script or "any",
                "prompts": row.seen,
                "tokens_per_byte": round(ratio, 4),
                "template_tokens": round(template, 1),
            }
        )
    return shown


class Beliefs:
    """Logs caches that were emptied, replicas that are distrusted, prompts that were never computed."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int], tuple[int, int, int]] = {}

    def look(self, pools: list[Pool]) -> None:
        """Log what happened since the last look; called about once a second.

        Of several gateways the one that judges says it.
        """
        seen: dict[tuple[str, str, int], tuple[int, int, int]] = {}
        named = 0
        for pool in pools:
            if pool.feedback is None or pool.feedback.truth.role() == WATCHER:
                continue
            for replica in pool.replicas:
                key = (pool.name, replica.address, replica.incarnation)
                view = pool.feedback.truth.view(replica.slot)
                counts = seen[key] = (view.emptied, view.distrusted, view.voided)
                before = self._known.get(key, (0, 0, 0))
                if counts != before and named < _NAMED:
                    named += 1
                    _tell(key, before, counts)
        self._known = seen


def _tell(key: tuple[str, str, int], before: tuple[int, int, int], now: tuple[int, int, int]) -> None:
    emptied, distrusted, voided = (new - old for new, old in zip(now, before, strict=True))
    where = {"pool": key[0], "replica": key[1]}
    if emptied:
        _log.warning("a cache was emptied: what was believed to be in it is forgotten", **where)
    if distrusted:
        _log.warning(
            "a cache does not hold what is believed: its replica is distrusted until it does", **where
        )
    if voided:
        _log.info(VOIDED, count=voided, **where)


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
