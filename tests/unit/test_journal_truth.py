"""One gateway judges what caches hold for all: what it is told, what it tells, and who is believed."""

from extproc.core.announced import ALONE, JUDGE, WATCHER, Ruling
from extproc.core.journal import Batch, Engine, Outcome, Placed, Ruled, pack_chain
from extproc.core.learned import learned, presume
from extproc.core.pool import Pool
from extproc.core.prompt import Chain
from extproc.core.shared import Shared
from extproc.core.truth import Truth, View
from extproc.core.verdicts import Verdicts

A = "10.0.0.1:8000"
ENGINES = [Engine("chat", A)]
KIB = 1024


def chain(*hashes: int) -> Chain:
    return Chain(list(hashes), [KIB * (i + 1) for i in range(len(hashes))])


def gateway(role: str) -> tuple[Shared, Truth]:
    pool = Pool("chat", now=0.0, distrust=0.5)
    pool.join(A, 0.0)
    assert pool.feedback is not None
    pool.feedback.truth.role = lambda: role
    return Shared([pool], ("me", 1)), pool.feedback.truth


def say(seq: int, *, tells: bool = True, **news: object) -> Batch:
    return Batch("other", 7, seq, engines=list(ENGINES), tells=tells, **news)  # type: ignore[arg-type]


def told(shared: Shared, outcomes: list[tuple[int, float | None]], *, tells: bool = True) -> None:
    """Another gateway places a prompt of four hashes, again and again, and says how many tokens of it were cached."""
    for number, (key, cached) in enumerate(outcomes):
        packed = [pack_chain(chain(1, 2, 3, 4))]
        placed = [Placed(key, 0, 1.0, 1, 0.0, packed)]
        shared.hear(say(2 * number, placed=placed, tells=tells), (2 * number + 1, 0), float(number))
        ended = [Outcome(key, 1024, None if cached is None else int(cached))]
        shared.hear(say(2 * number + 1, outcomes=ended, tells=tells), (2 * number + 2, 0), number + 0.5)


def view(truth: Truth) -> View:
    return truth.view(0)


def held(shared: Shared, *hashes: int) -> int:
    return shared.pools["chat"].index.match(hashes).get(0, 0)


def test_the_judge_compares_what_it_predicts_of_others_prompts_with_what_they_tell() -> None:
    shared, truth = gateway(JUDGE)
    told(shared, [(1, 0), (2, 1024), (3, 512)])
    # The first was predicted cold; then four hashes, 1,024 tokens of usage, were predicted twice: 1,024 + 512 came.
    assert (view(truth).samples, view(truth).predicted, view(truth).actual) == (3, 2048, 1536)
    assert truth.open == 0


def test_who_does_not_judge_keeps_nothing_of_others_prompts() -> None:
    for role in (WATCHER, ALONE):
        shared, truth = gateway(role)
        told(shared, [(1, 0), (2, 1024)])
        assert (view(truth).samples, truth.open) == (0, 0)


def test_of_a_gateway_that_tells_no_outcomes_nothing_stays_open() -> None:
    shared, truth = gateway(JUDGE)
    told(shared, [(1, 0), (2, 0)], tells=False)
    assert (view(truth).samples, truth.open) == (0, 0)


def test_of_a_gateway_that_is_gone_nothing_stays_open() -> None:
    shared, truth = gateway(JUDGE)
    shared.hear(say(0, placed=[Placed(1, 0, 1.0, 1, 0.0, [pack_chain(chain(1))])]), (1, 0), 1.0)
    assert truth.open == 1
    assert shared.expire(9.0) == ["other"]
    assert truth.open == 0


def test_a_prompt_never_computed_compares_nothing() -> None:
    shared, truth = gateway(JUDGE)
    shared.hear(say(0, placed=[Placed(1, 0, 1.0, 1, 0.0, [pack_chain(chain(1))])]), (1, 0), 1.0)
    shared.hear(say(1, outcomes=[Outcome(1, 0)]), (2, 0), 1.1)
    assert (view(truth).samples, truth.open) == (0, 0)


def test_the_judge_itself_follows_its_ruling_only_when_it_reads_it() -> None:
    shared, truth = gateway(JUDGE)
    rulings: list[Ruling] = []
    truth.on_ruling = lambda slot, ruling: rulings.append(ruling)
    told(shared, [(1, 0), *((key, 1024.0) for key in range(2, 12)), *((key, 0.0) for key in range(12, 40))])
    assert rulings[-1].scale < 1.0, "nothing came of what was predicted"
    assert truth.scales == {}
    ruled = Ruled(0, 1, rulings[-1].step, rulings[-1].scale)
    shared.hear(Batch("me", 1, 0, engines=list(ENGINES), ruled=[ruled]), (99, 0), 50.0)
    assert truth.scales == {0: rulings[-1].scale}


