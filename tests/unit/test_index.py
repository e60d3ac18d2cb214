"""The prefix index: who holds what, bounded and forgetful in the right order."""

import random
from array import array
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.index import PrefixIndex
from extproc.core.prompt import Chain
from tests.examples import examples


def chain(*hashes: int, step: int = 1024) -> Chain:
    return Chain(list(hashes), [step * (i + 1) for i in range(len(hashes))])


def index_of(*capacities: int, ttl: float = 1000.0) -> PrefixIndex:
    index = PrefixIndex(ttl)
    for capacity in capacities:
        index.add_slot(capacity, 0.0)
    return index


def test_a_chain_is_held_by_the_slot_it_was_placed_on_and_no_other() -> None:
    index = index_of(10**6, 10**6)
    index.place(1, chain(5, 6, 7), 1.0)
    assert index.match([5, 6, 7]) == {1: 3}
    assert index.match([9]) == {}


def test_match_gives_each_slot_the_depth_to_which_it_holds_the_chain() -> None:
    index = index_of(10**6, 10**6, 10**6)
    index.place(0, chain(1, 2, 3, 4), 1.0)
    index.place(1, chain(1, 2), 1.0)
    index.place(2, chain(1, 9), 1.0)
    assert index.match([1, 2, 3, 4, 5]) == {0: 4, 1: 2, 2: 1}


def test_a_hash_held_without_those_before_it_is_no_prefix() -> None:
    index = index_of(10**6)
    index.place(0, chain(2, 3), 1.0)
    assert index.match([1, 2, 3]) == {}


def test_the_least_recently_used_goes_first() -> None:
    index = index_of(8 * 1024)
    for key in range(8):
        index.place(0, chain(key), float(key))
    index.place(0, chain(0), 8.5)  # used again: now the youngest
    for key in range(100, 104):
        index.place(0, chain(key), 9.0)
    assert index.match([0]) == {0: 1}, "the entry used again was evicted"
    assert index.match([1]) == {}, "the oldest entry is still held"
    assert index.size(0) <= 8 * 1024


def test_an_entry_not_used_for_the_ttl_is_gone_and_one_used_is_not() -> None:
    index = index_of(10**6, ttl=130.0)
    index.place(0, chain(1), 0.0)
    index.place(0, chain(2), 0.0)
    for now in range(0, 160, 5):
        index.place(0, chain(2), float(now))
        index.expire(float(now))
    assert index.match([1]) == {}
    assert index.match([2]) == {0: 1}


def test_a_removed_slot_takes_its_entries_along_and_its_number_serves_again() -> None:
    index = index_of(10**6, 10**6)
    index.place(0, chain(1, 2), 0.0)
    index.place(1, chain(1), 0.0)
    index.remove_slot(0)
    assert index.match([1, 2]) == {1: 1}
    assert len(index) == 1
    assert index.add_slot(10**6, 1.0) == 0
    assert index.match([1, 2]) == {1: 1}, "the new slot inherited entries of the old one"


def test_a_slot_freed_amid_others_does_not_collide_with_a_living_one() -> None:
    index = index_of(10**6, 10**6, 10**6)
    index.remove_slot(1)
    numbers = {index.add_slot(10**6, 1.0), index.add_slot(10**6, 1.0)}
    assert numbers == {1, 3}


def test_a_smaller_capacity_evicts_at_once() -> None:
    index = index_of(100 * 1024)
    for key in range(100):
        index.place(0, chain(key), float(key))
    index.set_capacity(0, 10 * 1024)
    assert index.size(0) <= 10 * 1024
    assert index.match([0]) == {}


def test_the_count_is_bounded_for_entries_without_weight() -> None:
    index = PrefixIndex(1000.0, max_count=50)
    slot = index.add_slot(10**9, 0.0)
    for key in range(500):
        index.place(slot, chain(key, step=1), float(key))
    assert index.count(slot) <= 50


def test_a_prompt_larger_than_the_cache_evicts_nothing() -> None:
    index = index_of(100 * 1024)
    index.place(0, chain(1, 2, 3), 0.0)
    index.place(0, chain(*range(1000, 1101)), 1.0)
    assert index.match([1, 2, 3]) == {0: 3}
    assert index.match([1000]) == {}


def test_forgetting_takes_back_only_what_is_named() -> None:
    index = index_of(10**6, 10**6)
    index.place(0, chain(1, 2, 3), 0.0)
    index.place(1, chain(1, 2, 3), 0.0)
    index.forget(0, [2, 3, 99])
    assert index.match([1, 2, 3]) == {0: 1, 1: 3}
    assert index.count(0) == 1


