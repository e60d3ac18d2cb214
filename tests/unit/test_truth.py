"""Predicted against actual hits: what is concluded of a replica, and what is not."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.announced import WATCHER
from extproc.core.index import PrefixIndex
from extproc.core.prompt import Chain
from extproc.core.truth import Seen, Truth
from tests.examples import examples
from tests.unit.cache_world import KIB, PER_TOKEN, Engine, World, chat


def longer(hashes: list[int]) -> Chain:
    return chain(*hashes, hashes[-1] + 1)


def chain(*hashes: int) -> Chain:
    return Chain(list(hashes), [KIB * (i + 1) for i in range(len(hashes))])


class Desk:
    """One replica, or more, driven by hand. 256 tokens a hash."""

    def __init__(self, replicas: int = 1, capacity: int = 1000 * KIB) -> None:
        self.index = PrefixIndex(1e9)
        self.truth = Truth(self.index)
        self.key = 0
        self.now = 0.0
        for _ in range(replicas):
            self.truth.join(self.index.add_slot(capacity, 0.0), capacity)

    def send(self, prompt: Chain, slot: int = 0) -> int:
        """Bind a prompt to a replica; returns its key."""
        self.key += 1
        self.now += 1.0
        self.truth.expect(self.key, slot, prompt, 1 / PER_TOKEN, self.now)
        self.index.place(slot, prompt, self.now)
        return self.key

    def end(self, key: int, prompt: Chain, cached: float | None) -> Seen | None:
        """Its usage comes."""
        return self.truth.observe(key, prompt.ends[-1] / PER_TOKEN, cached, self.now)

    def run(self, prompt: Chain, cached: float | None, slot: int = 0) -> Seen | None:
        """Both."""
        return self.end(self.send(prompt, slot), prompt, cached)

    def depth(self, prompt: Chain, slot: int = 0) -> int:
        """Leading hashes believed to be held."""
        return self.index.match(prompt.hashes).get(slot, 0)


# -- engines that don't tell ---------------------------------------------------------------------------


def kept(desk: Desk) -> int:
    """Points remembered of the order of use."""
    return len(desk.truth._slots[0].belief.reuse)


def test_of_an_engine_silent_for_64_prompts_no_order_of_use_is_kept() -> None:
    desk = Desk()
    for number in range(63):
        desk.run(chain(100 + number), None)
    assert kept(desk) == 63
    desk.run(chain(200), None)
    desk.run(chain(201), None)
    assert kept(desk) == 0


def test_one_word_of_cached_tokens_and_it_is_kept_again() -> None:
    desk = Desk()
    for number in range(70):
        desk.run(chain(100 + number), None)
    assert desk.run(chain(1, 2, 3, 4), 16) == Seen(0, 16, "untested")
    assert kept(desk) == 0  # it was sent before that was known
    assert desk.run(chain(1, 2, 3, 4, 5), 1024) == Seen(1024, 1024, "came")
    assert kept(desk) == 2  # its end, and one hash before, where it left what was held
    assert desk.run(chain(1, 2, 3, 4, 5, 6), 1280) == Seen(1280, 1280, "came")


def test_a_few_prompts_without_usage_among_others_change_nothing() -> None:
    desk, other = Desk(), Desk()
    for number in range(120):
        desk.run(chain(100 + number), 16)
        other.run(chain(100 + number), 16)
        for place in range(number % 60):
            desk.end(desk.send(chain(5000 + place)), chain(5000 + place), None)
    assert kept(desk) == kept(other) + 59


# -- one comparison ------------------------------------------------------------------------------------


def test_a_prompt_never_seen_predicts_nothing_and_tests_nothing() -> None:
    assert Desk().run(chain(1, 2), 0) == Seen(0, 0, "untested")


@pytest.mark.parametrize(
    ("cached", "verdict"),
    [(1024, "came"), (922, "came"), (921, "colder"), (0, "colder"), (1278, "came"), (1280, "came")],
)
def test_four_hashes_of_five_are_1024_tokens_to_within_a_tenth(cached: float, verdict: str) -> None:
    desk = Desk()
    desk.run(chain(1, 2, 3, 4), 0)
    desk.truth.observe(desk.send(chain(90)), 256, 16, desk.now)  # this engine does report
    seen = desk.run(chain(1, 2, 3, 4, 5), cached)
    assert seen == Seen(1024, cached, verdict)


def test_tokens_come_from_usage_and_not_from_the_believed_ratio() -> None:
    desk = Desk()
    desk.run(chain(1, 2, 3), 0)
    key = desk.send(chain(1, 2, 3, 4))
    assert desk.truth.observe(key, 2000, 1500, desk.now) == Seen(1500, 1500, "came")  # three quarters of 2000


def test_what_was_cached_beyond_the_next_hash_is_unexpected_and_shown() -> None:
    desk = Desk()
    desk.run(chain(1, 2), 0)
    assert desk.run(chain(1, 2, 3, 4, 5), 1280) == Seen(512, 1280, "warmer")
    # Up to the end of the third hash, 768, it may be chance; so 1280 - 768, less a tenth of 512.
    assert desk.truth.view(0).unexpected == pytest.approx(1280 - 768 - 51.2)


def test_a_colder_prompt_is_held_all_the_same_as_it_was_computed_there() -> None:
    desk = Desk()
    desk.run(chain(1, 2, 3, 4), 0)
    desk.run(chain(1, 2, 3, 4, 5), 0)
    assert desk.depth(chain(1, 2, 3, 4, 5)) == 5


@pytest.mark.parametrize(
    ("tokens", "cached"),
    [
        (None, 5),
        (100, None),
        (100, 101),
        (100, -1),
        (0, 0),
        (float("nan"), 1),
        (100, float("nan")),
        (1e12, 5),
    ],
)
def test_usage_that_is_absent_or_nonsense_compares_nothing(
    tokens: float | None, cached: float | None
) -> None:
    desk = Desk()
    desk.run(chain(1, 2), 0)
    key = desk.send(chain(1, 2, 3))
    samples = desk.truth.view(0).samples
    assert desk.truth.observe(key, tokens, cached, desk.now) is None
    assert desk.truth.view(0).samples == samples
    assert desk.truth.open == 0


# -- prompts on their way ------------------------------------------------------------------------------


def test_what_another_prompt_is_only_about_to_bring_is_not_predicted() -> None:
    desk = Desk()
    desk.run(chain(1, 2), 0)
    first, second = chain(1, 2, 3, 4), chain(1, 2, 3, 4, 5)
    one, two = desk.send(first), desk.send(second)
    assert desk.end(two, second, 512) == Seen(512, 512, "came")  # hashes 3 and 4 were on their way
    desk.end(one, first, 512)
    assert desk.run(chain(1, 2, 3, 4, 5, 6), 1280) == Seen(1280, 1280, "came")  # by now they are there


def test_from_its_first_token_on_a_prompt_counts_as_held() -> None:
    desk = Desk()
    first, second = chain(1, 2, 3), chain(1, 2, 3, 4)
    one = desk.send(first)
    desk.truth.computed(one)
    assert desk.run(second, 0) == Seen(768, 0, "colder")
    desk.end(one, first, 0)


def test_prompts_on_their_way_elsewhere_do_not_matter() -> None:
    desk = Desk(2)
    desk.run(chain(1, 2, 3), 0, slot=1)
    desk.send(chain(1, 2, 3), slot=0)
    assert desk.run(chain(1, 2, 3, 4), 768, slot=1) == Seen(768, 768, "came")


def test_a_prompt_never_computed_takes_away_what_it_alone_brought() -> None:
    desk = Desk()
    desk.run(chain(1, 2), 0)
    desk.truth.void(desk.send(chain(1, 2, 3, 4)))
    assert desk.depth(chain(1, 2, 3, 4)) == 2


def test_what_two_prompts_bring_stays_until_both_are_void() -> None:
    desk = Desk()
    prompt = chain(1, 2, 3)
    one = desk.send(prompt)
    two = desk.send(chain(1, 2, 3, 4))
    desk.truth.void(one)
    assert desk.depth(prompt) == 0  # the second leaned on it
    desk.end(two, chain(1, 2, 3, 4), 0)


def test_an_exchange_sent_again_was_not_computed_where_it_went_first() -> None:
    desk = Desk(2)
    key = desk.send(chain(1, 2), slot=0)
    desk.truth.expect(key, 1, chain(1, 2), 0.25, desk.now)
    desk.index.place(1, chain(1, 2), desk.now)
    assert desk.index.match([1, 2]) == {1: 2}


def test_news_of_unknown_exchanges_and_of_replicas_that_left_changes_nothing() -> None:
    desk = Desk()
    desk.truth.computed(99)
    desk.truth.void(99)
    assert desk.truth.observe(99, 10, 5, 0.0) is None
    desk.truth.expect(98, 7, chain(1), 0.25, 0.0)
    assert desk.truth.open == 0
    key = desk.send(chain(1, 2))
    desk.truth.leave(0)
    desk.index.remove_slot(0)
    desk.truth.join(desk.index.add_slot(1000 * KIB, 0.0), 1000 * KIB)  # the same number, another incarnation
    assert desk.end(key, chain(1, 2), 0) is None
    assert desk.truth.view(0).samples == 0


# -- an emptied cache ----------------------------------------------------------------------------------


def filled(desk: Desk, sessions: int, times: int = 2) -> list[list[int]]:
    """Sessions of 40 hashes, 42 in the end, that all came as predicted."""
    alive = [[1000 * (i + 1) + j for j in range(40)] for i in range(sessions)]
    for hashes in alive:
        desk.run(chain(*hashes), 0)
    for _ in range(times):
        for hashes in alive:
            held = len(hashes)
            hashes.append(hashes[-1] + 1)
            desk.run(chain(*hashes), held * 256)
    return alive


def test_two_surprises_and_the_cache_is_called_emptied_but_for_what_filled_it_again() -> None:
    desk = Desk()
    alive = filled(desk, 10)
    told = [desk.run(longer(hashes), 0) for hashes in alive[:2]]
    assert [seen.verdict for seen in told if seen] == ["colder", "emptied"]
    held = [desk.depth(longer(hashes)) for hashes in alive]
    assert held == [43, 43, 0, 0, 0, 0, 0, 0, 0, 0]
    assert desk.truth.view(0).emptied == 1
    assert desk.truth.scales == {}


def test_a_hit_on_something_older_than_the_first_miss_clears_the_suspicion() -> None:
    desk = Desk()
    alive = filled(desk, 10)
    for i in (0, 2, 4, 6):
        seen = desk.run(longer(alive[i]), 0)
        assert seen is not None
        assert seen.verdict == "colder"
        desk.run(longer(alive[i + 1]), 42 * 256)  # used last before the miss, and still there
    assert desk.truth.view(0).emptied == 0
    assert desk.depth(chain(*alive[9])) == 42


def test_prompts_on_their_way_when_a_cache_is_called_emptied_stay_and_are_not_tested() -> None:
    desk = Desk()
    alive = filled(desk, 10)
    prompt = longer(alive[9])
    key = desk.send(prompt)
    for hashes in alive[:3]:
        desk.run(longer(hashes), 0)
    assert desk.depth(prompt) == 43
    assert desk.end(key, prompt, 0) == Seen(42 * 256, 0, "untested")


# -- a smaller cache -----------------------------------------------------------------------------------


def test_the_index_keeps_to_the_capacity_believed_also_when_the_engine_says_another() -> None:
    world = World([Engine(250)], 1000)
    chat(world, 600, sessions=60, skew=0.5)
    assert world.truth is not None
    before = world.truth.view(0)
    assert world.index.size(0) <= before.believed < before.configured
    world.truth.resize(0, 500 * KIB)
    after = world.truth.view(0)
    assert after.believed == pytest.approx(before.believed / 2, abs=1)
    assert world.index.size(0) <= after.believed


# -- a cache that is none ------------------------------------------------------------------------------


def test_zero_always_means_no_caching_and_costs_that_replica_its_affinity_alone() -> None:
    desk = Desk(2)
    for slot in (0, 1):
        alive = [[1000 * slot + 100 * (i + 1) + j for j in range(4)] for i in range(10)]
        for _ in range(4):
            for hashes in alive:
                known = desk.depth(chain(*hashes), slot)
                desk.run(chain(*hashes), known * 256 if slot else 0, slot)
                hashes.append(hashes[-1] + 1)
    assert desk.truth.scales == {0: 0.0}
    assert desk.truth.view(0).distrusted == 1
    assert desk.truth.view(1).precision == 1.0


def test_a_distrusted_replica_proves_itself_by_some_predictions_that_came() -> None:
    desk = Desk()
    hashes = [1, 2, 3, 4]
    while desk.truth.scales != {0: 0.0}:
        desk.run(chain(*hashes), 0)
        hashes.append(hashes[-1] + 1)
    scales = []
    for _ in range(16):
        held = desk.depth(chain(*hashes))
        desk.run(chain(*hashes), held * 256)
        scales.append(desk.truth.scales.get(0, 1.0))
        hashes.append(hashes[-1] + 1)
    # n / (n + 4) with n fading over 32: n is 1, 1.97, ... (1 - (31 / 32) ** k) * 32; beyond 12 it is 0.75.
    assert scales[:2] == pytest.approx([1 / 5, 1.97 / 5.97], abs=0.001)
    assert scales[13] == pytest.approx(11.48 / 15.48, abs=0.001)
    assert scales[14:] == [1.0, 1.0]


def test_usage_without_cached_tokens_makes_nobody_a_liar() -> None:
    desk = Desk()
    for _ in range(50):
        desk.run(chain(1, 2, 3, 4, 5), None)
    assert desk.truth.scales == {}
    assert desk.truth.view(0).samples == 0
    assert desk.depth(chain(1, 2, 3, 4, 5)) == 5


# -- the engine's own counter --------------------------------------------------------------------------


def counted(desk: Desk, windows: int, hits: Callable[[int], float], said: float | None) -> None:
    """In each window two prompts end of which 1280 tokens were predicted; the counter then stands at hits(window)."""
    desk.truth.sampled(0, 0.0, None, desk.now)
    desk.run(chain(1, 2, 3, 4, 5), said)
    for window in range(windows):
        for _ in range(2):
            desk.run(chain(1, 2, 3, 4, 5), said)
        desk.truth.sampled(0, hits(window), None, desk.now)


@pytest.mark.parametrize("said", [None, 0.0])
def test_a_counter_that_moves_as_predicted_confirms_it_whatever_usage_fails_to_say(
    said: float | None,
) -> None:
    desk = Desk()
    counted(desk, 20, lambda window: 2560.0 * (window + 1), said)
    assert desk.truth.scales == {}
    assert desk.truth.view(0).precision == pytest.approx(
        1.0, abs=0.03
    )  # the last of 40 hits all its 5 hashes
    assert desk.truth.view(0).samples in (40, 41)


@pytest.mark.parametrize("said", [None, 0.0])
def test_a_counter_that_stands_still_costs_the_affinity(said: float | None) -> None:
    desk = Desk()
    counted(desk, 20, lambda _: 0.0, said)
    assert desk.truth.scales == {0: 0.0}


def test_a_counter_that_stops_is_an_emptied_cache_within_two_samples() -> None:
    desk = Desk()
    desk.run(chain(50, 51, 52), None)
    counted(desk, 8, lambda window: 2560.0 * min(window + 1, 6), None)
    assert desk.truth.view(0).emptied == 1
    assert desk.depth(chain(50, 51, 52)) == 0


def test_hits_counted_before_their_prompt_ends_are_kept_for_it() -> None:
    desk = Desk()
    desk.truth.sampled(0, 0.0, None, 0.0)
    prompt = chain(1, 2, 3, 4)
    desk.run(prompt, None)
    hits = 0.0
    for _ in range(20):
        key = desk.send(prompt)
        hits += 1024
        desk.truth.sampled(0, hits, None, desk.now)  # it is read, and not yet answered
        desk.end(key, prompt, None)
        desk.truth.sampled(0, hits, None, desk.now)
    assert desk.truth.scales == {}
    assert desk.truth.view(0).emptied == 0


def test_a_counter_unknown_or_run_backwards_says_nothing() -> None:
    desk = Desk()
    prompt = chain(1, 2, 3, 4)
    for hits in (100.0, None, 100.0, 50.0, None) * 10:
        desk.run(prompt, None)
        desk.truth.sampled(0, hits, None, desk.now)
    assert desk.truth.view(0).samples <= 10
    assert desk.truth.view(0).emptied == 0
    desk.truth.sampled(99, 1.0, 16, 0.0)


def test_blocks_are_as_large_as_the_engine_says() -> None:
    desk = Desk()
    desk.run(chain(1, 2, 3, 4), 0)
    desk.truth.sampled(0, None, 128, 0.0)
    seen = desk.run(chain(1, 2, 3, 4, 5), 896)  # 1024 less one block; a tenth would not do
    assert seen == Seen(1024, 896, "came")


# -- anything at all -----------------------------------------------------------------------------------

NEWS = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 2), st.integers(0, 5), st.integers(1, 12)),
    st.tuples(
        st.just("end"), st.integers(0, 30), st.none() | st.floats(-10, 4000), st.none() | st.floats(0, 4000)
    ),
    st.tuples(st.sampled_from(["computed", "void"]), st.integers(0, 30), st.just(0), st.just(0)),
    st.tuples(st.just("sampled"), st.integers(0, 2), st.none() | st.floats(0, 1e6), st.none() | st.just(32)),
    st.tuples(st.just("rejoin"), st.integers(0, 2), st.just(0), st.just(0)),
    st.tuples(st.just("resize"), st.integers(0, 2), st.integers(0, 10**6), st.just(0)),
)


def apply(desk: Desk, news: tuple[str, int, float, float]) -> None:
    word, which, one, two = news
    truth = desk.truth
    if word == "send":
        desk.send(chain(*range(100 * int(one) + 1, 100 * int(one) + 1 + int(two))), which)
    elif word == "end":
        truth.observe(desk.key - which, two, one, desk.now)
    elif word == "computed":
        truth.computed(desk.key - which)
    elif word == "void":
        truth.void(desk.key - which)
    elif word == "sampled":
        truth.sampled(which, one, int(two) if two else None, desk.now)
    elif word == "resize":
        truth.resize(which, int(one))
    else:
        truth.leave(which)
        desk.index.remove_slot(which)
        assert desk.index.add_slot(100 * KIB, desk.now) == which
        truth.join(which, 100 * KIB)


@given(st.lists(NEWS, max_size=100))
@examples(30)
def test_whatever_comes_in_whatever_order_the_numbers_make_sense(
    news: list[tuple[str, int, float, float]],
) -> None:
    desk = Desk(3, 100 * KIB)
    for item in news:
        apply(desk, item)
    for slot in range(3):
        view = desk.truth.view(slot)
        assert 0 <= view.scale <= 1
        assert view.precision is None or 0 <= view.precision <= 1 + 1e-9
        assert 0 <= view.believed <= view.configured
        assert desk.index.size(slot) <= max(view.believed, 0) + 64
    assert all(0 <= scale < 1 for scale in desk.truth.scales.values())
    for key in range(desk.key + 1):
        desk.truth.observe(key, None, None, desk.now)
    assert desk.truth.open == 0


def test_the_same_news_gives_the_same_views() -> None:
    def views() -> list[object]:
        world = World([Engine(250) for _ in range(2)], 1000, seed=5)
        chat(world, 500, sessions=50)
        assert world.truth is not None
        return [world.truth.view(slot) for slot in range(2)]

    assert views() == views()


def test_exchanges_that_never_end_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extproc.core.truth._OPEN", 100)
    desk = Desk()
    for key in range(150):
        desk.truth.expect(key, 0, chain(1), 0.25, 0.0)
    assert desk.truth.open == 100


def test_where_another_gateway_judges_it_watches_and_changes_nothing_but_what_was_never_computed() -> None:
    index = PrefixIndex(ttl=1e9)
    slot = index.add_slot(10**6, 0.0)
    truth, told = Truth(index), []
    truth.join(slot, 10**6)
    truth.role = lambda: WATCHER
    truth.on_forgot = lambda number, hashes: told.append((number, hashes))
    for key in range(40):  # each was believed to be held whole, and none was
        chain = Chain([key + 1], [4096])
        index.place(slot, chain, 0.0)
        truth.expect(key, slot, chain, 0.25, 1.0)
        truth.observe(key, 1024, 0, 2.0)
    assert index.count(slot) == 40
    assert not truth.scales
    truth.expect(99, slot, Chain([1, 1000], [4096, 8192]), 0.25, 3.0)
    index.place(slot, Chain([1, 1000], [4096, 8192]), 3.0)
    truth.void(99)
    assert told == [(slot, [1000])]
    assert index.count(slot) == 40


def test_what_other_gateways_send_counts_as_given_to_a_replica() -> None:
    index = PrefixIndex(ttl=1e9)
    slot = index.add_slot(10**6, 0.0)
    truth = Truth(index)
    truth.join(slot, 10**6)
    mine, theirs = Chain([1, 2], [40_000, 80_000]), Chain([11, 12], [50_000, 100_000])
    truth.expect(1, slot, mine, 0.25, 0.0)
    index.place(slot, mine, 0.0)
    truth.observe(1, 20_000, 0, 1.0)
    truth.heard(slot, theirs, 0, 2.0)
    truth.heard(99, theirs, 0, 2.0)
    (*_, use) = truth._slots[slot].belief.reuse.look(mine, 2)
    assert use.distance == 100_000
