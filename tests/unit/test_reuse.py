"""Reuse distances: what a replica was given since a prompt was last used there."""

import random

from extproc.core.prompt import Chain
from extproc.core.reuse import Reuse, Use

KIB = 1024


def chain(*hashes: int) -> Chain:
    return Chain(list(hashes), [KIB * (i + 1) for i in range(len(hashes))])


def exact() -> Reuse:
    """A generation ends after 1 KiB, so each prompt has its own and distances are exact."""
    return Reuse(32 * KIB - 1)


def test_a_distance_is_what_was_given_since() -> None:
    reuse = exact()
    reuse.use(chain(1, 2, 3, 4), 0, 1.0)
    reuse.use(chain(11, 12), 0, 2.0)
    reuse.use(chain(21, 22, 23), 0, 3.0)
    assert reuse.look(chain(1, 2, 3, 4, 5), 4) == Use(5 * KIB, 1.0)
    assert reuse.look(chain(11, 12), 2) == Use(3 * KIB, 2.0)
    assert reuse.look(chain(21, 22, 23), 3) == Use(0, 3.0)


def test_a_chat_that_goes_on_counts_once_at_its_newest_length() -> None:
    reuse = exact()
    reuse.use(chain(1, 2), 0, 1.0)
    for turn in range(3, 8):
        reuse.use(chain(*range(11, 11 + turn)), turn - 1 if turn > 3 else 0, float(turn))
    assert reuse.look(chain(1, 2), 2) == Use(7 * KIB, 1.0)


def test_bytes_that_prompts_share_count_once() -> None:
    reuse = exact()
    reuse.use(chain(1, 2), 0, 1.0)
    reuse.use(chain(50, 51, 60), 0, 2.0)
    reuse.use(chain(50, 51, 70, 71), 2, 3.0)  # two KiB of it are the one before's
    assert reuse.look(chain(1, 2), 2) == Use((3 + 2) * KIB, 1.0)


def test_what_no_prompt_ended_with_has_no_known_use() -> None:
    reuse = exact()
    reuse.use(chain(1, 2, 3, 4), 0, 1.0)
    assert (
        reuse.look(chain(1, 2, 9), 2) is None
    )  # the hash before the last is known, those before that are not
    assert reuse.look(chain(1, 2, 3, 9), 3) == Use(0, 1.0)
    assert reuse.look(chain(9), 0) is None


def test_prompts_remembered_are_bounded_and_the_oldest_go() -> None:
    reuse = exact()
    for i in range(5000):
        reuse.use(chain(10 * i + 1, 10 * i + 2), 0, float(i))
    assert len(reuse) == 4096
    assert reuse.look(chain(10 * 4999 + 1, 10 * 4999 + 2), 2) == Use(0, 4999.0)
    assert reuse.look(chain(1, 2), 2) is None


def test_cleared_it_knows_nothing() -> None:
    reuse = exact()
    reuse.use(chain(1, 2), 0, 1.0)
    reuse.clear()
    assert reuse.look(chain(1, 2), 2) is None


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
            use = reuse.look(prompt, held)
            assert use is not None
            assert abs(use.distance - true) <= 32 * KIB, step
        reuse.use(prompt, held, float(step))
        length[who] = len(prompt.hashes)
        order = [other for other in order if other != who] + [who]
