"""What a pool's gate answers; values worked out by hand."""

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from extproc.core.admission.answers import (
    ALLOW,
    DEGRADE,
    QUEUE,
    REFUSALS,
    REJECT,
    Answer,
    ratelimit_headers,
    whole_seconds,
)
from extproc.core.admission.board import Board
from extproc.core.admission.budget import Budget
from extproc.core.admission.desk import Desk, tokens_of
from extproc.core.admission.gate import Ask, Gate
from extproc.core.admission.identity import Source, Told
from extproc.core.admission.queue import QueueSettings
from extproc.core.admission.tenants import Degrade, Tenant, Tenants
from extproc.core.admission.wire import refusal
from extproc.core.pool import Pool
from extproc.core.prompt import Prompt
from extproc.core.router import Router
from extproc.core.routes import Route

A = Tenant(name="a", share=0.5, in_flight=5000)
RATED = Tenant(name="r", per_minute=60_000)
LESSER = Tenant(name="l", degrade=(Degrade("priority", "10"),))
TENANTS = Tenants({"a": A, "r": RATED, "l": LESSER})


def gate(tenants: Tenants = TENANTS, total: float = 1000, *, dry: bool = False, holds: bool = True) -> Gate:
    budget = Budget("one", tenants.all, total, 1, 0.0)
    made = Gate("pool", tenants, QueueSettings(wait=10.0), budget, 0.0, dry=dry, holds=holds)
    board = Board(tenants.all, total, 0.0)

    def renew(ask: Ask | None, now: float) -> None:
        made.take(board.trade("one", made.asks(now, ask), now), now)

    made.renew = renew
    renew(None, 0.0)
    return made


def renew(it: Gate, now: float) -> None:
    it.renew(Ask(0, it.budget.tenants[-1], 0), now)


def test_who_finds_room_goes() -> None:
    answer = gate().ask(Ask(1, A, 100), 0.0)
    assert (answer.verdict, answer.reason, answer.tenant, answer.goes) == (ALLOW, "room", "a", True)


def test_who_finds_none_waits_with_numbers_that_say_why() -> None:
    it = gate()
    it.ask(Ask(1, TENANTS.others, 900), 0.0)
    answer = it.ask(Ask(2, TENANTS.others, 200), 0.5)
    assert (answer.verdict, answer.reason, answer.goes) == (QUEUE, "pool_full", False)
    assert answer.numbers["tokens"] == 200
    assert answer.numbers["pool_used_here"] == 900
    assert answer.numbers["pool_total"] == 1000


def test_who_waits_goes_when_there_is_room_and_nobody_passes_it() -> None:
    it = gate()
    it.ask(Ask(1, TENANTS.others, 900), 0.0)
    it.ask(Ask(2, TENANTS.others, 200), 0.1)
    assert it.ask(Ask(3, TENANTS.others, 10), 0.2).verdict == QUEUE
    assert it.released(0.3) == []
    it.settle(1, None)
    renew(it, 0.4)
    assert [ticket.key for ticket in it.released(0.4)] == [2, 3]
    assert it.budget.used == 210


def test_a_client_that_leaves_while_it_waits_frees_its_place() -> None:
    it = gate()
    it.ask(Ask(1, TENANTS.others, 900), 0.0)
    it.ask(Ask(2, TENANTS.others, 200), 0.1)
    it.settle(2, None)
    assert len(it.queue) == 0
    assert it.budget.used == 900


def test_who_waited_too_long_is_refused() -> None:
    it = gate()
    it.ask(Ask(1, TENANTS.others, 900), 0.0)
    it.ask(Ask(2, TENANTS.others, 200, deadline=2.0), 0.0)
    assert it.expired(1.9) == []
    ((ticket, answer),) = it.expired(2.0)
    assert (ticket.key, answer.verdict, answer.reason) == (2, REJECT, "waited_too_long")
    assert answer.refusal.status == 503


def test_who_waited_too_long_for_its_own_rate_is_told_so() -> None:
    it = gate(total=100_000)
    it.ask(Ask(1, RATED, 2500), 0.0)
    assert it.ask(Ask(2, RATED, 1000, deadline=2.0), 0.0).reason == "tenant_rate"
    ((_, answer),) = it.expired(2.0)
    assert (answer.reason, answer.refusal.status) == ("tenant_rate", 429)


def test_a_request_above_its_tenants_cap_is_refused_for_its_quota() -> None:
    answer = gate(total=10_000).ask(Ask(1, A, 6000), 0.0)
    assert (answer.verdict, answer.reason) == (REJECT, "tenant_too_large")
    assert (answer.refusal.status, answer.refusal.code) == (429, "insufficient_quota")


