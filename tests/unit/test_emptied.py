"""Whether a cache was emptied: what speaks for it, against it, and what does not count."""

from extproc.core.emptied import Emptied
from extproc.core.reuse import Use


def use(sent: float, ended: float = 0.0, *, sure: bool = True) -> Use:
    return Use(4096, 1e6, ended or sent + 1, sure, sent)


def proved(cases: Emptied[str]) -> bool:
    return cases.is_proved


def test_surprising_misses_of_what_was_there_before_the_first_add_up() -> None:
    cases: Emptied[str] = Emptied()
    cases.missed("a", use(5.0), 10.0, 2.6)
    assert not proved(cases)
    cases.missed("b", use(9.0), 12.0, 2.6)
    assert proved(cases)  # 5.2 of 5.0
    assert cases.take() == ["a", "b"]
    assert not cases


def test_a_miss_of_what_was_used_since_speaks_for_its_own_case_alone() -> None:
    cases: Emptied[str] = Emptied()
    cases.missed("a", use(5.0), 10.0, 2.6)
    cases.missed("b", use(11.0), 12.0, 2.6)
    assert not proved(cases)


def test_the_order_of_answers_does_not_matter_but_that_of_prompts() -> None:
    cases: Emptied[str] = Emptied()
    cases.missed("later", use(9.0), 12.0, 2.6)
    cases.missed("sooner", use(5.0), 10.0, 2.6)
    assert proved(cases)


def test_a_hit_on_what_was_seen_before_closes_the_cases_after_it_and_no_other() -> None:
    cases: Emptied[str] = Emptied()
    cases.missed("before", use(5.0), 10.0, 2.6)
    cases.missed("after", use(12.0), 30.0, 2.6)
    cases.found(use(15.0, 16.0), 40.0)  # brought after the first may have been, and before the second
    assert cases.take() == ["before"]


def test_hits_on_what_was_only_brought_count_half_and_those_sent_before_a_miss_nothing() -> None:
    cases: Emptied[str] = Emptied()
    cases.missed("a", use(5.0), 10.0, 3.2)
    cases.found(use(1.0), 9.0)
    cases.found(use(1.0, sure=False), 11.0)
    assert cases  # 3.2 against 3.1
    cases.found(use(2.0, sure=False), 12.0)
    assert not cases


def test_cases_are_closed_after_many_prompts_and_bounded() -> None:
    cases: Emptied[int] = Emptied()
    for number in range(20):
        cases.missed(number, use(100.0 + number), 100.0 + number, 1.0)
    assert cases.distances == [1e6] * 16
    for _ in range(49):
        cases.found(use(1000.0), 1001.0)
    assert not cases