def test_an_emptied_cache_keeps_what_the_ruling_says_and_what_stands_behind_it() -> None:
    shared, truth = gateway(WATCHER)
    for number, key in enumerate((11, 12, 13)):
        row = Placed(number + 1, 0, 1.0, 1, 0.0, [pack_chain(chain(key))])
        shared.hear(say(number, placed=[row]), (10 * number + 10, 0), 1.0)
    ruled = Ruled(0, 5, 32, 1.0, True, [pack_chain(chain(12))])
    shared.hear(say(3, ruled=[ruled]), (25, 0), 1.0)  # read late: the third stands behind it
    assert [held(shared, key) for key in (11, 12, 13)] == [0, 1, 1]
    assert view(truth).emptied == 1
    shared.hear(say(4, placed=[Placed(9, 0, 1.0, 1, 0.0, [pack_chain(chain(14))])]), (15, 0), 1.0)
    assert held(shared, 14) == 0, "placed before the cache was emptied, and heard after"


def test_the_word_of_the_greater_token_holds_whatever_comes_first() -> None:
    for order in ((3, 5), (5, 3)):
        shared, truth = gateway(WATCHER)
        for number, token in enumerate(order):
            step = 20 if token == 5 else 28
            shared.hear(say(number, ruled=[Ruled(0, token, step, token / 10)]), (number + 1, 0), 1.0)
        # Twelve steps of 2 ** (1 / 4) below the configured capacity: an eighth of it.
        assert view(truth).believed == view(truth).configured // 8
        assert truth.scales == {0: 0.5}


def test_a_token_from_the_day_after_tomorrow_rules_nothing() -> None:
    shared, truth = gateway(WATCHER)
    shared.epoch = lambda: 1e9
    shared.hear(say(0, ruled=[Ruled(0, 1_000_200_000_000, 0, 0.0, True)]), (1, 0), 1.0)
    assert (shared.malformed, truth.scales, view(truth).scale) == (1, {}, 1.0)
    shared.hear(say(1, ruled=[Ruled(0, 1_000_000_000_000, 32, 0.5)]), (2, 0), 1.0)
    assert truth.scales == {0: 0.5}


def test_the_next_judge_goes_on_from_what_was_told() -> None:
    shared, truth = gateway(WATCHER)
    shared.hear(say(0, ruled=[Ruled(0, 1, 24, 1.0)]), (1, 0), 1.0)
    truth.role = lambda: JUDGE
    assert truth.rulings() == [(0, Ruling(24, 1.0, False, []))]
    assert view(truth).believed == view(truth).configured // 4


def test_a_new_gateway_begins_with_what_the_snapshot_tells_of_caches() -> None:
    writer, _ = gateway(WATCHER)
    writer.hear(say(0, ruled=[Ruled(0, 1, 24, 0.5)]), (1, 0), 1.0)
    reader, truth = gateway(WATCHER)
    for _ in range(2):
        presume(reader.pools["chat"], learned(writer.pools["chat"]))
    assert (view(truth).believed, truth.scales) == (view(truth).configured // 4, {0: 0.5})
    reader.hear(say(0, ruled=[Ruled(0, 1, 32, 1.0)]), (1, 0), 1.0)
    presume(reader.pools["chat"], learned(writer.pools["chat"]))
    assert (view(truth).believed, truth.scales) == (view(truth).configured, {})


def test_a_batch_that_failed_is_told_again_and_what_waits_is_bounded() -> None:
    pool = Pool("chat", now=0.0, distrust=0.5)
    replica = pool.join(A, 0.0)
    news = Verdicts([pool], lambda: None)
    for key in range(1, 50_003):
        news.outcome(key, 1024.0, None if key == 2 else 512.0)
    news.ruled(pool, replica, 3, Ruling(24, 0.5, True, [chain(1, 2)]))
    assert news.dropped == 2
    first, again = Batch("me", 1, 0), Batch("me", 1, 1)
    for batch in (first, again):
        news.add(batch, {})
        news.failed()
    assert first.tells
    assert first.outcomes[:2] == [Outcome(1, 1024, 512), Outcome(2, 1024, None)]
    assert first.ruled == [Ruled(0, 3, 24, 0.5, True, [pack_chain(chain(1, 2))])]
    assert (again.outcomes, again.ruled) == (first.outcomes, first.ruled)
