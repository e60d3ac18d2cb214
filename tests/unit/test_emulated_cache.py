"""The KV block pool: sharing, LRU, promises, and that held blocks stay."""

from hypothesis import given
from hypothesis import strategies as st

from extproc.sim.emulated.cache import BlockPool, Lease


def hold(pool: BlockPool, names: list[int], extra: int = 0) -> Lease:
    """A live sequence with these full blocks and `extra` plain ones; what is cached is hit."""
    hits = names[: pool.match(names, len(names))]
    lease = pool.admit(hits, len(names) + extra)
    assert lease is not None, "no room"
    pool.grow(lease, len(names) + extra)
    pool.name(lease, names[len(hits) :])
    return lease


def test_idle_blocks_count_as_free():
    pool = BlockPool(10)
    lease = hold(pool, [1, 2, 3], extra=1)
    assert (pool.held, pool.idle, pool.cached, pool.usage) == (4, 0, 3, 0.4)
    pool.release(lease)
    assert (pool.held, pool.idle, pool.cached, pool.usage) == (0, 3, 3, 0.0)


def test_two_sequences_hold_a_common_block_once():
    pool = BlockPool(10)
    first, second = hold(pool, [1, 2]), hold(pool, [1, 2, 3])
    assert pool.held == 3
    pool.release(first)
    assert (pool.held, pool.idle) == (3, 0)
    pool.release(second)
    assert (pool.held, pool.idle) == (0, 3)


def test_a_match_ends_at_the_first_block_that_is_missing():
    pool = BlockPool(10)
    pool.release(hold(pool, [1, 2, 3]))
    assert pool.match([1, 2, 9, 3], 4) == 2
    assert pool.match([1, 2, 3], 2) == 2, "the limit holds"
    assert pool.match([], 5) == 0


def test_the_oldest_idle_prompt_goes_first_and_its_end_before_its_beginning():
    pool = BlockPool(5)
    pool.release(hold(pool, [1, 2]))
    pool.release(hold(pool, [3, 4]))
    hold(pool, [5, 6])  # 4 idle and 2 held: one has to go
    assert not pool.holds(2)
    assert all(pool.holds(name) for name in (1, 3, 4, 5, 6))


def test_a_hit_makes_a_block_young_again():
    pool = BlockPool(4)
    pool.release(hold(pool, [1, 2]))
    pool.release(hold(pool, [3, 4]))
    pool.release(hold(pool, [1, 2]))
    hold(pool, [5])
    assert not pool.holds(4)
    assert pool.holds(1)
    assert pool.holds(2)


def test_blocks_of_live_sequences_are_never_evicted():
    pool = BlockPool(4)
    hold(pool, [1, 2])
    pool.release(hold(pool, [3, 4]))
    hold(pool, [5, 6])
    assert pool.holds(1)
    assert pool.holds(2)
    assert pool.idle == 0


def test_a_promise_keeps_room_before_it_is_used():
    pool = BlockPool(4)
    lease = pool.admit([], 3)
    assert lease is not None
    assert pool.held == 0
    assert pool.admit([], 2) is None, "3 of 4 blocks are promised"
    pool.release(lease)
    assert pool.admit([], 2) is not None


def test_hits_on_held_blocks_need_no_room():
    pool = BlockPool(4)
    hold(pool, [1, 2, 3])
    assert pool.admit([1, 2, 3], 4) is not None
    assert pool.admit([1, 2, 3], 4) is None, "the fourth block is taken by now"


def test_a_block_that_another_sequence_filled_first_is_shared():
    pool = BlockPool(10)
    first, second = pool.admit([], 1), pool.admit([], 1)
    assert first is not None
    assert second is not None
    for lease in (first, second):
        pool.grow(lease, 1)
        pool.name(lease, [7])
    assert pool.held == 1


def test_after_a_drop_nothing_is_hit_and_live_sequences_keep_their_blocks():
    pool = BlockPool(10)
    live = hold(pool, [1, 2], extra=1)
    pool.release(hold(pool, [3]))
    pool.drop()
    assert (pool.held, pool.cached) == (3, 0)
    again = hold(pool, [1, 2])
    assert pool.held == 5, "the old blocks can't be shared any more"
    pool.release(live)
    assert (pool.held, pool.idle, pool.cached) == (2, 0, 2)
    pool.release(again)
    assert (pool.held, pool.idle) == (0, 2)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("start"), st.integers(0, 3), st.integers(0, 6), st.integers(0, 2)),
            st.tuples(st.just("end"), st.integers(0, 5)),
            st.just(("drop",)),
        ),
        max_size=60,
    )
)
def test_any_history_keeps_the_sums_right(history):
    pool, leases = BlockPool(12), []
    for kind, *numbers in history:
        if kind == "start":
            family, length, extra = numbers
            names = [family * 100 + i for i in range(length)]
            hits = names[: pool.match(names, length)]
            lease = pool.admit(hits, length + extra)
            if lease:
                pool.grow(lease, length + extra)
                pool.name(lease, names[len(hits) :])
                leases.append(lease)
        elif kind == "end" and leases:
            pool.release(leases.pop(numbers[0] % len(leases)))
        elif kind == "drop":
            pool.drop()
        distinct = {(id(lease.book), name) for lease in leases for name in lease.names}
        assert pool.held == len(distinct) + sum(lease.plain for lease in leases)
        assert pool.held + pool.idle <= pool.capacity
    for lease in leases:
        pool.release(lease)
    assert pool.held == 0
    assert pool.admit([], pool.capacity) is not None, "no promise is left behind"
