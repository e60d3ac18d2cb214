"""charged_cost settled by a few candidates says what it says of all of them: picks, draws and columns."""

from collections import Counter, deque
from copy import copy
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from extproc.core.decide import decide, weigh
from extproc.core.ledger import Ledger
from extproc.core.policies import Ask, Choice
from extproc.core.policies.charged_cost import ChargedCost
from extproc.core.policies.shortlist import Shortlist
from extproc.core.pool import Pool
from extproc.core.prompt import Chain, Prompt
from extproc.core.traits import Traits

#: 1,000 prompt tokens a second.
TRAITS = Traits(prefill_speed=1000.0, max_running=1000, kv_tokens=100_000, output_tokens=100, stale_after=1e9)


class Both:
    """Answers with the shortlist where there is one, and notes where looking at all would have said otherwise."""

    def __init__(self, **settings: float) -> None:
        self.short, self.full = ChargedCost(**settings), ChargedCost(**settings)
        self.seen: Counter[str] = Counter()
        self.differences: list[Any] = []

    def choose(self, ask: Ask, picks: int, rng: Any) -> Choice:
        before = rng.getstate()
        short = self.short.choose(ask, picks, rng)
        after = rng.getstate()
        of_all = copy(ask)
        of_all.whole = None
        rng.setstate(before)
        full = self.full.choose(of_all, picks, rng)
        if isinstance(short, Shortlist):
            self.seen.update(["shortlist", f"{len(ask.holders or ())} holders", short.reason])
            self.seen["draws"] += before != after
        else:
            self.seen["all"] += 1
        said = [(c.order, c.reason, list(c.scores), dict(c.parts)) for c in (short, full)]
        if said[0] != said[1] or rng.getstate() != after:
            self.differences.append(said)
        return short


def prompt(session: int, turn: int) -> Prompt:
    """A chat of 4 KB and 1 KB more each turn; a third of the sessions begin alike."""
    beginning = 1 + session % 3
    hashes = [beginning, 100 + session, *[1000 * session + 10_000 + i for i in range(turn)]]
    ends = [2000, 4000, *[5000 + 1000 * i for i in range(turn)]]
    return Prompt("openai_chat", "generate", chains=[Chain(hashes, ends)], size=ends[-1])


def replayed(both: Both, replicas: int, gap: float, seed: int = 1, traits: Traits = TRAITS) -> Pool:
    """600 requests of 40 chats, `gap` seconds apart on average; each is answered after a second."""
    pool, ledger, rng = Pool("p", traits=traits, now=0.0), Ledger(), Random(seed)
    pool.policy = both
    for i in range(replicas):
        pool.join(f"10.0.0.{i + 1}:8000", 0.0)
    turns: Counter[int] = Counter()
    now, open_ones = 0.0, deque[tuple[int, float]]()
    for key in range(1, 601):
        now += rng.expovariate(1 / gap)
        if key % 50 == 0:  # engines are heard to be of other speeds
            pool.presume(rng.choice(pool.replicas), 100_000, prefill=rng.choice([700.0, 1000.0, 1500.0]))
        session = rng.randrange(40)
        turns[session] = (turns[session] + 1) % 12
        decision = decide(
            pool, prompt(session, turns[session]), ledger, rng, key=key, now=now, told=key % 7 == 0
        )
        assert decision.trouble == ""
        open_ones.append((key, now + 1.0))
        while open_ones[0][1] < now:
            old, _ = open_ones.popleft()
            ledger.release(old, now, answered=old % 2 == 0)
        if key % 7 == 0 and rng.random() < 0.5:
            ledger.prompt_done(key, now + 0.001)
    return pool


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("replicas", "gap"), [(2, 0.3), (4, 0.2), (16, 0.5), (16, 0.1), (16, 0.03), (16, 0.005), (64, 0.05)]
)
def test_a_shortlist_says_what_looking_at_all_says(replicas: int, gap: float, seed: int) -> None:
    both = Both()
    replayed(both, replicas, gap, seed)
    assert both.differences == []