def test_what_was_taken_back_does_not_come_back_with_a_copy() -> None:
    index = index_of(10**6)
    index.place(0, chain(1, 2, 3), 0.0)
    for now in (200.0, 400.0, 600.0):  # so that older epochs mention them too
        index.expire(now)
        index.place(0, chain(1, 2, 3), now)
    index.forget(0, [2, 3])
    told = {key for _, _, hashes, _ in index.dump(0, 600.0) for key in hashes}
    assert told == {1}


@pytest.mark.parametrize("hashes", [(1, 2, 1, 3), (7, 1, 7, 2), (1, 1), (1, 8, 1, 9)])
def test_a_chain_that_repeats_a_hash_counts_it_once(hashes: tuple[int, ...]) -> None:
    index = index_of(10**6)
    index.place(0, chain(7, 8), 0.0)
    index.place(0, chain(*hashes), 0.0)
    distinct = {7, 8, *hashes}
    assert len(index) == len(distinct)
    assert index.size(0) == 1024 * len(distinct)
    assert all(index.match([key]) == {0: 1} for key in distinct)
    index.expire(1e6)
    index.expire(2e6)
    assert (len(index), index.size(0)) == (0, 0)


def test_placing_a_longer_chain_again_adds_only_what_is_new() -> None:
    index = index_of(10**6, 10**6)
    index.place(0, chain(1, 2), 0.0)
    index.place(1, chain(1), 0.0)
    index.place(0, chain(1, 2, 3), 0.0)  # holders by runs: both, the first, none
    index.place(1, chain(1, 2, 3, 4), 0.0)
    assert index.match([1, 2, 3, 4]) == {0: 3, 1: 4}
    assert (index.size(0), index.size(1)) == (3 * 1024, 4 * 1024)


def test_to_place_a_chain_tells_how_much_of_its_beginning_was_held() -> None:
    index = index_of(10**6, 10**6)
    assert index.place(0, chain(1, 2), 0.0) == 0
    assert index.place(1, chain(1, 2, 3), 0.0) == 0, "what another replica holds is not held here"
    assert index.place(0, chain(1, 2, 3, 4), 0.0) == 2
    index.forget(0, [2])
    assert index.place(0, chain(1, 2, 3, 4), 1.0) == 1, "3 and 4 are held, but not 2 before them"
    assert index.place(0, chain(1, 2, 3, 4), 1.0) == 4
    assert index.place(7, chain(1), 1.0) == 0, "an unknown slot holds nothing"


def test_hashes_of_different_sizes_weigh_what_each_of_them_is() -> None:
    index = index_of(10**6)
    index.place(0, Chain([1, 2, 3], [100, 1124, 1125]), 0.0)
    assert index.size(0) == 128 + 1024 + 64, "each is rounded up to 64 bytes"
    index.place(0, Chain([1, 2, 9], [100, 1124, 2148]), 0.0)
    assert index.size(0) == 128 + 1024 + 64 + 1024, "only the last is new"


def test_unknown_slots_are_ignored() -> None:
    index = index_of(10**6)
    index.place(7, chain(1), 0.0)
    index.remove_slot(7)
    index.forget(7, [1])
    assert len(index) == 0


def test_more_slots_than_a_machine_word_has_bits() -> None:
    index = index_of(*[10**6] * 300)
    for number in range(300):
        index.place(number, chain(1, 1000 + number), 0.0)
    assert index.match([1, 1299]) == {**dict.fromkeys(range(299), 1), 299: 2}


class Model:
    """The same promise, written plainly: an exact LRU without bound or TTL."""

    def __init__(self) -> None:
        self.held: dict[int, OrderedDict[int, None]] = {}

    def match(self, hashes: list[int]) -> dict[int, int]:
        found = {}
        for slot, held in self.held.items():
            depth = next((i for i, key in enumerate(hashes) if key not in held), len(hashes))
            if depth:
                found[slot] = depth
        return found


@examples(30)
@given(st.integers(0, 2**32), st.integers(1, 6))
def test_without_pressure_it_agrees_with_a_plain_model(seed: int, slots: int) -> None:
    rng = random.Random(seed)
    index, model = PrefixIndex(1e9), Model()
    for _ in range(slots):
        model.held[index.add_slot(10**9, 0.0)] = OrderedDict()
    for step in range(150):
        hashes = [rng.randrange(3) + 10 * depth for depth in range(rng.randrange(1, 6))]
        slot = rng.choice(list(model.held))
        action = rng.random()
        if action < 0.7:
            assert index.place(slot, chain(*hashes), float(step)) == model.match(hashes).get(slot, 0)
            model.held[slot].update(dict.fromkeys(hashes))
        elif action < 0.8:
            index.forget(slot, hashes)
            for key in hashes:
                model.held[slot].pop(key, None)
        elif action < 0.85 and len(model.held) > 1:
            index.remove_slot(slot)
            del model.held[slot]
            model.held[index.add_slot(10**9, float(step))] = OrderedDict()
        assert index.match(hashes) == model.match(hashes)
        assert len(index) == sum(map(len, model.held.values()))


