"""What is learned of replicas, whichever way it came: scraped here, posted by a reporter, or left by one in Redis.

The newest sample counts. Its age is always measured on clocks of one machine: a scrape by this gateway's, a report by
the reporter's own until it is sent and by ours (or Redis') from then on. So two ways may disagree about the order of
readings that are close together, by as much as a message travels; a reading that looks like a restart only because of
that would throw a warm cache's index away. Therefore one way's sample is not believed about a restart when another's
came less than `_CLOSE` before: if there was one, the next sample of either way shows it.
"""

from collections.abc import Callable
from typing import Final, Protocol

from extproc.core.lifecycle import ITSELF, QUIESCING
from extproc.core.pool import Pool, has_restarted
from extproc.core.report import Report
from extproc.core.sample import Sample

#: Seconds within which two ways may disagree about which reading came first; no engine restarts in less.
_CLOSE = 2.0
#: Shortest time between two reports of a replica that are looked at, in seconds: half of the shortest interval.
_LEAST = 0.05
_DISCOVERY = "discovery"

# What became of a report. A closed set: it labels metrics and answers.
TAKEN: Final = "taken"
OLDER: Final = "older"
UNKNOWN: Final = "unknown_replica"
NOT_PUSHED: Final = "not_pushed"
TOO_MANY: Final = "too_many"


class Modes(Protocol):
    """How a replica's state is learned, by pool and address: `pull`, `push` or `both`."""

    def __call__(self, pool: str, address: str) -> str:
        """The mode of one replica."""


class Intake:
    """Takes samples and reports in.

    Args:
        pools: whose replicas can be told of.
        modes: how each replica's state is learned.
        terminating: whether discovery says of a replica of a pool that it runs out.
        on_lives: called when a replica's own word changed its state.
        on_failure: given the reason when an engine can't be asked by its own reporter.
    """

    def __init__(
        self,
        pools: list[Pool],
        modes: Modes,
        *,
        terminating: Callable[[str, str], bool] = lambda _pool, _address: False,
        on_lives: Callable[[], None] = lambda: None,
        on_failure: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        self._pools = pools
        self._modes = modes
        self._terminating = terminating
        self._on_lives = on_lives
        self._on_failure = on_failure
        #: By pool: address -> which way the sample in use came, and when the last report was looked at.
        self._ways: dict[str, dict[str, str]] = {pool.name: {} for pool in pools}
        self._looked: dict[str, dict[str, float]] = {pool.name: {} for pool in pools}

    def scraped(self, pool: Pool, address: str, sample: Sample) -> None:
        """A sample of this gateway's own collector."""
        self._observe(pool, address, sample, "pull", None)

    def reported(self, report: Report, way: str, now: float) -> str:
        """A report that came some `way`; what became of it, one of the words above."""
        known = [
            pool
            for pool in self._pools
            if report.pool in ("", pool.name) and pool.get(report.replica) is not None
        ]
        if not known:
            return UNKNOWN
        pools = [pool for pool in known if self._modes(pool.name, report.replica) != "pull"]
        if not pools:
            return NOT_PUSHED
        results = [self._reported(pool, report, way, now) for pool in pools]
        return TAKEN if TAKEN in results else results[0]

    def _reported(self, pool: Pool, report: Report, way: str, now: float) -> str:
        if self._too_soon(pool, f"{report.replica} {way}", now):
            return TOO_MANY
        self._lives(pool, report, now)
        if report.sample is not None:
            newest = self._observe(pool, report.replica, report.sample, way, report.draining)
            return TAKEN if newest else OLDER
        if report.failure and self._modes(pool.name, report.replica) == "push":
            pool.failed(report.replica, report.failure, now)  # else the gateway sees for itself
            self._on_failure(report.failure)
        return TAKEN

    def _lives(self, pool: Pool, report: Report, now: float) -> None:
        replica = pool.get(report.replica)
        assert replica is not None
        quiescing = replica.life.state == QUIESCING
        if report.draining != quiescing and (report.draining or replica.life.cause == ITSELF):
            self.says(pool, report.replica, report.draining, now)

    def says(self, pool: Pool, address: str, leaves: bool, now: float) -> None:
        """A replica's own word of its drain, which differs from what holds; here, or told by another gateway."""
        replica = pool.get(address)
        if replica is None:
            return
        if leaves:
            replica.drain(ITSELF, now)
        else:
            self._undrain(pool, address, now)
        self._on_lives()

    def _undrain(self, pool: Pool, address: str, now: float) -> None:
        replica = pool.get(address)
        assert replica is not None
        replica.undrain(ITSELF, now)
        if self._terminating(pool.name, address):
            replica.drain(_DISCOVERY, now)

    def _observe(self, pool: Pool, address: str, sample: Sample, way: str, draining: bool | None) -> bool:
        """Take a sample in if it is the newest; whether it was. `draining` is None where it does not say."""
        replica = pool.get(address)
        if replica is None:
            return False
        ways, last = self._ways[pool.name], replica.sample
        if last is not None:
            if sample.at <= last.at:
                return False
            other = ways.get(address, way) != way
            if other and sample.at - last.at < _CLOSE and has_restarted(last, sample):
                return False
        _bound(ways, pool)
        ways[address] = way
        incarnation = replica.incarnation
        replica = pool.observe(address, sample)
        assert replica is not None
        ended = replica.life.state == QUIESCING and replica.life.cause == ITSELF and not draining
        if replica.incarnation != incarnation and ended:  # the process that said good-bye is gone
            self._undrain(pool, address, sample.at)
            self._on_lives()
        return True

    def _too_soon(self, pool: Pool, key: str, now: float) -> bool:
        looked = self._looked[pool.name]
        if now - looked.get(key, -_LEAST) < _LEAST:
            return True
        if len(looked) > 4 * len(pool.replicas) + 64:
            looked.clear()
        looked[key] = now
        return False


def _bound(ways: dict[str, str], pool: Pool) -> None:
    """Forget replicas that left, now and then."""
    if len(ways) > 2 * len(pool.replicas) + 64:
        for address in [address for address in ways if pool.get(address) is None]:
            del ways[address]
