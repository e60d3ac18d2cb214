"""Whether a cache was emptied: misses for it, hits against it, as in Wald's sequential test.

Each miss that its distance does not explain opens a case: "the cache was emptied before this prompt was sent". All
misses since, of what was in the cache before, speak for the case, each by how surprising it is otherwise: the
logarithm of the odds, which add up. A hit on what was last used before speaks against it: an emptied cache can't have
it. What was used again since, somebody may have brought again. When what speaks for a case comes to _PROVED it is
proved; one of which nothing is left is closed, and so is one that is still open after many further prompts: those
were evicted.

Engines compute prompts in the order they came, so what was sent later was looked up later.
"""

from typing import Final, Generic, TypeVar

from extproc.core.reuse import Use

#: Logarithm of the odds that prove a case: 150 to 1, since a cache is emptied once in hundreds of prompts at most,
#: and to believe it wrongly costs as much as some ten misses. In the workload of benchmarks/feedback.py with twelve
#: seeds it finds 28 of 48 drops within 10 s and 40 at all, with one false alarm; 500 to 1 finds 26 and 37.
_PROVED: Final = 5.0
#: What a hit on something older says: it was seen in the cache before; it was only brought there, perhaps since.
_SEEN: Final = 6.2
_BROUGHT: Final = 3.1
#: Prompts tested after which an open case is closed, and cases open at a time.
_TESTS: Final = 48
_CASES: Final = 16

_Guess = TypeVar("_Guess")


class _Case(Generic[_Guess]):
    """A miss, and what speaks against an emptied cache since."""

    __slots__ = ("against", "gone", "guess", "odds", "sent", "tests")

    def __init__(self, guess: _Guess, gone: Use, sent: float, odds: float) -> None:
        self.guess, self.gone, self.sent, self.odds = guess, gone, sent, odds
        self.against = 0.0
        self.tests = 0


class Emptied(Generic[_Guess]):
    """The open cases of one replica.

    `is_proved`: it was emptied. `take` ends that, and so does what was found against it; until then cases stay open.
    """

    def __init__(self) -> None:
        #: The open ones, in the order of their misses.
        self.cases: list[_Case[_Guess]] = []
        self.is_proved = False

    def __bool__(self) -> bool:
        """Whether there are open cases."""
        return bool(self.cases)

    @property
    def distances(self) -> list[float]:
        """Reuse distances of the misses of open cases, in bytes."""
        return [case.gone.distance for case in self.cases]

    def missed(self, guess: _Guess, gone: Use, sent: float, odds: float) -> None:
        """A prompt sent at a time was colder than predicted: so surprising, as the logarithm of the odds, are misses
        of what was last used as `gone`."""
        self._test()
        self.cases.append(_Case(guess, gone, sent, odds))
        if len(self.cases) > _CASES:
            self.cases.pop(0)
        self.is_proved = self._proves()

    def found(self, use: Use, sent: float) -> None:
        """A prompt sent at a time found what was last used as `use`."""
        if self.cases:
            for case in self.cases:
                if use.at < case.sent <= sent:
                    case.against += _SEEN if use.sure else _BROUGHT
            self._test()
            self.is_proved = self.is_proved and self._proves()

    def take(self) -> list[_Guess]:
        """All misses of open cases, which are closed."""
        cases, self.cases, self.is_proved = self.cases, [], False
        return [case.guess for case in cases]

    def _test(self) -> None:
        """A prompt was tested: close what is to be closed."""
        for case in self.cases:
            case.tests += not self.is_proved
        self.cases = [case for case in self.cases if case.tests <= _TESTS and self._evidence(case) > 0]

    def _proves(self) -> bool:
        return any(self._evidence(case) >= _PROVED for case in self.cases)

    def _evidence(self, case: _Case[_Guess]) -> float:
        """What speaks for a case, less what speaks against it."""
        odds = sum(
            other.odds for other in self.cases if other is case or other.gone.sent < case.sent <= other.sent
        )
        return odds - case.against
