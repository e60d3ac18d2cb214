"""Whether replicas tell the metric of their pool's factor (`pools[].factor`); a mistyped one would go unnoticed."""

from collections.abc import Sequence

import structlog

from extproc.core.pool import Pool

_log = structlog.get_logger("kvsteer.replicas")

#: Looks in a row with samples and without the metric before that is told: a sample may come before an engine's first.
_LOOKS = 10


def silent(pool: Pool) -> int:
    """Replicas that were heard and did not tell the metric; 0 where the pool names none."""
    if pool.traits.factor is None:
        return 0
    return sum(1 for replica in pool.replicas if replica.sample is not None and replica.sample.factor is None)


class Factors:
    """Logs, once until it is otherwise, that replicas don't tell the metric."""

    def __init__(self) -> None:
        self._looks: dict[str, int] = {}

    def look(self, pools: Sequence[Pool]) -> None:
        """Called about once a second."""
        for pool in pools:
            count = silent(pool)
            looks = self._looks[pool.name] = self._looks.get(pool.name, 0) + 1 if count else 0
            if looks == _LOOKS:
                _log.warning(
                    "replicas don't tell the metric of pools[].factor, and cost as configured; is its name right?",
                    pool=pool.name,
                    replicas=count,
                    of=len(pool.replicas),
                )
