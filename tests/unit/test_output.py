"""Predicted output lengths: what is learned, from what, and what bounds it."""

import math
import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.decide import weigh
from extproc.core.output import OutputLengths
from extproc.core.pool import Pool
from extproc.core.prompt import Chain, Prompt
from extproc.core.traits import Traits

CHAT = "openai_chat"


def taught(lengths: OutputLengths, times: int, output: float, tokens: float = 100, model: str = "m") -> None:
    for _ in range(times):
        lengths.observe(model, CHAT, tokens, output)


def test_before_anything_came_back_the_setting_is_the_prediction() -> None:
    assert OutputLengths(256).predict("m", CHAT, 1000) == 256.0


def test_one_answer_moves_the_prediction_by_its_share_and_no_more() -> None:
    lengths = OutputLengths(100)
    lengths.observe("m", CHAT, 100, 190)
    # Each level counts the one above like 8 answers: model (190+8*100)/9 = 110, kind (190+8*110)/9 = 118.9,
    # size (190+8*118.9)/9 = 126.8.
    assert lengths.predict("m", CHAT, 100) == pytest.approx(126.79, abs=0.01)


def test_many_answers_outweigh_the_setting() -> None:
    lengths = OutputLengths(256)
    taught(lengths, 1000, 900.0)
    assert lengths.predict("m", CHAT, 100) == pytest.approx(900, rel=0.01)


def test_sizes_kinds_and_models_are_told_apart() -> None:
    lengths = OutputLengths(256)
    for _ in range(600):
        lengths.observe("m", CHAT, 100, 50)
        lengths.observe("m", CHAT, 20_000, 1000)
        lengths.observe("m", "openai_completions", 100, 10)
        lengths.observe("other", CHAT, 100, 400)
    assert lengths.predict("m", CHAT, 255) == pytest.approx(50, rel=0.4)  # 8 of 208 parts are the level above
    assert lengths.predict("m", CHAT, 65_535) == pytest.approx(1000, rel=0.05)
    assert lengths.predict("m", "openai_completions", 100) == pytest.approx(10, rel=0.5)
    assert lengths.predict("other", CHAT, 100) == pytest.approx(400, rel=0.05)


@pytest.mark.parametrize(
    ("below", "above"), [(255, 256), (1023, 1024), (4095, 4096), (16_383, 16_384), (65_535, 65_536)]
)
def test_a_size_ends_where_it_is_said_to_end(below: int, above: int) -> None:
    lengths = OutputLengths(100)
    taught(lengths, 400, 1000.0, below)
    taught(lengths, 400, 10.0, above)
    assert lengths.predict("m", CHAT, below) > 10 * lengths.predict("m", CHAT, above)


def test_a_size_and_a_kind_never_seen_get_what_is_known_of_the_level_above() -> None:
    lengths = OutputLengths(256)
    taught(lengths, 600, 900.0)
    assert lengths.predict("m", CHAT, 1_000_000) == pytest.approx(900, rel=0.03)
    assert lengths.predict("m", "tgi_generate", 100) == pytest.approx(900, rel=0.03)
    assert lengths.predict("unseen", CHAT, 100) == 256.0


def test_one_huge_answer_counts_for_eight_times_what_was_believed() -> None:
    lengths = OutputLengths(100)
    taught(lengths, 1000, 100.0)
    before = lengths.predict("m", CHAT, 100)
    lengths.observe("m", CHAT, 100, 1e8)
    # 800 instead of 100, against some 200 answers in memory and 8 of the level above, on three levels.
    assert before + 3.3 < lengths.predict("m", CHAT, 100) < before + 4.5


def test_a_change_of_habits_is_followed_within_a_few_hundred_answers() -> None:
    lengths = OutputLengths(100)
    taught(lengths, 2000, 100.0)
    taught(lengths, 600, 2000.0)
    assert lengths.predict("m", CHAT, 100) > 1800
    taught(lengths, 1000, 100.0)
    assert lengths.predict("m", CHAT, 100) < 130


def test_answers_cut_at_their_limit_do_not_make_answers_seem_short() -> None:
    """Lengths with a mean of 400, half the requests with a limit of 100: the mean of what is seen would be 244."""
    rng, lengths = random.Random(3), OutputLengths(400)
    seen = []
    for i in range(4000):
        limit = 100 if i % 2 else None
        whole = rng.expovariate(1 / 400)
        seen.append(min(whole, limit or math.inf))
        lengths.observe("m", CHAT, 100, seen[-1], limit)
    assert sum(seen) / len(seen) < 260
    assert lengths.predict("m", CHAT, 100) == pytest.approx(400, rel=0.2)


@pytest.mark.parametrize("nonsense", [-1, math.nan, math.inf, 1e12])
def test_nonsense_is_ignored(nonsense: float) -> None:
    lengths = OutputLengths(100)
    lengths.observe("m", CHAT, 100, nonsense)
    assert (len(lengths), lengths.predict("m", CHAT, 100)) == (0, 100.0)


def test_the_model_longest_without_an_answer_is_forgotten_first() -> None:
    lengths = OutputLengths(100, models=2)
    for model in ("a", "b"):
        taught(lengths, 400, 900.0, model=model)
    taught(lengths, 1, 900.0, model="a")
    taught(lengths, 1, 900.0, model="c")
    assert len(lengths) == 2
    assert lengths.predict("b", CHAT, 100) == 100.0
    assert lengths.predict("a", CHAT, 100) > 800


def test_names_made_up_by_clients_do_not_fill_memory() -> None:
    lengths = OutputLengths(100)
    for i in range(3000):
        lengths.observe(f"model-{i}", f"kind-{i}", i, i)
        lengths.observe("m", f"kind-{i}", i, i)
        lengths.observe("m" * 10_000, CHAT, i, i)
    assert len(lengths) == 256
    kinds = max(len(model.kinds) for model in lengths._known.values())
    assert kinds == 16
    assert sys.getsizeof(lengths._known) < 100_000


@given(st.lists(st.tuples(st.integers(0, 10**7), st.floats(0, 1e8), st.none() | st.integers(0, 10**6))))
def test_predictions_are_finite_and_above_zero_whatever_came_back(
    answers: list[tuple[int, float, int | None]],
) -> None:
    lengths = OutputLengths(256)
    for tokens, output, limit in answers:
        lengths.observe("m", CHAT, tokens, output, limit)
        assert 0 < lengths.predict("m", CHAT, tokens) < math.inf


def asked(pool: Pool, **fields: object) -> float:
    prompt = Prompt(
        dialect=CHAT, model="m", chains=[Chain([1], [400])], size=400, **{"kind": "generate", **fields}
    )  # type: ignore[arg-type]
    return weigh(pool, prompt, random.Random(0), key=1, now=0.0).output


def test_a_decision_expects_what_was_learned_bounded_by_the_requests_own_limit() -> None:
    pool = Pool("p", traits=Traits(output_tokens=300), now=0.0)
    pool.join("10.0.0.1:8000", 0.0)
    assert asked(pool) == 300.0
    taught(pool.output, 2000, 800.0)
    assert asked(pool) == pytest.approx(800, rel=0.02)
    assert asked(pool, max_output=20) == 20
    assert asked(pool, max_output=20, n=3) == 60
    assert asked(pool, max_output=100_000) == pytest.approx(800, rel=0.02)
    assert asked(pool, kind="embed") == 0
