"""What happened to prompts, noted and compared later: with the same result as at once."""

import random

import pytest

from extproc.core.announced import JUDGE
from extproc.core.comparisons import _MOST, TOGETHER, Comparisons
from extproc.core.index import PrefixIndex
from extproc.core.pool import Pool
from extproc.core.prompt import Chain
from extproc.core.truth import Truth

KIB = 1024
#: Tokens a KiB, in all of these.
EACH = 256


def chain(*hashes: int) -> Chain:
    return Chain(list(hashes), [KIB * (i + 1) for i in range(len(hashes))])


class Cache:
    """One replica that believes 1 MiB, with its notes."""

    def __init__(self) -> None:
        self.index = PrefixIndex(600.0)
        self.slot = self.index.add_slot(KIB * KIB, 0.0)
        self.direct = Truth(self.index)
        self.direct.join(self.slot, KIB * KIB)
        self.notes = Comparisons(self.direct, self.index)

    def send(self, key: int, prompt: Chain, now: float) -> None:
        held = self.index.match(prompt.hashes).get(self.slot, 0)
        self.notes.sent(key, self.slot, prompt, EACH / KIB, now, held)
        self.index.place(self.slot, prompt, now)

    def end(self, key: int, prompt: Chain, cached: float | None, now: float) -> None:
        self.notes.ended(key, float(EACH * len(prompt.hashes)), cached, now)

    def holds(self, prompt: Chain) -> int:
        return self.index.match(prompt.hashes).get(self.slot, 0)


def test_nothing_is_compared_until_enough_have_ended() -> None:
    cache, prompt = Cache(), chain(1, 2)
    for key in range(TOGETHER - 1):
        cache.send(key, prompt, float(key))
        cache.end(key, prompt, 0.0, key + 0.5)
    assert len(cache.notes) == 2 * (TOGETHER - 1)
    assert cache.direct.open == 0
    cache.send(99, prompt, 99.0)
    cache.end(99, prompt, 0.0, 99.5)
    assert len(cache.notes) == 0
    assert cache.direct.view(cache.slot).samples == TOGETHER


def test_with_several_gateways_no_end_waits() -> None:
    cache, prompt = Cache(), chain(1, 2)
    cache.direct.role = lambda: JUDGE
    cache.send(1, prompt, 0.0)
    cache.end(1, prompt, 0.0, 1.0)
    assert len(cache.notes) == 0
    assert cache.direct.view(cache.slot).samples == 1


def test_who_looks_sees_all_that_happened() -> None:
    cache, prompt = Cache(), chain(1, 2)
    cache.send(1, prompt, 0.0)
    cache.end(1, prompt, 0.0, 1.0)
    assert cache.notes.truth.view(cache.slot).samples == 1
    assert len(cache.notes) == 0


def test_prompts_that_never_end_are_told_as_well() -> None:
    cache = Cache()
    for key in range(_MOST):
        cache.send(key, chain(key + 1), 0.0)
    assert len(cache.notes) == 0
    assert cache.direct.open == _MOST


def test_a_prompt_that_was_never_computed_is_taken_back_at_once() -> None:
    cache, prompt = Cache(), chain(1, 2)
    cache.send(1, prompt, 0.0)
    cache.notes.void(1)
    assert cache.holds(prompt) == 0
    assert cache.notes.truth.view(cache.slot).voided == 1


def test_a_first_token_that_is_noted_says_that_the_prompt_is_in_the_cache() -> None:
    """Sent again before it ended, it is predicted: 2 KiB, which is 512 tokens; without the token it would not be."""
    for seen, predicted in ((True, 512.0), (False, 0.0)):
        cache, prompt = Cache(), chain(1, 2)
        cache.send(1, prompt, 0.0)
        if seen:
            cache.notes.computed(1)
        cache.send(2, prompt, 1.0)
        cache.end(2, prompt, 512.0, 2.0)
        assert cache.notes.truth.view(cache.slot).predicted == predicted


def test_a_prompt_sent_after_the_miss_that_proves_a_cache_emptied_stays_in_the_index() -> None:
    """Forty prompts came as predicted; then nothing is found any more. What is sent meanwhile is on its way."""
    cache = Cache()
    prompts = [chain(10 * i + 1, 10 * i + 2) for i in range(1, 41)]
    for turn in range(4):
        for i, prompt in enumerate(prompts):
            key, now = turn * 100 + i, turn * 100.0 + i
            cache.send(key, prompt, now)
            cache.end(key, prompt, 512.0 if turn else 0.0, now + 0.5)
    cache.notes.catch_up()
    assert cache.holds(prompts[0]) == 2
    late = [chain(1000 + 2 * i, 1001 + 2 * i) for i in range(40)]
    sent = 0
    while cache.direct.view(cache.slot).emptied == 0 and sent < 40:
        prompt, now = prompts[sent], 500.0 + sent
        cache.send(500 + sent, prompt, now)
        cache.end(500 + sent, prompt, 0.0, now + 0.5)
        cache.send(1000 + sent, late[sent], now + 0.7)  # it never ends
        sent += 1
    assert cache.direct.view(cache.slot).emptied == 1, "forty misses in a row prove it"
    assert [cache.holds(prompt) for prompt in late[:sent]] == [2] * sent, "they are on their way"
    assert cache.holds(prompts[39]) == 0, "what was not sent again is gone"


def test_the_outcome_is_that_of_comparing_each_at_once() -> None:
    """Two hundred prompts of thirty sessions, ends in any order, a cache that holds a third of what is believed."""
    views = []
    for waits in (False, True):
        rng, cache = random.Random(5), Cache()
        running: list[tuple[int, Chain]] = []
        for key in range(200):
            now, session = float(key), rng.randrange(30)
            prompt = chain(*(100 * session + 100 + i for i in range(rng.randrange(1, 9))))
            cache.send(key, prompt, now)
            running.append((key, prompt))
            while len(running) > 4:
                ended, its = running.pop(rng.randrange(len(running)))
                cache.end(ended, its, float(EACH * rng.randrange(len(its.hashes) + 1)), now + 0.5)
            if not waits:
                cache.notes.catch_up()
        seen = cache.notes.truth.view(cache.slot)
        views.append((seen.samples, seen.predicted, seen.actual, seen.unexpected))
        assert seen.samples == 196
    assert views[0][0] == views[1][0]
    assert views[0][2] == views[1][2]


@pytest.mark.parametrize("how", ["leaves", "restarts"])
def test_a_replica_may_go_while_what_was_found_of_its_cache_still_waits(how: str) -> None:
    pool = Pool("p", distrust=0.5)
    replica, prompt = pool.join("10.0.0.1:80", 0.0), chain(*range(1, 65))
    pool.index.place(replica.slot, prompt, 0.0)
    assert pool.feedback is not None
    waits = pool.feedback._compared
    for key in range(TOGETHER - 1):  # nothing of it was there, again and again
        waits.sent(key, replica.slot, prompt, EACH / KIB, float(key), 64)
        waits.ended(key, 64.0 * EACH, 0.0, key + 0.5)
    assert len(waits) == 2 * (TOGETHER - 1)
    if how == "leaves":
        pool.leave("10.0.0.1:80")
    else:
        pool.restarted("10.0.0.1:80", 99.0)
    assert len(waits) == 0
    assert not pool.index.match(prompt.hashes)
