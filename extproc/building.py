"""Settings made into parts: the core with its pools, whom to scrape, and who may report by itself."""

import random
import time
from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry

from extproc.config import GatewaySettings, PoolSettings, ReplicaSettings
from extproc.core.adapter_loads import Loading
from extproc.core.adapters import Adapters
from extproc.core.bias import Cold
from extproc.core.dialects import Limits
from extproc.core.domains import Domains
from extproc.core.handover import Handover, HandoverRules
from extproc.core.headroom import Weights
from extproc.core.mirror import Mirror
from extproc.core.pool import Pool
from extproc.core.ranks import Ranks
from extproc.core.replies import wait_for
from extproc.core.shadow import Shadow
from extproc.core.steering import Rules, Steering
from extproc.core.traits import Traits
from extproc.core.waiting import RoomSettings, WaitingRoom
from extproc.envoyconfig.names import pool_cluster
from extproc.io.collector import Target
from extproc.io.intake import Modes
from extproc.io.reading.metrics import ReadingMetrics
from extproc.io.reading.reader import Reader

#: Replicas a pool's index is divided among where they are discovered and their number is not known beforehand.
_FLEET = 16

#: Of these Envoy's ai_protocol_manager reads no usage: it goes by the answer's `object`, and knows "chat.completion"
#: and its chunks, not "text_completion" (seen with Envoy 1.40).
_UNREAD = frozenset({"openai_completions"})


def build_steering(settings: GatewaySettings, now: float) -> Steering:
    """The core for a configuration, its replicas joined."""
    feedback = settings.feedback
    distrust = None if feedback.source == "off" else feedback.distrust
    pools = [_build_pool(pool, distrust, now) for pool in settings.pools]
    limits = settings.limits
    rules = Rules(
        unreadable_passes=settings.requests.unreadable == "pass",
        unknown_model_passes=settings.requests.unknown_model == "pass",
        lists_models=settings.lists_models,
        fallbacks=settings.requests.fallbacks,
        tries=1 + settings.envoy.retries if settings.requests.fallbacks else 1,  # else one address is wanted
        body=limits.body,
        expanded_body=limits.expanded_body,
        beside=settings.reading.above,
        bodies=limits.bodies,
        response_body=feedback.body_limit,
        include_usage=feedback.include_usage,
        unread=_UNREAD if feedback.source in ("trailers", "access_log") else frozenset(),
        spares_log=settings.spares_log,
        test_selection=settings.requests.test_selection,
        limits=Limits(
            max_depth=limits.depth,
            max_parts=limits.parts,
            max_members=limits.members,
            aliases=settings.aliases,
            roots=any(pool.version or pool.ranks.enabled for pool in settings.pools),
        ),
    )
    routes = [pool.route for pool in settings.pools]
    steering = Steering(pools, rules, random.Random(), routes)  # noqa: S311 - spreads ties, guards nothing
    steering.catalog.since = int(time.time())
    steering.patience = wait_for(settings.longest_answer + settings.envoy.message_timeout)
    for pool, chosen in zip(pools, settings.pools, strict=True):
        if chosen.late_binding.enabled:
            _furnish(steering, pool, chosen, settings)
        if pool.adapters is not None and pool.adapters.loading is not None:
            patience = chosen.adapters.loading.wait + settings.envoy.message_timeout
            pool.adapters.loading.patience = wait_for(patience)
    return steering


def _furnish(steering: Steering, pool: Pool, settings: PoolSettings, whole: GatewaySettings) -> None:
    """Give a pool a waiting room."""
    late, interval = settings.late_binding, settings.metrics.interval
    room = RoomSettings(
        theta=late.theta(observer=whole.feedback.observer, interval=interval),
        cap=late.longest_wait,
        requests=late.requests,
    )
    steering.holding.furnish(WaitingRoom(pool, room), late.bytes, whole.envoy.message_timeout)


