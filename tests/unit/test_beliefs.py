"""What was learned of caches and tokens is shown, and told in the log once."""

import random

import pytest
from structlog.testing import capture_logs

from extproc.cli.replicas import table
from extproc.core.announced import WATCHER
from extproc.core.decide import decide
from extproc.core.ending import Ending
from extproc.core.fleet import Replica
from extproc.core.ledger import Ledger
from extproc.core.pool import Pool
from extproc.core.prompt import Chain, Prompt
from extproc.io.beliefs import Beliefs, cache_of, ratios_of

KIB4 = 4096


def pool(**settings: object) -> Pool:
    return Pool("p", distrust=0.5, **settings)  # type: ignore[arg-type]


def use(pool: Pool, replica: Replica, key: int, cached: int, now: float, name: int = 7) -> None:
    """A prompt of 1,024 tokens, of which so many were cached."""
    assert pool.feedback is not None
    chain = Chain([name], [KIB4])
    pool.feedback.truth.expect(key, replica.slot, chain, 0.25, now)
    pool.place(replica, [chain], now)
    pool.feedback.truth.observe(key, 1024, cached, now + 0.5)


def test_a_replicas_cache_is_shown_with_what_came_of_what_was_predicted() -> None:
    made = pool()
    replica = made.join("10.0.0.1:80", 0.0)
    use(made, replica, 1, 0, 1.0)
    use(made, replica, 2, 1024, 2.0)
    shown = cache_of(made, replica)
    assert shown is not None
    assert (shown["samples"], shown["predicted_tokens"], shown["cached_tokens"]) == (2, 1024, 1024)
    assert (shown["precision"], shown["scale"], shown["believed_share"]) == (1.0, 1.0, 1.0)
    assert (shown["emptied"], shown["distrusted"], shown["voided"]) == (0, 0, 0)


def test_without_feedback_nothing_is_shown() -> None:
    made = Pool("p")
    assert cache_of(made, made.join("10.0.0.1:80", 0.0)) is None


def test_before_any_prediction_the_share_is_unknown_and_not_zero() -> None:
    made = pool()
    shown = cache_of(made, made.join("10.0.0.1:80", 0.0))
    assert shown is not None
    assert shown["precision"] is None


def test_tokens_per_byte_are_shown_of_declared_models_and_else_of_those_asked_for() -> None:
    for declared, shown in (({"m"}, ["m"]), (set(), ["m", "x"])):
        made = pool(models=declared)
        for model in ("m", "x"):
            for _ in range(8):
                made.ratios.observe(model, "", 1000, 400)
        rows = ratios_of(made)
        assert [row["model"] for row in rows] == shown
        assert (rows[0]["script"], rows[0]["prompts"]) == ("any", 8)
        assert abs(rows[0]["tokens_per_byte"] - 0.4) < 0.005


def test_an_emptied_cache_and_prompts_never_computed_are_told_once() -> None:
    made, beliefs = pool(), Beliefs()
    replica = made.join("10.0.0.1:80", 0.0)
    for key in range(40):  # two prompts that were found, then neither; and never again what was predicted
        use(made, replica, key, 1024 if 2 <= key < 10 else 0, float(key), key % 2)
    assert made.feedback is not None
    made.feedback.truth.expect(99, replica.slot, Chain([1], [KIB4]), 0.25, 20.0)
    made.feedback.truth.void(99)
    with capture_logs() as said:
        beliefs.look([made])
        beliefs.look([made])
    assert [(line["event"].split(":")[0], line["replica"], line.get("count")) for line in said] == [
        ("a cache was emptied", "10.0.0.1:80", None),
        ("a cache does not hold what is believed", "10.0.0.1:80", None),
        ("prompts were never computed where they were sent", "10.0.0.1:80", 1),
    ]


@pytest.mark.parametrize(("status", "counted"), [(404, 0), (429, 0), (500, 1), (None, 1)])
def test_prompts_that_an_engine_refused_are_no_news(status: int | None, counted: int) -> None:
    """An engine without the model answers 404 to every one of them; what brought the prompt nowhere counts."""
    made = pool()
    replica = made.join("10.0.0.1:80", 0.0)
    prompt = Prompt(dialect="openai_chat", kind="generate", model="m", chains=[Chain([1], [KIB4])], size=KIB4)
    decision = decide(made, prompt, Ledger(), random.Random(1), key=1, now=1.0)
    assert decision.replica is replica
    ending = Ending()
    ending.by, ending.status, ending.unreached = (
        ("complete", status, False) if status else ("gateway", 503, True)
    )
    assert made.feedback is not None
    made.feedback.ended(decision, ending, 2.0)
    shown = cache_of(made, replica)
    assert shown is not None
    assert shown["voided"] == counted
    assert made.index.match([1]) == {}, "it is not believed to be held, either way"


def test_a_gateway_without_feedback_logs_nothing() -> None:
    made = Pool("p")
    made.join("10.0.0.1:80", 0.0)
    with capture_logs() as said:
        Beliefs().look([made])
    assert said == []


def test_the_table_shows_what_came_and_what_is_believed() -> None:
    row = {
        "pool": "p", "replica": "10.0.0.1:80", "state": "ready", "excluded": None, "headroom": 0.5, "kv_used": None,
        "requests_in_flight": 0, "tokens_in_flight": 0, "backlog_seconds": 0.0, "index_entries": 5,
        "sample_age": None,
        "cache": {"precision": 0.914, "scale": 0.5, "believed_share": 0.25},
    }  # fmt: skip
    made = table([row, {**row, "cache": None}])
    columns = {column.header: list(column.cells) for column in made.columns}
    assert columns["cache came"] == ["91% (x0.50)", "off"]
    assert columns["believed"] == ["25%", "off"]


def test_where_another_gateway_judges_it_says_so_and_nobody_else() -> None:
    made = pool()
    replica = made.join("10.0.0.1:80", 0.0)
    assert made.feedback is not None
    made.feedback.truth.role = lambda: WATCHER
    for key in range(9):
        use(made, replica, key, 0, float(key))
    with capture_logs() as said:
        Beliefs().look([made])
    assert said == []