def test_a_rate_that_is_used_up_says_when_there_is_more() -> None:
    it = gate(total=100_000, holds=False)
    assert it.ask(Ask(1, RATED, 2500), 0.0).verdict == ALLOW
    answer = it.ask(Ask(3, RATED, 3000), 0.0)
    assert (answer.verdict, answer.reason) == (REJECT, "tenant_rate")
    # 3,000 tokens at 1,000 a second; its speed so far is 2,500 in the first second's weights and says less.
    assert answer.retry_after == pytest.approx(3.0)
    assert (answer.refusal.status, answer.refusal.code) == (429, "rate_limit_exceeded")
    assert ratelimit_headers(answer) == [
        ("x-ratelimit-limit-tokens", "60000"),
        ("x-ratelimit-remaining-tokens", "0"),
        ("x-ratelimit-reset-tokens", "3s"),
    ]


def test_a_tenant_that_may_be_degraded_goes_at_a_lower_priority_within_the_overflow() -> None:
    it = gate()
    it.ask(Ask(1, LESSER, 990), 0.0)
    answer = it.ask(Ask(2, LESSER, 100), 0.0)  # 1,090 of 1,100
    assert (answer.verdict, answer.reason, answer.degrade) == (
        DEGRADE,
        "pool_full",
        Degrade("priority", "10"),
    )
    assert it.ask(Ask(3, LESSER, 20), 0.0).verdict == QUEUE  # 1,110


def test_a_dry_run_refuses_nobody_and_counts_what_it_would_have_done() -> None:
    it = gate(dry=True)
    for key in range(1, 5):
        assert it.ask(Ask(key, TENANTS.others, 400), 0.0).goes
    assert it.counts.answers == {("allow", "room", "others"): 2, ("queue", "pool_full", "others"): 2}
    assert it.budget.used == 1600
    assert len(it.queue) == 0


def test_where_requests_cannot_wait_they_are_told_when_to_come_back() -> None:
    it = gate(holds=False)
    it.ask(Ask(1, TENANTS.others, 900), 0.0)
    answer = it.ask(Ask(2, TENANTS.others, 200), 1.0)
    assert (answer.verdict, answer.reason, answer.refusal.code) == (REJECT, "pool_full", "overloaded")
    assert whole_seconds(answer.retry_after) == 1  # nobody ever waited here, so nobody knows


def test_a_queue_is_let_go_evenly_when_much_room_comes_at_once() -> None:
    it = gate(Tenants({}), total=1000)
    it.ask(Ask(1, it_others(it), 1000), 0.0)
    for key in range(2, 42):
        it.ask(Ask(key, it_others(it), 50), 0.0)
    assert it.released(10.0) == []
    it.settle(1, None)
    renew(it, 10.0)
    # A budget in two seconds: at first all that gathered, 1,000, which is 20 of them; no more than fit.
    assert len(it.released(10.0)) == 20
    for key in range(2, 22):
        it.settle(key, None)
    renew(it, 10.1)
    # A tenth of a second later 50 more: one goes, and one that overdraws it.
    assert len(it.released(10.1)) == 1
    assert 0 < len(it.released(10.4)) <= 4


def leased(it: Gate, board: Board, until: float, at: float) -> list[tuple[float, int]]:
    """Who is let go when, with a trade ten times a second, as with Redis: none at the request itself."""
    gone = []
    for tick in range(round(at * 10) + 1, round(until * 10) + 1):
        it.take(board.trade("one", it.asks(tick / 10), tick / 10), tick / 10)
        gone += [(tick / 10, ticket.key) for ticket in it.released(tick / 10)]
    return gone


@pytest.mark.parametrize("size", [12_000, 60_000, 100_000, 250_000, 254_279, 300_000])
def test_an_idle_fleet_lets_a_large_request_go_at_the_next_trade_however_long_it_was_idle(size: int) -> None:
    tenants = Tenants({"a": Tenant(name="a", share=0.5), "b": Tenant(name="b", share=0.3)})
    b = tenants.of("b")
    board = Board(tenants.all, 254_279.68, 0.0)
    it = Gate("pool", tenants, QueueSettings(), Budget("one", tenants.all, 254_279.68, 1, 0.0), 0.0)
    leased(it, board, 1.0, 0.0)
    for key in range(8):
        at = 1.0 + key / 2
        assert it.ask(Ask(key, b, 60), at).verdict == ALLOW
        it.settle(key, 60)
        leased(it, board, at + 0.5, at)
    for key, at in ((10, 13.0), (11, 60.0), (12, 3600.0)):
        leased(it, board, at, at - 5.0)
        if it.ask(Ask(key, b, size), at).verdict == QUEUE:
            assert leased(it, board, at + 0.2, at) == [(at + 0.1, key)]
        assert it.budget.used == min(size, 254_279.68)
        it.settle(key, None)


