"""Leases on the board and what a gateway spends of them; values worked out by hand."""

import math
from collections.abc import Iterator
from random import Random

import pytest

from extproc.core.admission.board import TTL, Asked, Board
from extproc.core.admission.budget import (
    POOL_FULL,
    TENANT_IN_FLIGHT,
    TENANT_RATE,
    TENANT_SHARE,
    Budget,
    Waiting,
)
from extproc.core.admission.shares import Row
from extproc.core.admission.tenants import Tenant

A = Tenant(name="a", share=0.5)
B = Tenant(name="b")
#: 60,000 a minute are 1,000 a second; two and a half seconds of it wait on the board.
RATED = Tenant(name="a", per_minute=60_000)


def trade(budget: Budget, board: Board, now: float, waiting: dict[str, Waiting] | None = None) -> None:
    budget.take(board.trade(budget.me, budget.asks(waiting or {}, now), now), now)


def asked(hold: float, used: float = 0.0, rate: float = 0.0) -> dict[str, Asked]:
    return {"a": Asked(Row(used, hold, hold=hold), rate)}


# -- the board ---------------------------------------------------------------------------------------------


def test_what_is_leased_never_adds_up_to_more_than_the_total() -> None:
    board = Board((A, B), 1000, 0.0)
    assert board.trade("one", asked(700), 0.0).holds["a"] == 700
    assert board.trade("two", asked(700), 0.0).holds["a"] == 300


def test_what_a_gateway_gives_back_the_next_one_gets() -> None:
    board = Board((A, B), 1000, 0.0)
    board.trade("one", asked(700), 0.0)
    board.trade("one", asked(200), 0.1)
    assert board.trade("two", asked(900), 0.2).holds["a"] == 800


def test_what_runs_is_leased_whatever_there_is() -> None:
    board = Board((A, B), 1000, 0.0)
    board.trade("one", asked(1000), 0.0)
    assert board.trade("two", asked(100, used=40), 0.0).holds["a"] == 40


def test_a_cap_holds_over_all_gateways() -> None:
    board = Board((Tenant(name="a", in_flight=300), B), 1000, 0.0)
    board.trade("one", asked(250), 0.0)
    assert board.trade("two", asked(250), 0.0).holds["a"] == 50


def test_after_a_fall_of_the_total_nobody_goes_without_until_the_others_have_given_back() -> None:
    board = Board((A, B), 9000, 0.0)
    board.trade("one", asked(4000, used=100), 0.0)
    board.trade("two", asked(4000, used=200), 0.0)
    board.propose(900, 900, 0.0, 0.0)
    # 8,000 are leased to others, 300 used by them: two thirds of 900 are theirs.
    assert board.trade("three", asked(1000), 0.0).holds["a"] == 300
    board.trade("two", asked(800, used=800), 0.1)  # what is used is leased, whatever the total is
    assert board.trade("three", asked(1000), 0.1).holds["a"] == 0


def test_what_a_dead_gateway_leased_is_free_again() -> None:
    board = Board((A, B), 1000, 0.0)
    board.trade("one", asked(1000), 0.0)
    assert board.trade("two", asked(600), TTL + 0.1).holds["a"] == 600


def test_a_gateway_that_leaves_frees_its_leases_at_once() -> None:
    board = Board((A, B), 1000, 0.0)
    board.trade("one", asked(1000), 0.0)
    board.leave("one")
    assert board.trade("two", asked(600), 0.0).holds["a"] == 600


def test_a_rate_gives_its_burst_at_once_and_then_its_speed() -> None:
    board = Board((RATED,), 10**6, 0.0)
    assert board.trade("one", asked(0, rate=9000), 0.0).rates["a"] == 2500
    assert board.trade("two", asked(0, rate=9000), 0.5).rates["a"] == 500


def test_tokens_of_a_rate_that_are_given_back_are_there_for_others() -> None:
    board = Board((RATED,), 10**6, 0.0)
    board.trade("one", asked(0, rate=2500), 0.0)
    assert board.trade("one", asked(0, rate=-1500), 0.0).rates["a"] == 0
    assert board.trade("two", asked(0, rate=9000), 0.0).rates["a"] == 1500


