"""Reuse distances: what a replica was given since a prompt was last used there."""

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.prompt import Chain
from extproc.core.reuse import Reuse, Use

KIB = 1024


def chain(*hashes: int) -> Chain:
    return Chain(list(hashes), [KIB * (i + 1) for i in range(len(hashes))])


def exact() -> Reuse:
    """A generation ends after 1 KiB, so each prompt has its own and distances are exact."""
    return Reuse(32 * KIB - 1)


def last(reuse: Reuse, prompt: Chain, depth: int) -> Use | None:
    """The last use of the longest known beginning."""
    uses = reuse.look(prompt, depth)
    return uses[-1] if uses else None


def distance(reuse: Reuse, *hashes: int) -> float | None:
    """KiB given since all of these were used; None when that is not known."""
    use = last(reuse, chain(*hashes), len(hashes))
    return use.distance / KIB if use is not None and use.end == len(hashes) * KIB else None


def test_a_distance_is_what_was_given_since() -> None:
    reuse = exact()
    reuse.use(chain(1, 2, 3, 4), 0, 0.0)
    reuse.use(chain(11, 12), 0, 0.0)
    reuse.use(chain(21, 22, 23), 0, 0.0)
    assert last(reuse, chain(1, 2, 3, 4, 5), 4) == Use(4 * KIB, 5 * KIB, math.inf)
    assert distance(reuse, 11, 12) == 3
    assert distance(reuse, 21, 22, 23) == 0


def test_a_chat_that_goes_on_counts_once_at_its_newest_length() -> None:
    reuse = exact()
    reuse.use(chain(1, 2), 0, 0.0)
    for turn in range(3, 8):
        reuse.use(chain(*range(11, 11 + turn)), turn - 1 if turn > 3 else 0, 0.0)
    assert distance(reuse, 1, 2) == 7
    assert len(reuse) == 4, "the end of each of the two and the hash before it"


def test_bytes_that_prompts_share_count_once_and_at_their_last_use() -> None:
    reuse = exact()
    reuse.use(chain(50, 51, 60), 0, 0.0)
    reuse.use(chain(1, 2), 0, 0.0)
    reuse.use(chain(50, 51, 70, 71), 2, 0.0)  # two KiB of it are the first one's, and used again
    assert distance(reuse, 1, 2) == 4
    assert distance(reuse, 50, 51) == 1, "two KiB came with it, and half of those after it as a rule"
    assert distance(reuse, 50, 51, 60) == 2 + 4


def test_where_prompts_part_is_remembered_when_those_that_parted_there_went_on() -> None:
    reuse = exact()
    reuse.use(chain(1, 2, 3, 10), 0, 0.0)
    reuse.use(chain(1, 2, 3, 20), 3, 0.0)
    reuse.use(chain(1, 2, 3, 10, 11), 4, 0.0)
    reuse.use(chain(1, 2, 3, 20, 21), 4, 0.0)
    reuse.use(chain(90, 91, 92, 93, 94, 95), 0, 0.0)
    assert distance(reuse, 1, 2, 3) == 6 + 1, "2 KiB came after it in its generation, or before"
    assert [use.end // KIB for use in reuse.look(chain(1, 2, 3, 20, 21, 22), 5)] == [3, 4, 5]


def test_a_place_is_one_where_prompts_part_also_in_the_middle_of_what_is_known() -> None:
    reuse = exact()
    reuse.use(chain(1, 2, 3, 4, 5, 6), 0, 0.0)
    reuse.use(chain(1, 2, 30), 2, 0.0)
    assert [use.end // KIB for use in reuse.look(chain(1, 2, 3, 4, 5, 6), 6)] == [2, 5, 6]
    assert distance(reuse, 1, 2) is not None
    assert distance(reuse, 1, 2, 3) is None


def test_a_use_has_a_time_when_it_is_over_and_says_whether_it_was_found() -> None:
    reuse = exact()
    prompt = chain(1, 2, 3)
    reuse.use(prompt, 0, 0.0)
    assert last(reuse, prompt, 3) == Use(3 * KIB, 0, math.inf, False)
    reuse.ended(prompt, 7.0, found=True)
    assert last(reuse, prompt, 3) == Use(3 * KIB, 0, 7.0, True)
    reuse.use(chain(1, 2, 3, 4), 3, 0.0)
    assert last(reuse, chain(1, 2, 3, 4), 4) == Use(4 * KIB, 0, math.inf, False)


def test_what_no_prompt_ended_with_has_no_known_use() -> None:
    reuse = exact()
    reuse.use(chain(1, 2, 3, 4), 0, 0.0)
    assert last(reuse, chain(1, 2, 9), 2) is None, (
        "the hash before the last is known, those before that are not"
    )
    assert distance(reuse, 1, 2, 3) is not None
    assert reuse.look(chain(9), 0) == []


def test_points_remembered_are_bounded_and_the_oldest_go() -> None:
    reuse = exact()
    for i in range(5000):
        reuse.use(chain(10 * i + 1, 10 * i + 2), 0, 0.0)
        assert len(reuse) <= 4096
    assert len(reuse) >= 4096 - 64, "more was forgotten than is forgotten at once"
    kept = [i for i in range(5000) if last(reuse, chain(10 * i + 1, 10 * i + 2), 2) is not None]
    assert kept == list(range(5000 - len(reuse) // 2, 5000))


def test_cleared_it_knows_nothing() -> None:
    reuse = exact()
    reuse.use(chain(1, 2), 0, 0.0)
    reuse.clear()
    assert last(reuse, chain(1, 2), 2) is None


def test_distances_are_those_of_a_true_lru_to_within_a_generation() -> None:
    capacity = 1024 * KIB  # a generation is 32 KiB, some prompts
    reuse, rng = Reuse(capacity), random.Random(3)
    order: list[int] = []  # sessions, newest last
    length = dict.fromkeys(range(40), 0)
    for step in range(3000):
        who = rng.randrange(40)
        held = length[who]
        prompt = chain(*range(1000 * who, 1000 * who + min(held + 1, 20)))
        if held:
            true = sum(length[other] for other in order[order.index(who) + 1 :]) * KIB
            use = last(reuse, prompt, held)
            assert use is not None
            assert abs(use.distance - true) <= 32 * KIB, step
        reuse.use(prompt, held, 0.0)
        length[who] = len(prompt.hashes)
        order = [other for other in order if other != who] + [who]


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), max_size=40), st.integers(0, 6))
def test_whatever_prompts_come_no_byte_is_counted_twice(paths: list[list[int]], depth: int) -> None:
    reuse = Reuse(8 * KIB)
    for path in paths:
        prompt = chain(*(hash(tuple(path[: i + 1])) for i in range(len(path))))
        reuse.use(prompt, min(depth, len(path)), 0.0)
        assert all(own >= 0 for own in reuse._sums)
        assert sum(reuse._sums) <= sum(range(7)) * 4**6 * KIB
        uses = reuse.look(prompt, len(path))
        assert uses[-1].end == prompt.ends[-1]
        assert all(use.distance >= 0 for use in uses)