def test_a_request_that_waits_for_its_rate_is_predicted_by_the_refill_alone() -> None:
    # 100,000 a minute: 4,167 here and 4,167 to be had; of 12,389 tokens 4,055 are lacking, which are here in 2.43 s.
    tenants = Tenants({"t": Tenant(name="t", per_minute=100_000)})
    board = Board(tenants.all, 254_280, 0.0)
    it = Gate("pool", tenants, QueueSettings(), Budget("one", tenants.all, 254_280, 1, 0.0), 0.0)
    leased(it, board, 10.0, 0.0)
    answer = it.ask(Ask(1, tenants.of("t"), 12_389), 10.0)
    assert (answer.verdict, answer.reason) == (QUEUE, "tenant_rate")
    assert answer.retry_after == pytest.approx(4055 / 1666.7, abs=0.1)
    assert leased(it, board, 14.0, 10.0) == [(pytest.approx(12.5, abs=0.11), 1)]


def test_a_request_that_its_rate_can_never_bear_is_refused_for_good() -> None:
    # 20,000 a minute: 5 seconds of it and those of the wait, but two trades, are 333.3 * 14.8 = 4,933 tokens.
    tenants = Tenants({"t": Tenant(name="t", per_minute=20_000)})
    board = Board(tenants.all, 254_280, 0.0)
    it = Gate("pool", tenants, QueueSettings(wait=10.0), Budget("one", tenants.all, 254_280, 1, 0.0), 0.0)
    leased(it, board, 10.0, 0.0)
    never = it.ask(Ask(1, tenants.of("t"), 6000), 10.0)
    assert (never.verdict, never.reason, never.is_final) == (REJECT, "tenant_too_large", True)
    assert never.numbers["tokens_most"] == pytest.approx(4933.3, abs=0.1)
    assert b"retry-after" not in refusal(never)
    assert b"x-should-retry" in refusal(never)
    largest = it.ask(Ask(2, tenants.of("t"), 4930), 10.0)
    assert largest.verdict == QUEUE
    assert [key for _, key in leased(it, board, 20.0, 10.0)] == [2]


def test_one_that_waits_while_the_budget_falls_below_it_goes_alone() -> None:
    it = gate(Tenants({}), total=1000)
    it.ask(Ask(1, it_others(it), 400), 0.0)
    it.ask(Ask(2, it_others(it), 1000), 0.0)
    board = Board(it.budget.tenants, 850, 0.0)
    it.settle(1, None)
    it.take(board.trade("one", it.asks(0.1), 0.1), 0.1)
    it.take(board.trade("one", it.asks(0.2), 0.2), 0.2)
    assert [ticket.key for ticket in it.released(0.2)] == [2]
    assert it.budget.used == 850


def it_others(it: Gate) -> Tenant:
    return it.budget.tenants[-1]


@pytest.mark.parametrize(
    ("seconds", "told"), [(0.0, 1), (0.2, 1), (2.1, 3), (1e9, 60), (math.inf, 1), (math.nan, 1)]
)
def test_retry_after_is_in_whole_seconds_within_a_minute(seconds: float, told: int) -> None:
    assert whole_seconds(seconds) == told


def test_a_tenant_without_a_rate_gets_no_ratelimit_headers() -> None:
    assert ratelimit_headers(Answer(verdict=REJECT, reason="pool_full", tenant="a")) == []


def test_every_refusal_is_429_for_the_tenants_own_limits_and_503_for_the_fleets() -> None:
    assert {reason for reason, refusal in REFUSALS.items() if refusal.status == 503} == {
        "pool_full", "queue_full", "deadline", "waited_too_long",
    }  # fmt: skip


# -- bodies ------------------------------------------------------------------------------------------------


# -- the desk ----------------------------------------------------------------------------------------------


def prompt(model: str = "big", size: int = 4000, most: int | None = 100) -> Prompt:
    return Prompt(dialect="openai_chat", kind="generate", model=model, size=size, max_output=most)


def test_a_request_reserves_its_prompt_and_its_bounded_output() -> None:
    pool = Pool("pool")
    # 4,000 bytes are 1,000 tokens at the starting ratio, plus what was learned of templates: nothing yet.
    assert tokens_of(prompt(), pool) == pytest.approx(1100)
    assert tokens_of(prompt(most=None), pool) == pytest.approx(1256)
    assert tokens_of(None, pool) == 256


