"""The gateway put together: core, transport, collector, registry, admin port; its start and its graceful stop."""

import asyncio
import random
import secrets
from typing import TYPE_CHECKING, Any

import structlog
from prometheus_client import CollectorRegistry

from extproc.building import build_reader, build_steering, modes, takes_reports, targets
from extproc.config import GatewaySettings, PoolSettings
from extproc.core.pool import Pool
from extproc.envoyconfig import eds_document, write_eds
from extproc.io import adapter_lists, clock, version_desk
from extproc.io.adapter_metrics import AdapterMetrics
from extproc.io.admin import Admin
from extproc.io.admission import LOOK, Admission
from extproc.io.admission_metrics import AdmissionMetrics
from extproc.io.beliefs import Beliefs
from extproc.io.collecting import collector_of
from extproc.io.endings import Endings
from extproc.io.exchanges import Exchanges
from extproc.io.explaining import explain
from extproc.io.health_metrics import HealthMetrics
from extproc.io.intake import Intake
from extproc.io.lives import Lives
from extproc.io.metrics import Metrics
from extproc.io.operator import OperatorDesk
from extproc.io.outcome_metrics import OutcomeMetrics
from extproc.io.page import build as live_page
from extproc.io.page.orders import Orders
from extproc.io.recorder import RecordDesk
from extproc.io.records import Records
from extproc.io.report_desk import ReportDesk
from extproc.io.roster import FixedRoster, Roster
from extproc.io.scale_in_page import ScaleInPage
from extproc.io.snapshot import take
from extproc.io.state_page import StatePage
from extproc.io.tasks import Supervisor
from extproc.io.tracing import tracer_of
from extproc.io.transports import Transport, choice
from extproc.io.version_metrics import VersionMetrics
from extproc.io.waiting_metrics import WaitingMetrics
from extproc.io.waking import Waking

if TYPE_CHECKING:
    from extproc.io.following import PoolFollower
    from extproc.io.policy_follower import Follower
    from extproc.io.registry import Registry
    from extproc.io.report_reader import ReportReader
    from extproc.io.sharing import Sharing

# What only some configurations need (Redis, discovery) is imported where it is made: a third of the time that a
# gateway takes to be back after it was killed.

_log = structlog.get_logger("kvsteer")

#: Seconds between looks at warm-ups, breakers, back-offs and drains.
_TICK = 0.1
#: Seconds between looks at reports in Redis.
_REPORTS = 0.5
#: Seconds between looks at what operators asked of other gateways.
_ORDERS = 0.1
#: Seconds between sweeps of what is too old in the prefix index.
_SWEEP = 5.0


