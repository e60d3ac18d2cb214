"""What becomes of samples and reports: the newest counts, whichever way it came; strangers and floods do not."""

import pytest

from extproc.core.fleet import Replica
from extproc.core.lifecycle import HEALTHY, QUIESCING, WARMING
from extproc.core.pool import Pool
from extproc.core.report import Report
from extproc.core.sample import Sample
from extproc.core.traits import Traits
from extproc.io.intake import NOT_PUSHED, OLDER, TAKEN, TOO_MANY, UNKNOWN, Intake

A, B, C = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"
MODES = {A: "push", B: "both", C: "pull"}


class Desk:
    """An intake over one pool: A is pushed, B both, C pulled."""

    def __init__(self) -> None:
        self.pool = Pool("chat", traits=Traits(stale_after=15.0), now=0.0)
        for address in (A, B, C):
            self.pool.join(address, 0.0)
        self.lives = 0
        self.failures: list[str] = []
        self.terminating: set[str] = set()
        self.intake = Intake(
            [self.pool],
            lambda _pool, address: MODES.get(address, "pull"),
            terminating=lambda _pool, address: address in self.terminating,
            on_lives=self._lived,
            on_failure=self.failures.append,
        )

    def _lived(self) -> None:
        self.lives += 1

    def replica(self, address: str) -> Replica:
        found = self.pool.get(address)
        assert found is not None
        return found

    def running(self, address: str) -> float | None:
        sample = self.replica(address).sample
        return sample.running if sample else None

    def push(self, address: str, at: float, now: float, way: str = "http", **fields: object) -> str:
        sample = Sample(at=at, **{"running": 1.0, **fields})  # type: ignore[arg-type]
        return self.intake.reported(Report(replica=address, sample=sample), way, now)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_report_counts_as_a_scrape_does(desk: Desk) -> None:
    assert desk.push(A, at=10.0, now=10.1, running=7.0) == TAKEN
    assert desk.running(A) == 7.0
    assert desk.replica(A).fresh_until == 25.0, (
        "15 s from when the engine was asked, not from when it was told"
    )


def test_the_newest_sample_counts_whichever_way_it_came(desk: Desk) -> None:
    desk.intake.scraped(desk.pool, B, Sample(at=10.0, running=1.0))
    assert desk.push(B, at=9.9, now=10.2, running=2.0) == OLDER, "it was on its way for long"
    assert desk.running(B) == 1.0
    assert desk.push(B, at=10.3, now=10.4, running=3.0) == TAKEN
    desk.intake.scraped(desk.pool, B, Sample(at=10.25, running=4.0))
    assert desk.running(B) == 3.0
    assert desk.push(B, at=10.5, now=10.6, way="redis", running=5.0) == TAKEN
    assert desk.running(B) == 5.0


def test_a_replica_nobody_knows_and_another_pool_are_unknown(desk: Desk) -> None:
    assert desk.push("10.0.0.9:8000", at=1.0, now=1.0) == UNKNOWN
    assert desk.intake.reported(Report(replica=A, pool="other"), "http", 1.0) == UNKNOWN
    assert desk.pool.get("10.0.0.9:8000") is None


def test_a_replica_that_is_scraped_takes_no_report(desk: Desk) -> None:
    assert desk.push(C, at=1.0, now=1.0) == NOT_PUSHED
    assert desk.running(C) is None


def test_reports_that_come_too_fast_are_not_looked_at(desk: Desk) -> None:
    said = [desk.push(A, at=now, now=now) for now in (1.0, 1.02, 1.04, 1.06, 1.1)]
    assert said == [TAKEN, TOO_MANY, TOO_MANY, TAKEN, TOO_MANY]
    assert desk.push(A, at=1.11, now=1.11, way="redis") == TAKEN, "each way has its own pace"


def test_a_drain_the_reporter_tells_holds_until_it_tells_otherwise(desk: Desk) -> None:
    drains = Report(replica=A, draining=True)
    assert desk.intake.reported(drains, "http", 1.0) == TAKEN
    assert desk.intake.reported(drains, "http", 2.0) == TAKEN
    assert (desk.replica(A).life.state, desk.replica(A).life.cause, desk.lives) == (QUIESCING, "replica", 1)
    desk.push(A, at=3.0, now=3.0)
    assert (desk.replica(A).life.state, desk.lives) == (HEALTHY, 2)


def test_an_operators_drain_is_not_ended_by_a_reporter(desk: Desk) -> None:
    desk.replica(A).drain("operator", 1.0)
    desk.push(A, at=2.0, now=2.0)
    assert desk.replica(A).life.state == QUIESCING


def test_the_end_of_a_reporters_drain_leaves_that_of_discovery(desk: Desk) -> None:
    desk.intake.reported(Report(replica=A, draining=True), "http", 1.0)
    desk.terminating.add(A)
    desk.push(A, at=2.0, now=2.0)
    assert (desk.replica(A).life.state, desk.replica(A).life.cause) == (QUIESCING, "discovery")


def test_a_restart_that_a_scrape_shows_ends_the_drain_of_the_process_before(desk: Desk) -> None:
    old = Sample(at=1.0, running=0.0, started=1000.0)
    desk.intake.reported(Report(replica=B, draining=True, sample=old), "http", 1.0)
    assert desk.replica(B).life.state == QUIESCING
    desk.intake.scraped(desk.pool, B, Sample(at=9.0, running=0.0, started=2000.0))
    assert (desk.replica(B).life.state, desk.replica(B).incarnation) == (WARMING, 2)


def test_counters_out_of_order_between_two_ways_are_no_restart(desk: Desk) -> None:
    desk.intake.scraped(desk.pool, B, Sample(at=10.0, prompt_tokens=1000.0))
    assert desk.push(B, at=10.1, now=10.2, prompt_tokens=990.0) == OLDER, (
        "an age that was told 0.1 s too small"
    )
    assert desk.replica(B).incarnation == 1
    assert desk.push(B, at=13.0, now=13.1, prompt_tokens=5.0) == TAKEN
    assert desk.replica(B).incarnation == 2


def test_an_engine_its_reporter_cant_reach_backs_off_where_nobody_scrapes(desk: Desk) -> None:
    for address in (A, B):
        told = Report(replica=address, failure="connect")
        assert desk.intake.reported(told, "http", 1.0) == TAKEN
    assert (desk.replica(A).excluded(1.0), desk.replica(B).excluded(1.0)) == ("backoff", None)
    assert desk.failures == ["connect"]


def test_what_is_kept_of_replicas_that_left_is_bounded(desk: Desk) -> None:
    for number in range(500):
        address = f"10.1.{number // 250}.{number % 250}:8000"
        MODES[address] = "push"
        desk.pool.join(address, 0.0)
        assert desk.push(address, at=1.0 + number, now=1.0 + number) == TAKEN
        desk.pool.leave(address)
        del MODES[address]
    kept = len(desk.intake._ways["chat"]), len(desk.intake._looked["chat"])
    assert max(kept) <= 4 * 4 + 64