def test_a_clock_that_runs_backwards_refills_nothing() -> None:
    board = Board((RATED,), 10**6, 10.0)
    board.trade("one", asked(0, rate=5000), 10.0)
    assert board.trade("one", asked(0, rate=5000), 3.0).rates["a"] == 0


def test_the_total_changes_once_in_a_while_whoever_proposes() -> None:
    board = Board((A,), 1000, 0.0)
    assert board.propose(900, 2000, every=20, now=0.0)
    assert not board.propose(800, 2000, every=20, now=19.0)
    assert board.propose(800, 2000, every=20, now=20.0)
    assert board.total == 800


# -- a gateway's budget ------------------------------------------------------------------------------------


def test_a_request_takes_its_reservation_and_gives_it_back_once() -> None:
    budget = Budget("one", (A, B), 1000, 1, 0.0)
    budget.reserve(1, A, 300, 0.0)
    assert budget.used == 300
    assert budget.settle(1, None) is not None
    assert budget.settle(1, None) is None
    assert (budget.used, len(budget)) == (0, 0)


def test_why_there_is_no_room_is_told_apart() -> None:
    capped = Tenant(name="a", in_flight=400)
    budget = Budget("one", (capped, B), 1000, 1, 0.0)
    budget.accounts["a"].hold = budget.accounts["b"].hold = 400
    budget.reserve(1, capped, 300, 0.0)
    assert budget.lacks(capped, 100) == ""
    assert budget.lacks(capped, 101) == TENANT_IN_FLIGHT
    assert budget.lacks(B, 500) == TENANT_SHARE
    assert budget.lacks(B, 701) == POOL_FULL


def test_a_single_request_may_take_all_there_is_and_no_more() -> None:
    assert Budget("one", (A,), 1000, 1, 0.0).bounded(5000) == 1000


def test_an_abandoned_request_pays_its_rate_for_what_it_used() -> None:
    budget, board = Budget("one", (RATED,), 10**6, 1, 0.0), Board((RATED,), 10**6, 0.0)
    trade(budget, board, 0.0)
    # A gateway that has all for itself keeps two and a half seconds of it.
    assert budget.accounts["a"].allowance == 2500
    budget.reserve(1, RATED, 2000, 0.0)
    assert budget.accounts["a"].allowance == 500
    budget.settle(1, 600)
    assert budget.accounts["a"].allowance == 1900
    assert budget.accounts["a"].settled == 600


def test_usage_that_comes_after_the_end_settles_what_was_reserved_once() -> None:
    budget, board = Budget("one", (RATED,), 10**6, 1, 0.0), Board((RATED,), 10**6, 0.0)
    trade(budget, board, 0.0)
    for key in (1, 2):
        budget.reserve(key, RATED, 1000, 0.0)
    budget.settle(1, None)
    budget.settle(2, 900)
    account = budget.accounts["a"]
    assert (account.allowance, account.settled) == (2500 - 1000 - 900, 1900)
    assert budget.told(1, 300) is not None
    assert budget.told(1, 300) is None
    assert budget.told(2, 300) is None  # it was known at its end
    assert (account.allowance, account.settled) == (2500 - 300 - 900, 1200)


def test_so_many_are_remembered_and_no_more() -> None:
    budget = Budget("one", (A,), 10**9, 1, 0.0)
    for key in range(5000):
        budget.reserve(key, A, 1, 0.0)
        budget.settle(key, None)
    assert budget.told(4999, 1) is not None
    assert budget.told(0, 1) is None


def test_an_answer_longer_than_expected_leaves_the_rate_in_debt() -> None:
    budget, board = Budget("one", (RATED,), 10**6, 1, 0.0), Board((RATED,), 10**6, 0.0)
    trade(budget, board, 0.0)
    budget.reserve(1, RATED, 2500, 0.0)
    budget.settle(1, 4000)
    assert budget.accounts["a"].allowance == -1500
    assert budget.lacks(RATED, 1) == TENANT_RATE


