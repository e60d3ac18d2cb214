"""Reads the reports that reporters left in Redis, and takes them in."""

from collections.abc import Callable

import structlog

from extproc.config import RedisSettings
from extproc.core.report import BadReport, read_report
from extproc.io.discovery.base import SourceFailed
from extproc.io.intake import Intake
from extproc.io.report_board import ReportBoard

_log = structlog.get_logger("kvsteer.reports")


class ReportReader:
    """Follows the reports of one pool. Redis being gone is told once, and nothing is forgotten by it.

    Args:
        settings: where Redis is, its prefix and deadline.
        pool: name of the pool.
        intake: where reports go.
        clock: seconds, monotonic.
        count: called with a word for each report: what became of it.
    """

    def __init__(
        self,
        settings: RedisSettings,
        pool: str,
        intake: Intake,
        clock: Callable[[], float],
        count: Callable[[str], None],
    ) -> None:
        self._board = ReportBoard(settings, pool)
        self._pool = pool
        self._intake = intake
        self._clock = clock
        self._count = count
        self._told = ""

    async def look(self) -> None:
        """Take in what is new. Never raises for Redis' sake."""
        asked = self._clock()  # before the call: the way here counts as age
        try:
            news = await self._board.news()
        except SourceFailed as error:
            self._count("redis_failed")
            if self._told != error.reason:
                self._told = error.reason
                _log.warning(
                    "reports can't be read from redis",
                    pool=self._pool,
                    reason=error.reason,
                    detail=error.detail,
                )
            return
        if self._told:
            self._told = ""
            _log.info("reports are read from redis again", pool=self._pool)
        for left in news:
            self._count(self._take(left.address, left.body, asked - left.lay))

    async def close(self) -> None:
        """Close the connection."""
        await self._board.close()

    def _take(self, address: str, body: bytes, arrived: float) -> str:
        try:
            report = read_report(body, arrived)
        except BadReport:
            return "refused"
        if report.replica != address or report.pool not in ("", self._pool):
            return "refused"  # one that was left for another
        return self._intake.reported(report, "redis", self._clock())