@examples(30)
@given(st.integers(0, 2**32))
def test_a_prompt_that_was_looked_for_first_is_placed_as_one_that_was_not(seed: int) -> None:
    rng = random.Random(seed)
    one, other = index_of(20_000, 20_000, ttl=40.0), index_of(20_000, 20_000, ttl=40.0)
    for step in range(120):
        prompt = chain(*[rng.randrange(2) + 10 * depth for depth in range(rng.randrange(1, 7))])
        one.holders(prompt.hashes)
        between, slot, now = rng.random(), rng.randrange(2), float(step)
        for index in one, other:
            if between < 0.1:
                index.forget(slot, prompt.hashes[-2:])
            elif between < 0.2:
                index.place(1 - slot, Chain(prompt.hashes[:1], prompt.ends[:1]), now)
            elif between < 0.25:
                index.expire(now)
        # The other is given hashes that it was not asked for.
        assert one.place(slot, prompt, now) == other.place(slot, chain(*prompt.hashes), now)
        for each in range(2 if step % 4 == 3 else 0):
            assert one.dump(each, now) == other.dump(each, now)
            assert (one.size(each), one.count(each)) == (other.size(each), other.count(each))


def test_what_was_taken_back_and_comes_with_a_copy_counts_once() -> None:
    index = index_of(100_000, ttl=13.0)  # an epoch takes a second
    index.place(0, chain(1), 0.0)
    index.place(0, chain(1), 1.5)  # the second epoch; its mention in the first is of no use any more
    index.forget(0, [1])
    assert index.restore(0, 1, 1.5, array("Q", [1]), array("H", [16]), 1.5) == 1, "into the first"
    index.set_capacity(0, 0)
    assert (index.count(0), index.size(0), index.who(1)) == (0, 0, ())


@examples(20)
@given(st.integers(0, 2**32))
def test_under_pressure_bounds_hold_and_counts_stay_true(seed: int) -> None:
    rng = random.Random(seed)
    index = PrefixIndex(50.0)
    slot = index.add_slot(64 * 1024, 0.0)
    for step in range(400):
        index.place(slot, chain(*[rng.randrange(400) for _ in range(rng.randrange(1, 9))]), step * 0.3)
        assert index.size(slot) <= 64 * 1024
    assert index.count(slot) == sum(1 for key in range(400) if index.match([key]))
    index.expire(10_000.0)
    for extra in range(20):
        index.expire(10_000.0 + 10 * extra)
    assert len(index) == 0, "entries outlived their TTL"
    assert index.size(slot) == 0


@pytest.mark.parametrize("held", [50_000])
def test_a_pair_takes_at_most_150_bytes(held: int) -> None:
    """Counted by the allocator; benchmarks/index_memory.py shows resident memory at a million pairs."""
    import tracemalloc

    rng = random.Random(1)
    index = PrefixIndex(1e9)
    slots = [index.add_slot(10**9, 0.0) for _ in range(16)]
    tracemalloc.start()
    try:
        for _ in range(held // 20):
            hashes = [rng.getrandbits(60) for _ in range(20)]
            index.place(rng.choice(slots), chain(*hashes), 1.0)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used / len(index) <= 150


def test_mentions_that_are_of_no_use_any_more_are_bounded_where_chains_are_used_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three of ten chains are used in each of 60 epochs: without a bound each slot would keep 15 epochs' mentions."""
    monkeypatch.setattr("extproc.core.index._SLACK", 10)
    index = index_of(10**6, 10**6)
    for epoch in range(60):
        now = epoch * 100.0  # an epoch is 1000 / 13 s
        for number in (0, 1):
            for key in range(epoch % 10, epoch % 10 + 3):
                index.place(number, chain(*range(100 * key, 100 * key + 20), step=64), now)
    for slot in index._slots.values():
        assert sum(map(len, slot.hashes)) <= 2 * slot.count + 10 + 3 * 20, "and what the last epoch adds"
        assert slot.stale >= sum(map(len, slot.hashes)) - slot.count