def test_an_idle_gateway_gives_its_rate_back_but_for_the_least() -> None:
    budget, board = Budget("one", (RATED,), 10**6, 1, 0.0), Board((RATED,), 10**6, 0.0)
    budget.accounts["a"].allowance = 4000
    assert budget.asks({}, 1.0)["a"].rate == 0
    assert budget.asks({}, 2.5)["a"].rate == 2500 - 4000
    assert budget.accounts["a"].allowance == 2500
    trade(budget, board, 2.5)


def test_who_waits_for_a_rate_gathers_what_it_needs() -> None:
    budget, board = Budget("one", (RATED,), 10**6, 1, 0.0), Board((RATED,), 10**6, 0.0)
    waiting = {"a": Waiting(8000, 8000, 0.0)}
    trade(budget, board, 0.0, waiting)
    assert budget.accounts["a"].allowance == 2500
    trade(budget, board, 2.5, waiting)
    assert budget.accounts["a"].allowance == 5000
    trade(budget, board, 6.0, waiting)
    assert budget.accounts["a"].allowance == 7500


def test_alone_a_gateway_spends_its_fair_part_of_what_was_last_known() -> None:
    budget, board = Budget("one", (A, B), 1000, 1, 0.0), Board((A, B), 1000, 0.0)
    board.trade("two", {}, 0.0)
    trade(budget, board, 0.0)
    budget.alone({"a": Waiting(9000, 100, 0.0)}, 1.0)
    assert budget.is_alone
    assert budget.gateways == 2
    # Half of 1,000, all of which a wants and b does not.
    assert budget.accounts["a"].hold == 500
    assert budget.accounts["b"].hold == 0


def test_alone_a_rate_goes_on_at_the_gateways_part() -> None:
    budget, board = Budget("one", (RATED,), 10**6, 1, 0.0), Board((RATED,), 10**6, 0.0)
    board.trade("two", {}, 0.0)
    trade(budget, board, 0.0)
    budget.accounts["a"].allowance = 0.0
    budget.alone({}, 2.0)  # two seconds of 500 a second
    assert budget.accounts["a"].allowance == 1000
    budget.alone({}, 1002.0)  # never more than two and a half seconds of it at once
    assert budget.accounts["a"].allowance == 1250


def test_what_comes_free_goes_to_whom_it_is_due_not_to_who_had_it() -> None:
    # b took all while a slept; a wants half of it again.
    budget, board = Budget("one", (A, B), 1000, 1, 0.0), Board((A, B), 1000, 0.0)
    trade(budget, board, 0.0, {"b": Waiting(1000, 10, 0.0)})
    for key in range(10):
        budget.reserve(key, B, 100, 0.0)
    trade(budget, board, 0.1, {"a": Waiting(5000, 100, 0.0)})
    budget.settle(0, None)
    assert budget.lacks(B, 100) == TENANT_SHARE
    trade(budget, board, 0.2, {"a": Waiting(5000, 100, 0.0)})
    assert budget.lacks(A, 100) == ""


def test_a_tenant_whose_requests_are_refused_wants_them_all_the_same() -> None:
    budget = Budget("one", (A, B), 1000, 1, 0.0)
    budget.accounts["a"].miss(400, 1.0)
    assert budget.asks({}, 1.0)["a"].row.want == 400
    # Two seconds later 1/e of it: 147.
    assert budget.asks({}, 3.0)["a"].row.want == pytest.approx(147.15, abs=0.01)


# -- several gateways in virtual time ----------------------------------------------------------------------

CAPPED = Tenant(name="a", per_minute=60_000, in_flight=20_000)
FREE = Tenant(name="b", share=0.3)


def moments(seconds: float, every: float) -> Iterator[float]:
    return (i * every for i in range(int(seconds / every)))


