"""Keeps a gateway's pools on the newest version of their policy settings (io/policy_store.py).

One GET each poll; only when something changed anywhere are the pools' newest versions read. What can't be used, or
Redis gone, leaves everything as it is. Once a heartbeat it is looked whether they still stand there: what was
deleted, evicted or written over is written again by whoever uses it, and told by who knows nothing of it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import structlog
from redis.exceptions import RedisError

from extproc.core.policies.base import Rng
from extproc.core.pool import Pool
from extproc.core.shadow import Shadow
from extproc.io.policy_store import Newest, VersionStore
from extproc.io.policy_versions import BadVersion, Version, pointed, read_version
from extproc.io.redis_check import AtKey, Trouble

_log = structlog.get_logger("kvsteer.policies")

#: Seconds between polls, so that a change is in effect within a second.
POLL = 0.5
#: Reports are refreshed this often, in heartbeats, and live as long as the registry's entries.
_TTL_BEATS = 10


class Refusal(NamedTuple):
    """A version that can't be used, and why; number and time are 0 when even these can't be read."""

    version: int
    when: float
    reason: str


class Follower:
    """Polls, and makes pools adopt what it finds.

    Args:
        store: where versions are; closed by `close`.
        pools: of this gateway.
        rng: for shadow policies.
        gateway_id: who reports.
        heartbeat: seconds between reports while nothing changes.
        clock: seconds, monotonic.
        on_refused: called with a pool's name for each version that can't be used.

    Attributes:
        up: whether the last poll reached Redis; None before the first.
        errors: polls that did not.
        trouble: whether Redis refuses polls again and again.
    """

    #: Seconds between polls.
    poll_every = POLL

    def __init__(
        self,
        store: VersionStore,
        pools: list[Pool],
        rng: Rng,
        *,
        gateway_id: str,
        heartbeat: float,
        clock: Callable[[], float],
        on_refused: Callable[[str], None],
    ) -> None:
        self._store = store
        self._pools = pools
        self._rng = rng
        self._id = gateway_id
        self._heartbeat = heartbeat
        self._clock = clock
        self._on_refused = on_refused
        self._seen: bytes | None = None
        self._told_at = self._looked_at = -float("inf")
        self._active: dict[str, Version] = {}
        #: Of the same, as they stand in Redis.
        self._texts: dict[str, bytes] = {}
        self._refused: dict[str, Refusal] = {}
        #: The pool whose versions are gone though the last change was there, and not known here; "" for none.
        self._lost = ""
        self.up: bool | None = None
        self.errors = 0
        self.trouble = Trouble("policies")

    async def poll(self) -> None:
        """Look for news and adopt them. Never raises for Redis' sake."""
        try:
            revision = await self._store.revision()
            # None after there was one: somebody emptied Redis. That is no decision about policies.
            is_lost = revision is None and bool(self._active)
            if is_lost or revision != self._seen:
                await self._catch_up_all({pool.name for pool in self._pools}, is_lost)
                self._seen = revision
                self._told_at = -float("inf")
            if self._clock() - self._told_at >= self._heartbeat:
                await self._store.report(self._id, self._report(), self._heartbeat * _TTL_BEATS)
                self._told_at = self._clock()
            if self._clock() - self._looked_at >= self._heartbeat:
                await self._look(revision)
            self.up = True
        except (RedisError, OSError, TimeoutError) as error:
            self.errors += 1
            self.up = False
            self.trouble.failed(error)
        else:
            self._tell_lost()

    async def close(self) -> None:
        """Close the connections."""
        await self._store.close()

    def shown(self) -> list[dict[str, Any]]:
        """Each pool's policy, its version, and where it is from, ready for JSON."""
        return [
            shown(pool, self._active.get(pool.name), self._refused.get(pool.name)) for pool in self._pools
        ]

    async def _look(self, revision: bytes | None) -> None:
        """See whether versions still stand as they did, and catch up with those that don't."""
        found = await self._store.glance({pool.name: pool.policy_version for pool in self._pools})
        changed = {name for name, said in found.items() if not self._is_as_known(name, said)}
        await self._catch_up_all(changed, is_lost=False)
        newest = (revision or b"").rpartition(b":")[0].decode("utf-8", "replace")
        self._lost = newest if newest in found and found[newest] == Newest(None, None) else ""
        self._lost = "" if self._lost in self._active else self._lost
        self._looked_at = self._clock()

    def _is_as_known(self, name: str, said: Newest | AtKey) -> bool:
        held = self._active.get(name)
        if isinstance(said, AtKey):
            return False
        if held is None:
            return said.pointer is None
        return said == Newest(b"%d" % held.number, self._texts.get(name))

    def _tell_lost(self) -> None:
        """Polls work; versions that nobody here knows are missing, or they are not."""
        if self._lost:
            self.trouble.failed(self._store.lost(self._lost))
        else:
            self.trouble.works()

    async def _catch_up_all(self, names: set[str], is_lost: bool) -> None:
        """Catch up with these pools; one whose key can't be used holds up no other."""
        fault: AtKey | None = None
        for pool in (pool for pool in self._pools if pool.name in names):
            try:
                await self._catch_up(pool, is_lost)
            except AtKey as error:
                fault = fault or error
        if fault is not None:
            raise fault

    async def _catch_up(self, pool: Pool, is_lost: bool) -> None:
        """Adopt what stands there, or write what is in use here where Redis lost it.

        `is_lost`: it lost at least which change was the newest of all pools.
        """
        newest, held = await self._store.newest(pool.name), self._active.get(pool.name)
        try:
            version = _version_of(newest)
        except BadVersion as error:
            number = pointed(newest.pointer or b"")
            if held is not None and 0 < number <= held.number:  # it was there: we use it, or one after it
                await self._put_back(pool, newest, held)
            else:
                self._refuse(pool, Refusal(number, 0.0, str(error)))
            return
        if version is None:
            if held is not None:
                await self._put_back(pool, newest, held)
            return
        if held is not None and version.number < held.number and version.at < held.at:
            await self._put_back(pool, newest, held)
            return
        if held is None or (held.number, held.at) != (version.number, version.at):
            self._adopt(pool, version)
        if self._active.get(pool.name) == version:
            self._texts[pool.name] = newest.text or b""
        if is_lost:
            await self._store.put_back(pool.name, version, newest.pointer)

    async def _put_back(self, pool: Pool, there: Newest, held: Version) -> None:
        """What Redis has is nothing, older or unreadable: the version in use here is written there again."""
        if await self._store.put_back(pool.name, held, there.pointer):
            _log.warning(
                "redis lost the policy version in use; it is kept and written again",
                pool=pool.name,
                version=pointed(there.pointer or b""),
                kept=held.number,
            )

    def _adopt(self, pool: Pool, version: Version) -> None:
        policy, shadow = version.chosen.policy, version.chosen.shadow
        try:
            pool.adopt(policy.name, policy.settings, self._shadow(pool, version), version.number)
        except (ValueError, TypeError) as error:
            self._refuse(pool, Refusal(version.number, version.at, str(error)))
            return
        self._active[pool.name] = version
        self._refused.pop(pool.name, None)
        _log.info(
            "policy taken from redis",
            pool=pool.name,
            version=version.number,
            policy=policy.name,
            shadow=shadow.name or None,
            who=version.who,
            why=version.why,
        )

    def _shadow(self, pool: Pool, version: Version) -> Shadow | None:
        """The shadow of a version; the one that is there if it is the same, with what it learned."""
        chosen, held = version.chosen.shadow, pool.shadow
        if not chosen.name:
            return None
        if held is not None and (held.name, held.settings) == (chosen.name, chosen.settings):
            return held
        return Shadow(chosen.name, chosen.settings, self._rng)

    def _refuse(self, pool: Pool, refusal: Refusal) -> None:
        if self._refused.get(pool.name) == refusal:
            return
        self._refused[pool.name] = refusal
        self._on_refused(pool.name)
        _log.error(
            "policy version not usable; the pool keeps what it has",
            pool=pool.name,
            version=refusal.version,
            reason=refusal.reason,
            kept=pool.policy_version,
        )

    def _report(self) -> dict[str, Any]:
        """What the commands read. The time tells versions of one number apart, should Redis be emptied."""
        return {pool.name: self._report_of(pool.name, pool.policy_version) for pool in self._pools}

    def _report_of(self, pool: str, number: int) -> dict[str, Any]:
        active, refused = self._active.get(pool), self._refused.get(pool)
        return {
            "version": number,
            "when": active and active.at,
            "refused": refused and refused._asdict(),
        }


def _version_of(newest: Newest) -> Version | None:
    """The version that is named as the newest; None when none is. Raises BadVersion."""
    if newest.pointer is None:
        return None
    if not pointed(newest.pointer):
        raise BadVersion("the number of the newest version can't be read")
    if newest.text is None:
        raise BadVersion("it is named as the newest and is not there")
    version = read_version(newest.text)
    if version.number != pointed(newest.pointer):
        raise BadVersion(f"it says that it is {version.number}")
    return version


def shown(pool: Pool, version: Version | None = None, refused: Refusal | None = None) -> dict[str, Any]:
    """One pool's policy for /policies; without a version it is the configuration's."""
    shadow = pool.shadow
    return {
        "pool": pool.name,
        "version": pool.policy_version,
        "source": "file" if version is None else "redis",
        "policy": {"name": pool.policy_name, "settings": pool.policy_settings},
        "shadow": {"name": shadow.name, "settings": shadow.settings} if shadow else None,
        "who": version and version.who,
        "when": version and version.at,
        "why": version and version.why,
        "refused": refused and refused._asdict(),
    }
