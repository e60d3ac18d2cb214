"""What becomes of replicas is told in the log, once."""

from structlog.testing import capture_logs

from extproc.core.pool import Pool
from extproc.io.lives import Lives


def test_who_is_left_out_and_who_is_back_is_told_once() -> None:
    pool, lives = Pool("p"), Lives()
    one = pool.join("10.0.0.1:80", 0.0)
    pool.join("10.0.0.2:80", 0.0)
    with capture_logs() as said:
        lives.look([pool], 1.0)
        one.drain("operator", 1.0)
        lives.look([pool], 2.0)
        lives.look([pool], 3.0)
        one.undrain("operator", 3.0)
        lives.look([pool], 4.0)
    told = [(line["event"], line["replica"], line.get("why")) for line in said]
    assert told == [
        ("replica is left out", "10.0.0.1:80", "quiescing"),
        ("replica takes requests", "10.0.0.1:80", None),
    ]


def test_a_fleet_that_is_lost_at_once_makes_few_lines() -> None:
    pool, lives = Pool("p"), Lives()
    for number in range(100):
        pool.join(f"10.0.0.{number + 1}:80", 0.0)
    with capture_logs() as said:
        lives.look([pool], 0.0)
        lives.look([pool], 1000.0)
    assert len(said) == 17
    assert said[-1]["count"] == 84