def test_shortlists_settle_much_of_what_comes_to_a_fleet_with_room() -> None:
    both = Both()
    replayed(both, 16, 0.1)
    assert both.seen["shortlist"] > 200, both.seen
    assert both.seen["all"] > 50, "prompts that few hold, who are busy"
    assert both.seen["1 holders"] + both.seen["2 holders"] > 0, "filled up with idle ones"
    assert both.seen["copied"] > 0
    assert both.seen["draws"] > 0


@pytest.mark.parametrize(
    "settings", [{"near": 0.5}, {"copy": 0.0}, {"decode": 0.0}, {"dry": 1.0}, {"gain": 0.0}, {"near": 0.0}]
)
def test_a_shortlist_heeds_the_settings(settings: dict[str, float]) -> None:
    both = Both(**settings)
    replayed(both, 16, 0.08)
    assert both.differences == []


def test_who_holds_less_and_is_busy_is_no_place_for_a_copy_while_others_cost_less() -> None:
    """A and B hold nearly all, C half of it with 3 s ahead, D nothing: D is the best that holds less."""
    pool, ledger = Pool("p", traits=TRAITS, now=0.0), Ledger()
    for i in range(4):
        pool.join(f"10.0.0.{i + 1}:8000", 0.0)
    assert pool.outlook.all_open(pool.replicas, 0.0)
    ledger.charge(1, pool.replicas[2], 3000.0, 3000, 0.0)
    asked = Prompt("openai_chat", "generate", chains=[Chain([1, 2], [500, 1000])], size=1000)
    cached = [999.0, 999.0, 500.0, 0.0]
    ask = Ask(pool.replicas, cached, 1000.0, 100.0, 0.0, 0.0, asked, 0.0, 1.0, lambda _slot: 0.0)
    ask.holders, ask.is_even, ask.may_be_crowded, ask.whole = [0, 1, 2], True, False, pool.outlook
    choice = ChargedCost().choose(ask, 2, Random(1))
    assert isinstance(choice, Shortlist)
    found = choice.best_of_less(cached)
    assert found is not None
    assert (found[2], found[3]) == (3, 1.0), "1,000 tokens at 1,000 a second"


def test_uneven_crowded_and_limited_fleets_are_looked_at_whole() -> None:
    both = Both()
    pool = replayed(both, 4, 0.3)
    now, asked = 2000.0, prompt(1, 3)
    before = both.seen["all"]
    weigh(pool, asked, Random(1), key=0, now=now, only=[frozenset(r.address for r in pool.replicas)])
    assert both.seen["all"] == before + 1
    uneven = Both()
    replayed(uneven, 4, 0.3, traits=replace(TRAITS, costs={"10.0.0.1:8000": 1.5}))
    crowded = Both()
    replayed(crowded, 4, 0.1, traits=replace(TRAITS, max_running=1))
    assert uneven.seen["shortlist"] == 0
    assert crowded.differences == uneven.differences == []


def test_what_comes_later_does_not_change_the_columns_of_a_decision() -> None:
    pool, ledger, rng = Pool("p", traits=TRAITS, now=0.0), Ledger(), Random(1)
    for i in range(4):
        pool.join(f"10.0.0.{i + 1}:8000", 0.0)
    first = decide(pool, prompt(0, 2), ledger, rng, key=1, now=0.0)
    second = decide(pool, prompt(0, 2), ledger, rng, key=2, now=1.0)
    assert isinstance(second.choice, Shortlist)
    assert second.replica is first.replica
    scores, parts = list(second.choice.scores), dict(second.choice.parts)
    for key in range(3, 9):
        decide(pool, prompt(key, 2), ledger, rng, key=key, now=1.0)
    assert (second.choice.scores, second.choice.parts) == (scores, parts)