def desk(*tenants: Tenant, routes: Sequence[Route] | None = None) -> Desk:
    found = Tenants({tenant.name: tenant for tenant in tenants})
    gates = {name: gate(found, total=2000) for name in ("pool", "spare")}
    for name, each in gates.items():
        each.pool = name
    pools = [Pool("pool", models=["large"]), Pool("spare", models=["small"])]
    return Desk(found, gates, Router(pools, routes, True, Random(1)), Source())


class Waiting:
    """Somebody who can wait."""

    def due(self, now: float) -> None:
        raise AssertionError("nobody was let go")


@pytest.mark.parametrize(("kind", "to"), [("pool", "spare"), ("model", "small")])
def test_a_degraded_request_goes_to_another_pool_while_it_has_room(kind: str, to: str) -> None:
    it, pool, told = desk(Tenant(name="a", degrade=(Degrade(kind, to),))), Pool("pool"), Told("a")
    assert it.ask(1, prompt(), pool, told, 0.0).verdict == ALLOW
    answer = it.ask(2, prompt(), pool, told, 0.0)
    assert (answer.verdict, answer.pool) == (DEGRADE, "spare")
    assert it.ask(3, prompt(), pool, told, 0.0).verdict == REJECT  # that is full too, and nobody can wait
    assert it.ask(4, prompt(), pool, told, 0.0, waiter=Waiting()).verdict == QUEUE
    for key in (1, 2, 3, 4, 4):
        it.settle(key, None)
    assert len(it) == 0
    assert all(each.budget.used == 0 and len(each.queue) == 0 for each in it.gates.values())


def rest(to: str, kind: str = "model", **route: Any) -> tuple[Desk, Pool]:
    """A desk with room in `spare`, which takes what `route` says, and a pool that is full; who asks is degraded."""
    models = {"models": frozenset({"small"})} | route
    routes = [Route(pool="pool", models=frozenset({"big"})), Route(pool="spare", **models)]
    it, pool = desk(Tenant(name="a", degrade=(Degrade(kind, to),)), routes=routes), Pool("pool")
    it.ask(1, prompt(size=7200), pool, Told("a"), 0.0)  # 1,900 of 2,000 tokens
    return it, pool


@pytest.mark.parametrize(
    "route",
    [{"kinds": frozenset({"embed"})}, {"below": 1000}, {"least": 1001}],
    ids=["kind", "long", "short"],
)
@pytest.mark.parametrize(("kind", "to"), [("pool", "spare"), ("model", "small")])
def test_a_request_is_not_degraded_to_a_pool_that_takes_no_such_request(
    kind: str, to: str, route: dict[str, Any]
) -> None:
    it, pool = rest(to, kind, **route)
    assert it.ask(2, prompt(), pool, Told("a"), 0.0).verdict == REJECT
    assert len(it.gates["spare"].budget) == 0


def test_a_request_is_not_degraded_to_another_model_that_no_pool_takes_of_its_kind() -> None:
    routes = [
        Route(pool="pool"),
        Route(pool="spare", models=frozenset({"small"}), kinds=frozenset({"embed"})),
    ]
    router = Router([Pool("pool"), Pool("spare", models=["small"])], routes, True, Random(1))
    assert router.to_model(prompt(), "gone") is None
    found = router.to_model(prompt(), "small")  # the pool that takes every model takes this one's chats too
    assert found is not None
    assert found.name == "pool"


def test_degraded_requests_go_to_the_versions_of_the_smaller_model_by_their_weights() -> None:
    small = frozenset({"small"})
    routes = [
        Route(pool="pool", models=small, version="old", weight=0.0),
        Route(pool="spare", models=small, version="new", weight=100.0),
    ]
    router = Router(
        [Pool("pool", models=["small"]), Pool("spare", models=["small"])], routes, True, Random(1)
    )
    assert {getattr(router.to_model(prompt(), "small"), "name", "") for _ in range(20)} == {"spare"}


def test_a_degraded_request_reserves_what_it_takes_in_the_other_pool() -> None:
    it, pool = rest("small")
    spare = it._router.to_model(prompt(), "small")
    assert spare is not None
    for size in (2000, 4000, 8000) * 5:
        spare.ratios.observe("small", "", size, size / 10)
    answer = it.ask(2, prompt(), pool, Told("a"), 0.0)
    assert answer.verdict == DEGRADE
    assert it.gates["spare"].budget.used == answer.numbers["tokens_there"] < answer.numbers["tokens"] == 1100
    # And why there was no room in its own: 1,900 of 2,000 are taken.
    assert (answer.numbers["pool_used_here"], answer.numbers["pool_total"]) == (1900, 2000)