@pytest.mark.parametrize("gateways", [1, 4])
def test_no_cap_is_exceeded_and_no_token_is_made_over_many_gateways(gateways: int) -> None:
    rng = Random(gateways)
    tenants = (CAPPED, FREE)
    board = Board(tenants, 50_000, 0.0)
    budgets = [Budget(f"gw{i}", tenants, 50_000, gateways, 0.0) for i in range(gateways)]
    ends: list[tuple[float, Budget, int, float]] = []
    key, admitted = 0, 0.0
    for now in moments(30.0, 0.02):
        for at, budget, number, actual in [end for end in ends if end[0] <= now]:
            budget.settle(number, actual)
            ends.remove((at, budget, number, actual))
        for budget in budgets:
            if rng.random() < 0.2:
                trade(budget, board, now)
            for tenant in tenants:  # far more than either may have
                tokens = rng.uniform(100, 1500)
                if not budget.lacks(tenant, tokens):
                    key += 1
                    budget.reserve(key, tenant, tokens, now)
                    ends.append((now + rng.uniform(0.1, 1.0), budget, key, tokens * rng.choice([0.5, 1.0])))
        used = [sum(budget.accounts[t.name].used for budget in budgets) for t in tenants]
        assert used[0] <= CAPPED.in_flight + 1e-6
        assert sum(used) <= 50_000 + 1e-6
    for _, budget, number, actual in ends:
        budget.settle(number, actual)
    admitted = sum(budget.accounts["a"].settled for budget in budgets)
    assert all(budget.used == 0 and len(budget) == 0 for budget in budgets)
    # Half a minute's tokens and the burst, give or take what is leased and not spent.
    assert 0.85 * 30_000 < admitted <= 30_000 * 1.02 + 5000
    assert not math.isinf(admitted)


# -- a store that stood still, or lost everything ----------------------------------------------------------


def test_who_comes_back_first_keeps_to_its_part_until_the_others_are_back_or_taken_for_dead() -> None:
    everything = {"a": Waiting(9000, 100, 0.0)}
    budget, board = Budget("one", (A, B), 1000, 1, 0.0), Board((A, B), 1000, 0.0)
    board.trade("two", {}, 0.0)
    trade(budget, board, 0.0, everything)
    budget.alone(everything, 1.0)
    empty = Board((A, B), 1000, 1.5)
    trade(budget, empty, 1.5, everything)  # tells that it was back, and asks again by that
    trade(budget, empty, 1.6, everything)
    assert (budget.accounts["a"].hold, budget.gateways) == (500, 2)
    empty.trade("two", {}, 1.7)
    trade(budget, empty, 1.8, everything)
    trade(budget, empty, 1.9, everything)
    assert (budget.accounts["a"].hold, budget.gateways) == (1000, 2)


def test_others_that_do_not_come_back_are_waited_for_as_long_as_any_that_is_silent() -> None:
    everything = {"a": Waiting(9000, 100, 0.0)}
    budget, board = Budget("one", (A, B), 1000, 1, 0.0), Board((A, B), 1000, 0.0)
    board.trade("two", {}, 0.0)
    trade(budget, board, 0.0, everything)
    budget.alone(everything, 1.0)
    empty = Board((A, B), 1000, 1.0)
    trade(budget, empty, 1.0, everything)
    trade(budget, empty, 1.0 + TTL, everything)
    trade(budget, empty, 1.1 + TTL, everything)
    assert (budget.accounts["a"].hold, budget.gateways) == (1000, 1)


def test_what_was_taken_of_a_rate_alone_is_taken_out_of_what_is_given_next() -> None:
    budget, board = Budget("one", (RATED,), 10**6, 1, 0.0), Board((RATED,), 10**6, 0.0)
    board.trade("two", {}, 0.0)
    trade(budget, board, 0.0)
    account = budget.accounts["a"]
    budget.reserve(1, RATED, account.allowance, 0.0)
    budget.alone({}, 2.0)  # two seconds of 500 a second
    assert (account.allowance, account.borrowed) == (1000, 1000)
    board.trade("two", {}, 2.0)
    trade(budget, board, 2.0, {"a": Waiting(1400, 1400, 0.0)})
    # 2,500 were there: 1,000 to repay, and 400 for the one that waits.
    assert (account.allowance, account.borrowed) == (1400, 0)


def test_a_rate_is_offered_back_as_it_should_be_by_now() -> None:
    budget, board = Budget("one", (RATED,), 10**6, 1, 0.0), Board((RATED,), 10**6, 0.0)
    assert budget.asks({}, 0.0)["a"].level == -1
    trade(budget, board, 0.0)
    # It took all 2,500; a thousand come a second, and 2,500 at most.
    assert [budget.asks({}, at)["a"].level for at in (0.0, 1.0, 9.0)] == [0, 1000, 2500]
