"""Adapters by need, in the world of the benchmark."""

from benchmarks.adapters import LEAST_SHARE, MOST_LOADS, World


def test_forty_adapters_by_zipf_find_theirs_as_often_as_with_the_best_assignment() -> None:
    result = World(knows=True).run(800, 24.0)
    assert result.of_best >= LEAST_SHARE
    assert result.settled_loads <= MOST_LOADS