def _build_pool(settings: PoolSettings, distrust: float | None, now: float) -> Pool:
    headroom, capacity = settings.headroom, settings.capacity
    traits = Traits(
        prefill_speed=capacity.prefill_speed,
        decode_speed=capacity.decode_speed,
        max_running=capacity.max_running,
        kv_tokens=capacity.kv_tokens,
        output_tokens=capacity.output_tokens,
        stale_after=settings.metrics.stale_after if settings.metrics.enabled else float("inf"),
        kv_ceiling=headroom.kv_ceiling,
        floor=headroom.floor,
        weights=Weights(
            kv=headroom.kv_weight,
            running=headroom.running_weight,
            waiting=headroom.waiting_weight,
            window=headroom.window,
            horizon=headroom.forecast,
            shift=headroom.length_shift,
        ),
        cold=Cold(favour=settings.cold.favour, span=settings.cold.span),
        costs=settings.costs,
        factor=settings.factor.rule,
    )
    pool = Pool(
        settings.name,
        models=settings.models,
        policy=settings.policy.name,
        policy_settings=settings.policy.settings,
        traits=traits,
        ttl=settings.index.ttl,
        max_entries=settings.index.entries
        // max(len(settings.replicas), _FLEET if settings.discovery.any else 1),
        distrust=distrust,
        now=now,
    )
    pool.domains = Domains(settings.domains)
    if settings.mirror.share:
        pool.mirror = Mirror(pool_cluster(settings.mirror.pool), settings.mirror.share)
    if settings.adapters.enabled:
        pool.adapters = Adapters(settings.adapters.rules(settings.models))
        if settings.adapters.loads:
            pool.adapters.loading = Loading(pool.adapters, settings.adapters.loading.rules, now)
    if settings.prefill.enabled:
        pool.handover = _build_handover(settings)
    if settings.ranks.enabled:
        pool.ranks = Ranks(settings.ranks.header, settings.ranks.few)
    pool.tells_asked = settings.answer_model == "asked"
    pool.renames, pool.version = settings.served_as, settings.version
    if settings.shadow.name:
        rng = random.Random()  # noqa: S311 - as above
        shadow = Shadow(settings.shadow.name, settings.shadow.settings, rng)
        pool.adopt(settings.policy.name, settings.policy.settings, shadow)
    if not settings.discovery.any:
        with pool.at_once():
            for replica in settings.replicas:
                pool.join(replica.address, now)
    return pool


def _build_handover(settings: PoolSettings) -> Handover:
    prefill = settings.prefill
    rules = HandoverRules(
        least=prefill.least,
        transfer=prefill.transfer_speed,
        stall=prefill.stall,
        header=prefill.header,
        decode_header=prefill.decode_header,
        as_url=prefill.form == "url",
        label=prefill.role_label,
    )
    return Handover(rules, settings.roles)


def build_reader(settings: GatewaySettings, rules: Rules, registry: CollectorRegistry) -> Reader | None:
    """Who reads large bodies, and tells `registry`; None where the gateway itself does."""
    reading = settings.reading
    if not settings.reads_beside:
        return None
    made = Reader(
        rules.limits,
        rules.expanded_body,
        patience=reading.patience,
        room=reading.waiting,
        renamed={model for pool in settings.pools for model in pool.served_as},
    )
    registry.register(ReadingMetrics(made))
    return made


def targets(pool: PoolSettings, metrics: Mapping[str, str]) -> dict[str, Target]:
    """Whom to scrape, of these addresses with their metrics' URLs ("" for the usual one)."""
    pushed = {r.address for r in pool.replicas if _mode(pool, r) == "push"}
    listed = {r.address for r in pool.replicas}
    return {
        address: Target(url=url or f"http://{address}{pool.metrics.path}", engine=pool.reader, pool=pool.name)
        for address, url in metrics.items()
        if address not in pushed and (address in listed or pool.telemetry != "push")
    }


def modes(pools: Sequence[PoolSettings]) -> Modes:
    """How each replica's state is learned: as its own entry says, else as its pool does."""
    usual = {pool.name: pool.telemetry for pool in pools}
    listed = {(pool.name, r.address): _mode(pool, r) for pool in pools for r in pool.replicas}

    def mode(pool: str, address: str) -> str:
        return listed.get((pool, address)) or usual.get(pool, "pull")

    return mode


def takes_reports(pool: PoolSettings) -> bool:
    """Whether any replica of a pool may report by itself."""
    return pool.telemetry != "pull" or any(_mode(pool, replica) != "pull" for replica in pool.replicas)


def _mode(pool: PoolSettings, replica: ReplicaSettings) -> str:
    return pool.telemetry if replica.telemetry == "pool" else replica.telemetry
