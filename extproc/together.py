"""What a gateway has of the others and gives them, all through Redis; without one, every part of it is missing."""

import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import structlog
from prometheus_client import CollectorRegistry

from extproc.building import takes_reports
from extproc.config import GatewaySettings
from extproc.core.steering import Steering
from extproc.io import clock
from extproc.io.intake import Intake
from extproc.io.metrics import Metrics
from extproc.io.tasks import Supervisor

if TYPE_CHECKING:
    from extproc.io.policy_follower import Follower
    from extproc.io.registry import Registry
    from extproc.io.report_reader import ReportReader
    from extproc.io.sharing import Sharing

# What talks to Redis is imported where it is made: a third of the time that a gateway without one takes to be back
# after it was killed.

_log = structlog.get_logger("kvsteer")

#: Seconds between looks at reports in Redis.
_REPORTS = 0.5
#: Seconds between looks at what operators asked of other gateways.
_ORDERS = 0.1


class Together:
    """The registry of gateways and replicas, the journal, the policies' versions, and reports left by replicas.

    Attributes:
        registry: None without Redis.
        sharing: the journal with its snapshot and leases; None without Redis, or with `redis.share: off`.
        follower: of the policies' versions; None without Redis.

    Args:
        sync: called at each beat with a client and by how many seconds Redis' clock is ahead of this one.
        look: called between beats with a client: what operators asked of others.
        streams: how many streams are open now.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        steering: Steering,
        gateway_id: str,
        intake: Intake,
        metrics: Metrics,
        prometheus: CollectorRegistry,
        *,
        sync: Callable[[Any, float], Awaitable[None]],
        look: Callable[[Any], Awaitable[None]],
        streams: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._steering = steering
        self._id = gateway_id
        self._metrics = metrics
        self._look = look
        self.sharing = self._make_sharing(intake, prometheus)
        self._readers = self._make_readers(intake)
        self.registry = self._make_registry(sync, streams)
        self.follower = self._make_follower()

    @property
    def state(self) -> str:
        """How the shared state is: "off", "ok", "degraded"."""
        if self.registry is None:
            return "off"
        degraded = self.registry.degraded or self._journal_lost or bool(self._refused)
        return "degraded" if degraded else "ok"

    @property
    def why(self) -> str:
        """Why it is degraded; "" when it is not, or before Redis was asked."""
        if self.registry is None:
            return ""
        lost = "the journal can't be read or written" if self._journal_lost else ""
        return self.registry.why or self._refused or lost

    @property
    def leases(self) -> Callable[[], list[dict[str, Any]]]:
        """What shows the leases and who holds them."""
        return self.sharing.leases.shown if self.sharing else list

    def policies(self) -> list[dict[str, Any]]:
        """Each pool's policy, its version, and where it is from."""
        if self.follower is not None:
            return self.follower.shown()
        from extproc.io.policy_follower import shown

        return [shown(pool) for pool in self._steering.pools]

    async def first_orders(self) -> None:
        """Policies and drains that were ordered while this gateway was not there hold before its first request."""
        if self.follower is None:
            return
        await self.follow()
        if self.follower.up:
            await self._beat()
        else:
            _log.warning("redis does not answer; starting with the policies of the configuration")

    async def start(self, tasks: Supervisor) -> None:
        """Begin to look, to beat and to share."""
        redis = self._settings.redis
        if self.registry is not None:
            tasks.every("registry", redis.heartbeat, self._beat)
            tasks.every("orders", _ORDERS, self.push)
        for name, reader in self._readers.items():
            tasks.every(f"reports {name}", _REPORTS, reader.look)
        if self.follower is not None:
            tasks.every("policies", self.follower.poll_every, self.follow)
        if self.sharing is not None:
            await self.sharing.start()

    async def close(self) -> None:
        """Say good-bye and close every connection; the tasks that use them have ended."""
        if self.sharing is not None:
            await self.sharing.stop()
        for reader in self._readers.values():
            await reader.close()
        if self.follower is not None:
            await self.follower.close()
        if self.registry is not None:
            await self.registry.close()

    async def push(self) -> None:
        """Look now at what operators asked of other gateways."""
        if self.registry is not None:
            await self.registry.look(self._look)

    async def follow(self) -> None:
        """Take up the policies' newest versions."""
        if self.follower is None:
            return
        errors = self.follower.errors
        await self.follower.poll()
        self._metrics.redis_errors.inc(self.follower.errors - errors)

    @property
    def _journal_lost(self) -> bool:
        return self.sharing is not None and self.sharing.state == "degraded"

    @property
    def _refused(self) -> str:
        """Which of leases, snapshots and policies Redis refuses, and why; "" for none."""
        shared = self.sharing.why if self.sharing is not None else ""
        return shared or (self.follower.trouble.why if self.follower is not None else "")

    async def _beat(self) -> None:
        assert self.registry is not None
        errors = self.registry.errors
        await self.registry.beat()
        self._metrics.redis_errors.inc(self.registry.errors - errors)

    def _make_sharing(self, intake: Intake, prometheus: CollectorRegistry) -> "Sharing | None":
        redis = self._settings.redis
        if not (redis.url and redis.share):
            return None
        from extproc.io.journal_metrics import JournalMetrics
        from extproc.io.sharing import Sharing

        made = Sharing(redis, self._steering, self._id, intake.scraped)
        made.shared.leavings.obey = intake.says
        made.on_task_failure = lambda name: self._metrics.task_failures.labels(name).inc()
        prometheus.register(JournalMetrics(made))
        return made

    def _make_readers(self, intake: Intake) -> "dict[str, ReportReader]":
        """Who reads the reports left in Redis, for pools that take reports."""
        redis = self._settings.redis
        names = [pool.name for pool in self._settings.pools if takes_reports(pool)]
        if not redis.url or not names:
            return {}
        from extproc.io.report_reader import ReportReader

        def count(result: str) -> None:
            self._metrics.reports.labels("redis", result).inc()

        return {name: ReportReader(redis, name, intake, clock.monotonic, count) for name in names}

    def _make_registry(
        self, sync: Callable[[Any, float], Awaitable[None]], streams: Callable[[], int]
    ) -> "Registry | None":
        redis, address = self._settings.redis, self._settings.grpc.address
        if not redis.url:
            return None
        from extproc.io.registry import Registry

        return Registry(redis, self._id, self._steering.pools, streams, sync, address=address)

    def _make_follower(self) -> "Follower | None":
        redis = self._settings.redis
        if not redis.url:
            return None
        from extproc.io.policy_follower import Follower
        from extproc.io.policy_store import VersionStore

        return Follower(
            VersionStore(redis),
            self._steering.pools,
            random.Random(),  # noqa: S311 - spreads ties, guards nothing
            gateway_id=self._id,
            heartbeat=redis.heartbeat,
            clock=clock.monotonic,
            on_refused=lambda pool: self._metrics.versions_refused.labels(pool).inc(),
        )
