"""The gateway put together: core, transport, collector, registry, admin port; its start and its graceful stop."""

import asyncio
import secrets

import structlog
from prometheus_client import CollectorRegistry

from extproc.building import build_reader, build_steering, modes
from extproc.config import GatewaySettings
from extproc.io import clock, version_desk
from extproc.io.adapter_duty import AdapterDuty
from extproc.io.adapter_metrics import AdapterMetrics
from extproc.io.admin import Admin
from extproc.io.admission import LOOK, Admission
from extproc.io.admission_metrics import AdmissionMetrics
from extproc.io.beliefs import Beliefs
from extproc.io.endings import Endings
from extproc.io.exchanges import Exchanges
from extproc.io.explaining import explain
from extproc.io.factors import Factors
from extproc.io.health_metrics import HealthMetrics
from extproc.io.intake import Intake
from extproc.io.lives import Lives
from extproc.io.metrics import Metrics
from extproc.io.operator import OperatorDesk
from extproc.io.outcome_metrics import OutcomeMetrics
from extproc.io.page import build as live_page
from extproc.io.page.orders import Orders
from extproc.io.page.page import Page
from extproc.io.recorder import RecordDesk
from extproc.io.records import Records
from extproc.io.report_desk import ReportDesk
from extproc.io.scale_in_page import ScaleInPage
from extproc.io.snapshot import take
from extproc.io.state_page import StatePage
from extproc.io.tasks import Supervisor
from extproc.io.tracing import tracer_of
from extproc.io.transports import Transport, choice
from extproc.io.version_metrics import VersionMetrics
from extproc.io.waiting_metrics import WaitingMetrics
from extproc.io.waking import Waking
from extproc.members import Members
from extproc.together import Together

_log = structlog.get_logger("kvsteer")

