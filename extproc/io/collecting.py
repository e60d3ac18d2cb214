"""A pool's collector: where its samples and failures go."""

from typing import TYPE_CHECKING

import structlog

from extproc.building import targets
from extproc.config import PoolSettings
from extproc.core.pool import Pool
from extproc.core.sample import Sample
from extproc.io import clock
from extproc.io.collector import Collector
from extproc.io.intake import Intake
from extproc.io.metrics import Metrics

if TYPE_CHECKING:
    from extproc.io.sharing import Sharing  # loads Redis' client, which not everybody needs

_log = structlog.get_logger("kvsteer")


def collector_of(
    settings: PoolSettings, pool: Pool, intake: Intake, sharing: "Sharing | None", metrics: Metrics
) -> Collector:
    """Scrapes a pool's replicas for this gateway, and for the others where gateways share."""
    duty = sharing.duty(pool.name, settings.metrics.interval) if sharing is not None else None

    def on_sample(address: str, sample: Sample) -> None:
        intake.scraped(pool, address, sample)
        if sharing is not None:
            sharing.sampled(pool, address, sample)

    def on_failure(address: str, reason: str) -> None:
        known = pool.get(address)
        if known is None:
            return  # an operator's deadline removed it; who stands in the file is scraped on
        if reason != known.unheard:
            _log.warning("scraping fails", pool=pool.name, replica=address, reason=reason)
        pool.failed(address, reason, clock.monotonic())
        if sharing is not None:
            sharing.scrape_failed(pool, address, reason)
        metrics.scrape_failures.labels(reason).inc()

    lease = duty or (lambda _pool, _address: True)
    collector = Collector(settings.metrics, on_sample, on_failure, clock.monotonic, lease=lease)
    collector.set_targets(targets(settings, {r.address: r.metrics for r in settings.replicas}))
    return collector
