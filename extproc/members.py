"""Who belongs to a gateway's pools, from its configuration or as discovery finds it, and who scrapes them."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from extproc.building import targets
from extproc.config import GatewaySettings, PoolSettings
from extproc.core.pool import Pool
from extproc.io.collecting import collector_of
from extproc.io.eds_files import EdsFiles
from extproc.io.intake import Intake
from extproc.io.metrics import Metrics
from extproc.io.roster import FixedRoster, Roster
from extproc.io.tasks import Supervisor

if TYPE_CHECKING:  # what only discovery and Redis need is loaded where it is made
    from extproc.io.following import PoolFollower
    from extproc.io.sharing import Sharing


class Members:
    """The replicas of every pool.

    Attributes:
        rosters: who takes a replica out of a pool and puts it back, by pool.
        eds: the files by which Envoy knows them.

    Args:
        pools: of the core, in the settings' order.
        enforce: called when a pool's members changed: orders hold for who is new as well.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        pools: list[Pool],
        intake: Intake,
        sharing: "Sharing | None",
        metrics: Metrics,
        enforce: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._enforce = enforce
        listed = {chosen.name for chosen in settings.pools if not chosen.discovery.any}
        self.eds = EdsFiles(settings.envoy.eds_dir, pools, listed)
        self._collectors = {
            chosen.name: collector_of(chosen, pool, intake, sharing, metrics)
            for chosen, pool in zip(settings.pools, pools, strict=True)
            if chosen.metrics.enabled
        }
        self._followers = {
            chosen.name: self._follow(chosen, pool)
            for chosen, pool in zip(settings.pools, pools, strict=True)
            if chosen.discovery.any
        }
        self.rosters: dict[str, Roster] = {
            pool.name: self._followers.get(pool.name) or self._fixed(pool) for pool in pools
        }

    def terminating(self, pool: str, address: str) -> bool:
        """Whether discovery says that a replica runs out."""
        return pool in self._followers and self._followers[pool].terminating(address)

    async def start(self, tasks: Supervisor) -> None:
        """Begin to scrape, and know who belongs to discovered pools as far as their sources answer."""
        self.eds.write()
        self.eds.start(tasks)
        for collector in self._collectors.values():
            await collector.start()
        await asyncio.gather(*(follower.start(tasks) for follower in self._followers.values()))

    async def stop(self) -> None:
        """Scrape no more. Sources are followed by tasks, which end with these."""
        for collector in self._collectors.values():
            await collector.stop()

    def _fixed(self, pool: Pool) -> FixedRoster:
        addresses = [replica.address for replica in pool.replicas]
        return FixedRoster(pool, addresses, lambda left: self._metrics.forget_replicas(pool.name, (left,)))

    def _follow(self, settings: PoolSettings, pool: Pool) -> "PoolFollower":
        from extproc.io.discovery.build import build
        from extproc.io.following import PoolFollower

        collector = self._collectors.get(settings.name)

        def on_members(members: dict[str, str]) -> None:
            if collector is not None:
                collector.set_targets(targets(settings, members))
            self._enforce()
            self.eds.found(pool.name)

        return PoolFollower(
            pool,
            build(settings, self._settings),
            grace=settings.discovery.grace,
            limit=settings.discovery.limit,
            on_members=on_members,
            on_left=lambda left: self._metrics.forget_replicas(settings.name, left),
            domain_label=settings.retries.domain_label,
        )
