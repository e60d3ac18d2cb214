"""A factor whose metric no replica tells is told in the log, once."""

import structlog

from extproc.core.bias import Factor
from extproc.core.pool import Pool
from extproc.core.sample import Sample
from extproc.core.traits import Traits
from extproc.io.factors import Factors, silent

A, B = "10.0.0.1:80", "10.0.0.2:80"


def pool(factor: Factor | None) -> Pool:
    made = Pool("p", traits=Traits(factor=factor))
    for address in (A, B):
        made.join(address, 0.0)
    return made


def looked(made: Pool, factors: Factors, times: int) -> list[dict[str, object]]:
    with structlog.testing.capture_logs() as told:
        for _ in range(times):
            factors.look([made])
    return [dict(line) for line in told]


def test_it_is_told_after_ten_looks_and_not_again() -> None:
    made, factors = pool(Factor()), Factors()
    made.observe(A, Sample(at=1.0))
    made.observe(B, Sample(at=1.0, factor=1.0))
    assert looked(made, factors, 9) == []
    (line,) = looked(made, factors, 100)
    assert (line["pool"], line["replicas"], line["of"]) == ("p", 1, 2)
    made.observe(A, Sample(at=2.0, factor=1.0))
    assert looked(made, factors, 20) == []
    made.observe(A, Sample(at=3.0))
    assert len(looked(made, factors, 20)) == 1, "it was well meanwhile"


def test_who_was_not_heard_is_not_silent_and_a_pool_without_a_factor_never_is() -> None:
    assert silent(pool(Factor())) == 0
    made = pool(None)
    made.observe(A, Sample(at=1.0))
    assert silent(made) == 0
