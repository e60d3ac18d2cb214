from extproc.core.known_runs import KnownRuns


def test_what_was_kept_is_found_by_its_key_alone() -> None:
    runs = KnownRuns()
    runs.keep((1, 5000), [11, 12])
    assert runs.get((1, 5000)) == [11, 12]
    assert runs.get((1, 5001)) is None
    assert (len(runs), runs.size) == (1, 2)


def test_beyond_its_hashes_those_go_that_were_not_asked_for_longest() -> None:
    runs = KnownRuns(most_hashes=5)
    runs.keep((1, 0), [1, 1])
    runs.keep((2, 0), [2, 2])
    assert runs.get((1, 0)) is not None
    runs.keep((3, 0), [3, 3])
    assert [runs.get((key, 0)) is not None for key in (1, 2, 3)] == [True, False, True]
    assert runs.size == 4


def test_beyond_its_texts_the_oldest_go() -> None:
    runs = KnownRuns(most_texts=3)
    for key in range(10):
        runs.keep((key, 0), [key])
    assert (len(runs), runs.size) == (3, 3)
    assert runs.get((9, 0)) == [9]


def test_what_is_kept_twice_counts_once() -> None:
    runs = KnownRuns()
    runs.keep((1, 0), [1, 1, 1])
    runs.keep((1, 0), [2, 2])
    assert (runs.get((1, 0)), len(runs), runs.size) == ([2, 2], 1, 2)


def test_a_run_that_is_longer_than_all_that_may_be_is_not_kept() -> None:
    runs = KnownRuns(most_hashes=5)
    runs.keep((1, 0), list(range(6)))
    assert (len(runs), runs.size) == (0, 0)