class Gateway:
    """One gateway process."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self.gateway_id = settings.gateway_id or f"gw-{secrets.token_hex(4)}"
        self.steering = build_steering(settings, clock.monotonic())
        self.records = Records(settings.admin.decisions)
        self.prometheus = CollectorRegistry()
        self.metrics = Metrics(self.steering, self.prometheus)
        self.waking = Waking(self.steering.holding, clock.monotonic)
        self.endings = Endings(
            self.steering,
            OutcomeMetrics(self.steering.pools, self.prometheus),
            self.records,
            logged=settings.envoy.access_log,
        )
        self.endings.tracer = self.tracer = tracer_of(settings.tracing, self.gateway_id, self.prometheus)
        self.versions = version_desk.build(settings, self.steering)
        VersionMetrics(self.steering, self.versions, self.prometheus)
        AdapterMetrics(self.steering.pools, self.prometheus)
        self.admission = self._admission()
        AdmissionMetrics(self.admission, self.prometheus)
        self.tasks = Supervisor(lambda name: self.metrics.task_failures.labels(name).inc())
        waits = WaitingMetrics(self.steering.holding, self.prometheus)
        told = self.metrics, waits, self.records, self.endings
        self.reader = build_reader(settings, self.steering.rules, self.prometheus)
        self.exchanges = Exchanges(
            self.steering, *told, reader=self.reader, in_log=settings.log.requests, shared=self.shared
        )
        self._stopping = False
        self.intake = self._intake()
        self.sharing = self._sharing()
        leases = self.sharing.leases.shown if self.sharing else list
        HealthMetrics(self.steering.pools, leases, bool(settings.redis.url), self.prometheus)
        if settings.feedback.observer:
            alone = self.gateway_id, secrets.randbits(62)
            self.steering.identity = self.sharing.identity if self.sharing else alone
        self._collectors = {
            chosen.name: collector_of(chosen, pool, self.intake, self.sharing, self.metrics)
            for chosen, pool in zip(settings.pools, self.steering.pools, strict=True)
            if chosen.metrics.enabled
        }
        self._followers = {
            pool.name: self._follow_sources(pool) for pool in settings.pools if pool.discovery.any
        }
        self.operator = OperatorDesk(
            self.steering.pools,
            settings.redis.key_prefix,
            bool(settings.redis.url),
            {pool.name: self._roster(pool) for pool in self.steering.pools},
        )
        self.reports = ReportDesk(
            self.intake,
            settings.admin.report_token_file,
            clock.monotonic,
            lambda result: self.metrics.reports.labels("http", result).inc(),
        )
        self._readers = self._report_readers()
        self.registry = self._registry()
        if self.registry is not None:
            registry = self.registry
            self.operator.push = lambda: registry.look(self.operator.look)
        self.follower = self._follower()
        self.transport: Transport = choice.build(
            settings.grpc, settings.limits, self.exchanges.session, self.exchanges.logged, self.prometheus,
            large=self.steering.beside,
        )  # fmt: skip
        self.page = live_page.build(
            self.gateway_id, self.steering, self.records, self.metrics,
            sharing=self.sharing, admission=self.admission, removed=self.operator.removed,
            shared=lambda: (self.shared(), self.shared_why()), streams=lambda: self.exchanges.open,
            takes_orders=bool(settings.admin.token_file),
        )  # fmt: skip
        self.orders = Orders(settings, (self.operator, self.versions), self._follow)
        scale_in = ScaleInPage(self.steering.pools)
        record = RecordDesk(self.records, clock.monotonic)
        desks = self.reports, self._state_page(), self.page, self.orders, scale_in, record
        self.admin = Admin(
            settings.admin.address,
            pools=self.steering.pools,
            removed=self.operator.removed,
            records=self.records,
            registry=self.prometheus,
            readiness=self.not_ready,
            shared=self.shared,
            policies=self.policies,
            snapshot=lambda: take(self.steering, self.gateway_id, clock.wall(), clock.monotonic()),
            explain=lambda body, path: explain(self.steering, body, path, clock.monotonic()),
            max_body=settings.limits.body,
            clock=clock.monotonic,
            routes=[route for desk in desks for route in desk.routes()],
            shared_why=self.shared_why,
        )
        self.metrics.open_streams.set_function(lambda: self.exchanges.open)
        self.metrics.redis_up.set_function(lambda: float(self.shared() == "ok"))
        self.records.shared = self.shared

    # -- life ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin serving. Raises OSError when an address can't be had."""
        await self._first_orders()
        await self.versions.start(self.tasks)
        await self.admin.start()
        await self.transport.start()
        self.write_eds()
        for collector in self._collectors.values():
            await collector.start()
        await asyncio.gather(*(follower.start(self.tasks) for follower in self._followers.values()))
        self.tasks.every("lives", _TICK, self._tick)
        lives, beliefs = Lives(), Beliefs()
        self.tasks.every("told", 1.0, lambda: lives.look(self.steering.pools, clock.monotonic()))
        self.tasks.every("beliefs", 1.0, lambda: beliefs.look(self.steering.pools))
        self.tasks.every("endings", 1.0, lambda: self.endings.sweep(clock.monotonic()))
        self.tasks.every("page", 1.0, self.page.tick)
        self.tasks.every("sweep", _SWEEP, lambda: self.steering.expire(clock.monotonic()))
        asked = [pool.adapters.ask for pool in self.settings.pools]
        for name, seconds, lists in adapter_lists.build(self.steering.pools, asked):
            self.tasks.every(name, seconds, lists.look)
        if self.registry is not None:
            self.tasks.every("registry", self.settings.redis.heartbeat, self._beat)
            self.tasks.every("orders", _ORDERS, self.operator.push)
        for name, reader in self._readers.items():
            self.tasks.every(f"reports {name}", _REPORTS, reader.look)
        if self.follower is not None:
            self.tasks.every("policies", self.follower.poll_every, self._follow)
        if self.sharing is not None:
            await self.sharing.start()
        if self.admission is not None:
            self.tasks.every("admission", self.admission.interval, self.admission.tick)
            self.tasks.every("loads", LOOK, self.admission.look)
        if self.tracer is not None:
            self.tasks.start("traces", self.tracer.run)
        self.transport.set_ready(True)
        _log.info(
            "serving", gateway=self.gateway_id, grpc_port=self.transport.port, admin_port=self.admin.port
        )

    async def stop(self) -> None:
        """NOT_SERVING, a pause in which Envoys notice, then every stream ends with OK; nobody is cut."""
        self._stopping = True
        self.transport.set_ready(False)
        self.waking.close()
        if self.admission is not None:
            self.admission.let_go()
        _log.info("draining", open_streams=self.exchanges.open)
        await asyncio.sleep(self.settings.grpc.drain_notice)
        await self.transport.stop(self.settings.grpc.drain)
        if self.reader is not None:
            await self.reader.close()
        for collector in self._collectors.values():
            await collector.stop()
        await self.tasks.close()
        if self.tracer is not None:
            await self.tracer.flush()
        if self.admission is not None:
            await self.admission.close()
        if self.sharing is not None:
            await self.sharing.stop()
        for reader in self._readers.values():
            await reader.close()
        if self.follower is not None:
            await self.follower.close()
        if self.registry is not None:
            await self.registry.close()
        await self.versions.close()
        await self.orders.close()
        self.page.close()
        await self.admin.stop()
        _log.info("stopped", open_charges=len(self.steering.ledger))

    # -- state -----------------------------------------------------------------------------------------

    def not_ready(self) -> str:
        """Why no new request should come here; "" when it may."""
        return "draining" if self._stopping else ""

    def shared(self) -> str:
        """How the shared state is: "off", "ok", "degraded"."""
        if self.registry is None:
            return "off"
        lost = self.sharing is not None and self.sharing.state == "degraded"
        degraded = self.registry.degraded or lost or bool(self._refused_why())
        return "degraded" if degraded else "ok"

    def shared_why(self) -> str:
        """Why the shared state is degraded; "" when it is not, or before Redis was asked."""
        if self.registry is None:
            return ""
        lost = self.sharing is not None and self.sharing.state == "degraded"
        return (
            self.registry.why
            or self._refused_why()
            or ("the journal can't be read or written" if lost else "")
        )

    def _refused_why(self) -> str:
        """Which of leases, snapshots and policies Redis refuses, and why; "" for none."""
        shared = self.sharing.why if self.sharing is not None else ""
        return shared or (self.follower.trouble.why if self.follower is not None else "")

    def policies(self) -> list[dict[str, Any]]:
        """Each pool's policy, its version, and where it is from."""
        if self.follower is None:
            from extproc.io.policy_follower import shown

            return [shown(pool) for pool in self.steering.pools]
        return self.follower.shown()

    def write_eds(self) -> None:
        """Write each pool's EDS file where the settings name a folder; Envoy follows the rename."""
        if self.settings.envoy.eds_dir:
            for pool in self.settings.pools:
                if pool.discovery.any:
                    continue  # its follower writes it
                write_eds(self.settings.envoy.eds_dir, pool.name, eds_document(pool))

    # -- what the parts call ---------------------------------------------------------------------------

    def _tick(self) -> None:
        now = clock.monotonic()
        for pool in self.steering.pools:
            gone = pool.tick(now)
            for address in gone:
                self.operator.gone(pool, address)
            if gone:
                self.metrics.forget_replicas(pool.name, gone)
        self.operator.enforce()

    async def _beat(self) -> None:
        assert self.registry is not None
        errors = self.registry.errors
        await self.registry.beat()
        self.metrics.redis_errors.inc(self.registry.errors - errors)

    async def _first_orders(self) -> None:
        """Policies and drains that were ordered while this gateway was not there hold before its first request."""
        if self.follower is None:
            return
        await self._follow()
        if self.follower.up:
            await self._beat()
        else:
            _log.warning("redis does not answer; starting with the policies of the configuration")

    async def _follow(self) -> None:
        if self.follower is None:
            return
        errors = self.follower.errors
        await self.follower.poll()
        self.metrics.redis_errors.inc(self.follower.errors - errors)

    def _follower(self) -> "Follower | None":
        if not self.settings.redis.url:
            return None
        from extproc.io.policy_follower import Follower
        from extproc.io.policy_store import VersionStore

        return Follower(
            VersionStore(self.settings.redis),
            self.steering.pools,
            random.Random(),  # noqa: S311 - spreads ties, guards nothing
            gateway_id=self.gateway_id,
            heartbeat=self.settings.redis.heartbeat,
            clock=clock.monotonic,
            on_refused=lambda pool: self.metrics.versions_refused.labels(pool).inc(),
        )

    def _admission(self) -> "Admission | None":
        if not self.settings.admission.is_on:
            return None
        return Admission(self.settings, self.steering, self.gateway_id, clock.monotonic)

    def _registry(self) -> "Registry | None":
        if not self.settings.redis.url:
            return None
        from extproc.io.registry import Registry

        return Registry(
            self.settings.redis,
            self.gateway_id,
            self.steering.pools,
            lambda: self.exchanges.open,
            self.operator.sync,
            address=self.settings.grpc.address,
        )

    def _state_page(self) -> StatePage:
        redis = self.settings.redis
        return StatePage(
            self.gateway_id,
            self.steering.pools,
            streams=lambda: self.exchanges.open,
            shared=lambda: (self.shared(), self.shared_why()),
            redis=redis.place.shown() if redis.url else "",
            leases=self.sharing.leases.shown if self.sharing else list,
            journal=self.sharing.shown if self.sharing else None,
        )

    def _sharing(self) -> "Sharing | None":
        if not (self.settings.redis.url and self.settings.redis.share):
            return None
        from extproc.io.journal_metrics import JournalMetrics
        from extproc.io.sharing import Sharing

        made = Sharing(self.settings.redis, self.steering, self.gateway_id, self.intake.scraped)
        made.shared.leavings.obey = self.intake.says
        made.on_task_failure = lambda name: self.metrics.task_failures.labels(name).inc()
        self.prometheus.register(JournalMetrics(made))
        return made

    def _intake(self) -> Intake:
        return Intake(
            self.steering.pools,
            modes(self.settings.pools),
            terminating=lambda pool, address: (
                pool in self._followers and self._followers[pool].terminating(address)
            ),
            on_lives=lambda: self.operator.enforce(),
            on_failure=lambda reason: self.metrics.scrape_failures.labels(reason).inc(),
        )

    def _report_readers(self) -> "dict[str, ReportReader]":
        """Who reads the reports left in Redis, for pools that take reports."""
        names = [pool.name for pool in self.settings.pools if takes_reports(pool)]
        if not self.settings.redis.url or not names:
            return {}
        from extproc.io.report_reader import ReportReader

        def count(result: str) -> None:
            self.metrics.reports.labels("redis", result).inc()

        return {
            name: ReportReader(self.settings.redis, name, self.intake, clock.monotonic, count)
            for name in names
        }

    def _roster(self, pool: Pool) -> Roster:
        if pool.name in self._followers:
            return self._followers[pool.name]
        addresses = [replica.address for replica in pool.replicas]
        return FixedRoster(pool, addresses, lambda left: self.metrics.forget_replicas(pool.name, (left,)))

    def _follow_sources(self, settings: PoolSettings) -> "PoolFollower":
        from extproc.io.discovery.build import build
        from extproc.io.following import PoolFollower

        pool = next(pool for pool in self.steering.pools if pool.name == settings.name)
        collector = self._collectors.get(settings.name)

        def on_members(members: dict[str, str]) -> None:
            if collector is not None:
                collector.set_targets(targets(settings, members))
            self.operator.enforce()

        return PoolFollower(
            pool,
            build(settings, self.settings),
            grace=settings.discovery.grace,
            limit=settings.discovery.limit,
            on_members=on_members,
            on_left=lambda left: self.metrics.forget_replicas(settings.name, left),
            eds_dir=self.settings.envoy.eds_dir,
            domain_label=settings.retries.domain_label,
        )
