"""Tells in the log what becomes of replicas: who is taken out and why, and who is back."""

import structlog

from extproc.core.pool import Pool

_log = structlog.get_logger("kvsteer.replicas")

#: Replicas named in one round; in a fleet that loses thousands at once, the rest is counted.
_NAMED = 16


class Lives:
    """Compares what every replica is excluded for with what it was at the last look."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], str | None] = {}

    def look(self, pools: list[Pool], now: float) -> None:
        """Log what changed; called about once a second."""
        seen = {
            (pool.name, replica.address): replica.excluded(now) for pool in pools for replica in pool.replicas
        }
        changed = [key for key, why in seen.items() if self._known.get(key) != why]
        for pool, address in changed[:_NAMED]:
            why = seen[pool, address]
            if why is not None:
                _log.warning("replica is left out", pool=pool, replica=address, why=why)
            elif (pool, address) in self._known:
                _log.info("replica takes requests", pool=pool, replica=address)
        if len(changed) > _NAMED:
            _log.warning("further replicas changed", count=len(changed) - _NAMED)
        self._known = seen