#: Seconds between looks at warm-ups, breakers, back-offs and drains.
_TICK = 0.1
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
        self.tasks = Supervisor(lambda name: self.metrics.task_failures.labels(name).inc())
        self._stopping = False
        self.versions = version_desk.build(settings, self.steering)
        self.admission = self._admission()
        self._build_hot_path()
        self._build_fleet()
        self._build_admin()

    def _build_hot_path(self) -> None:
        """What a request passes through."""
        settings, pools = self.settings, self.steering.pools
        self.waking = Waking(self.steering.holding, clock.monotonic)
        outcomes = OutcomeMetrics(pools, self.prometheus)
        self.endings = Endings(self.steering, outcomes, self.records, logged=settings.envoy.access_log)
        self.endings.tracer = self.tracer = tracer_of(settings.tracing, self.gateway_id, self.prometheus)
        self.steering.traces = self.tracer.traces if self.tracer is not None else None
        waits = WaitingMetrics(self.steering.holding, self.prometheus)
        told = self.metrics, waits, self.records, self.endings
        self.reader = build_reader(settings, self.steering.rules, self.prometheus)
        self.exchanges = Exchanges(
            self.steering, *told, reader=self.reader, in_log=settings.log.requests, shared=self.shared
        )
        self.transport: Transport = choice.build(
            settings.grpc, settings.limits, self.exchanges.session, self.exchanges.logged, self.prometheus,
            large=self.steering.beside,
        )  # fmt: skip

    def _build_fleet(self) -> None:
        """Whom it steers to, and the gateways beside it."""
        settings, pools = self.settings, self.steering.pools
        self.intake = Intake(
            pools,
            modes(settings.pools),
            terminating=lambda pool, address: self.members.terminating(pool, address),
            on_lives=lambda: self.operator.enforce(),
            on_failure=lambda reason: self.metrics.scrape_failures.labels(reason).inc(),
        )
        self.together = Together(
            settings, self.steering, self.gateway_id, self.intake, self.metrics, self.prometheus,
            sync=lambda redis, ahead: self.operator.sync(redis, ahead),
            look=lambda redis: self.operator.look(redis),
            streams=lambda: self.exchanges.open,
        )  # fmt: skip
        sharing = self.together.sharing
        self.adapters = AdapterDuty(settings, pools, self.gateway_id, sharing, clock.monotonic)
        if settings.feedback.observer:
            alone = self.gateway_id, secrets.randbits(62)
            self.steering.identity = sharing.identity if sharing else alone
        self.members = Members(
            settings, pools, self.intake, sharing, self.metrics, lambda: self.operator.enforce()
        )
        redis = settings.redis
        self.operator = OperatorDesk(pools, redis.key_prefix, bool(redis.url), self.members.rosters)
        self.operator.push = self.together.push

    def _build_admin(self) -> None:
        """What people and Prometheus see, and who takes their orders."""
        settings, pools = self.settings, self.steering.pools
        self._build_metrics()
        self.page = self._page()
        self.orders = Orders(settings, (self.operator, self.versions), self.together.follow)
        self.admin = Admin(
            settings.admin.address,
            pools=pools,
            removed=self.operator.removed,
            records=self.records,
            registry=self.prometheus,
            readiness=self.not_ready,
            shared=self.shared,
            policies=self.together.policies,
            snapshot=lambda: take(self.steering, self.gateway_id, clock.wall(), clock.monotonic()),
            explain=lambda body, path: explain(self.steering, body, path, clock.monotonic()),
            max_body=settings.limits.body,
            clock=clock.monotonic,
            routes=[
                *self._reports().routes(),
                *self._state_page().routes(),
                *self.page.routes(),
                *self.orders.routes(),
                *ScaleInPage(pools).routes(),
                *RecordDesk(self.records, clock.monotonic).routes(),
            ],
            shared_why=lambda: self.together.why,
        )
        if self.together.registry is not None:
            self.records.shared = self.shared

    def _build_metrics(self) -> None:
        """Metrics that are read where they are asked for."""
        pools, has_redis = self.steering.pools, bool(self.settings.redis.url)
        VersionMetrics(self.steering, self.versions, self.prometheus)
        AdapterMetrics(pools, self.prometheus)
        AdmissionMetrics(self.admission, self.prometheus)
        HealthMetrics(pools, self.together.leases, has_redis, self.prometheus)
        self.metrics.open_streams.set_function(lambda: self.exchanges.open)
        self.metrics.redis_up.set_function(lambda: float(self.shared() == "ok"))

    # -- life ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin serving. Raises OSError when an address can't be had."""
        await self.together.first_orders()
        await self.versions.start(self.tasks)
        await self.admin.start()
        await self.transport.start()
        await self.members.start(self.tasks)
        self._start_tasks()
        await self.together.start(self.tasks)
        self.transport.set_ready(True)
        _log.info(
            "serving", gateway=self.gateway_id, grpc_port=self.transport.port, admin_port=self.admin.port
        )

    def _start_tasks(self) -> None:
        """What is done again and again, whatever comes."""
        every, pools = self.tasks.every, self.steering.pools
        lives, beliefs, factors = Lives(), Beliefs(), Factors()
        every("lives", _TICK, self._tick)
        every("told", 1.0, lambda: lives.look(pools, clock.monotonic()))
        every("factors", 1.0, lambda: factors.look(pools))
        every("beliefs", 1.0, lambda: beliefs.look(pools))
        every("endings", 1.0, lambda: self.endings.sweep(clock.monotonic()))
        every("page", 1.0, self.page.tick)
        every("sweep", _SWEEP, lambda: self.steering.expire(clock.monotonic()))
        self.adapters.start(self.tasks)
        if self.admission is not None:
            every("admission", self.admission.interval, self.admission.tick)
            every("loads", LOOK, self.admission.look)
        if self.tracer is not None:
            self.tasks.start("traces", self.tracer.run)

    async def stop(self) -> None:
        """NOT_SERVING, a pause in which Envoys notice, then every stream ends with OK; nobody is cut."""
        self._stopping = True
        self.transport.set_ready(False)
        self.waking.close()
        self.adapters.let_go()
        if self.admission is not None:
            self.admission.let_go()
        _log.info("draining", open_streams=self.exchanges.open)
        await asyncio.sleep(self.settings.grpc.drain_notice)
        await self.transport.stop(self.settings.grpc.drain)
        if self.reader is not None:
            await self.reader.close()
        await self.members.stop()
        await self.tasks.close()
        await self.adapters.close()
        if self.tracer is not None:
            await self.tracer.flush()
        if self.admission is not None:
            await self.admission.close()
        await self.together.close()
        await self.versions.close()
        await self.orders.close()
        self.page.close()
        await self.admin.stop()
        _log.info("stopped", open_charges=len(self.steering.ledger))

    def not_ready(self) -> str:
        """Why no new request should come here; "" when it may."""
        return "draining" if self._stopping else ""

    def shared(self) -> str:
        """How the shared state is: "off", "ok", "degraded"."""
        return self.together.state

    # -- its parts -------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = clock.monotonic()
        for pool in self.steering.pools:
            gone = pool.tick(now)
            for address in gone:
                self.operator.gone(pool, address)
            if gone:
                self.metrics.forget_replicas(pool.name, gone)
        self.operator.enforce()
        self.members.eds.look()

    def _admission(self) -> "Admission | None":
        if not self.settings.admission.is_on:
            return None
        return Admission(self.settings, self.steering, self.gateway_id, clock.monotonic)

    def _reports(self) -> ReportDesk:
        return ReportDesk(
            self.intake,
            self.settings.admin.report_token_file,
            clock.monotonic,
            lambda result: self.metrics.reports.labels("http", result).inc(),
        )

    def _page(self) -> Page:
        return live_page.build(
            self.gateway_id, self.steering, self.records, self.metrics,
            sharing=self.together.sharing, admission=self.admission, removed=self.operator.removed,
            shared=lambda: (self.shared(), self.together.why), streams=lambda: self.exchanges.open,
            takes_orders=bool(self.settings.admin.token_file),
        )  # fmt: skip

    def _state_page(self) -> StatePage:
        redis, sharing = self.settings.redis, self.together.sharing
        return StatePage(
            self.gateway_id,
            self.steering.pools,
            streams=lambda: self.exchanges.open,
            shared=lambda: (self.shared(), self.together.why),
            redis=redis.place.shown() if redis.url else "",
            leases=self.together.leases,
            journal=sharing.shown if sharing else None,
        )
