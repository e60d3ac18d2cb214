"""Who waits, in which order; values worked out by hand, and nobody starves in virtual time."""

import math
from random import Random

import pytest

from extproc.core.admission.budget import Waiting
from extproc.core.admission.queue import (
    DEADLINE,
    QUEUE_FULL,
    TENANT_QUEUE_FULL,
    Queue,
    QueueSettings,
    Ticket,
)
from extproc.core.admission.shares import Row
from extproc.core.admission.tenants import Tenant

A = Tenant(name="a", share=0.5)
B = Tenant(name="b", share=0.3)
C = Tenant(name="c")
ALL = (A, B, C)


def always(_tenant: Tenant, _tokens: float) -> bool:
    return True


def ticket(
    key: int,
    tenant: Tenant = A,
    tokens: float = 100,
    klass: int = 1,
    at: float = 0.0,
    until: float = 1e9,
    size: int = 0,
) -> Ticket:
    return Ticket(key=key, tenant=tenant, tokens=tokens, klass=klass, arrived=at, until=until, size=size)


def made(*tickets: Ticket, **settings: float) -> Queue:
    queue = Queue(QueueSettings(**settings), ALL, 0.0)  # type: ignore[arg-type]
    for each in tickets:
        queue.put(each)
    return queue


def held(queue: Queue) -> tuple[int, float, int]:
    return len(queue), queue.tokens, queue.size


def order(queue: Queue, now: float = 0.0) -> list[int]:
    gone = []
    while (head := queue.next(always, now)) is not None:
        gone.append(head.key)
    return gone


def test_one_tenant_goes_in_the_order_it_came() -> None:
    assert order(made(ticket(1), ticket(2), ticket(3))) == [1, 2, 3]


def test_a_better_class_goes_first() -> None:
    assert order(made(ticket(1, klass=2), ticket(2, klass=0), ticket(3, klass=1))) == [2, 3, 1]


def test_waiting_improves_the_class_so_that_nobody_starves() -> None:
    queue = made(ticket(1, klass=2, at=0.0), ticket(2, B, klass=0, at=11.0), age=5.0)
    # 11 seconds are two classes: it is of class 0 by now, as the other; b was served as little, a stands first.
    assert order(queue, 11.0)[0] == 1


def test_tenants_take_turns_by_their_parts() -> None:
    # Parts: a 0.5 + 0.2/3, b 0.3 + 0.2/3, c 0.2/3. Of the first ten turns of equal requests a gets 6 and b 4 at most.
    queue = made(*[ticket(i * 3 + n, tenant) for i in range(20) for n, tenant in enumerate(ALL)])
    first = [key % 3 for key in order(queue)[:30]]
    assert [first.count(n) for n in range(3)] == [17, 11, 2]


def test_a_tenant_that_comes_back_has_not_saved_up_turns() -> None:
    queue = made(*[ticket(i) for i in range(100)])
    for _ in range(50):
        queue.next(always, 0.0)
    for i in range(100, 110):
        queue.put(ticket(i, B))
    # Lifted to a's counter, b gets its part from now on (0.37 to 0.57), not all turns until it caught up.
    first = [queue.next(always, 0.0) for _ in range(10)]
    assert 3 <= sum(head is not None and head.tenant is B for head in first) <= 5


def test_the_whole_queue_of_a_tenant_waits_while_its_long_one_gathers_room() -> None:
    queue = made(ticket(1, tokens=40_000), ticket(2, tokens=10), long=16_000.0)
    queue.went(A, 100, 0.0)  # a short one went already, so that it is the long one's turn
    assert queue.next(lambda _t, tokens: tokens <= 1000, 0.0) is None
    head = queue.next(lambda _t, tokens: tokens <= 40_000, 0.0)
    assert head is not None
    assert head.key == 1


def test_another_tenant_passes_one_that_has_no_room() -> None:
    queue = made(ticket(1), ticket(2, B))
    head = queue.next(lambda tenant, _n: tenant is B, 0.0)
    assert head is not None
    assert head.key == 2


def test_long_requests_get_their_share_among_a_flood_of_short_ones() -> None:
    rng = Random(5)
    queue, key = made(long=4_000.0, long_share=0.25, age=1e9), 0
    long = short = 0.0
    waits = [0, 0]
    for step in range(5_000):  # a hundred of them are long
        while sum(waits) < 60 or min(waits) < 10:  # the flood never ends, and some long ones always wait
            key += 1
            is_long = waits[1] < 10
            waits[is_long] += 1
            queue.put(ticket(key, tokens=8_000 if is_long else rng.uniform(100, 900), at=float(step)))
        head = queue.next(always, float(step))
        assert head is not None
        waits[head.tokens >= 4_000] -= 1
        if head.tokens >= 4_000:
            long += head.tokens
        else:
            short += head.tokens
    assert long / (long + short) == pytest.approx(0.25, abs=0.01)


def test_nobody_starves_however_many_of_a_better_class_come() -> None:
    queue = made(ticket(0, C, klass=3), age=5.0)
    for second in range(1, 60):
        for i in range(10):
            queue.put(ticket(second * 100 + i, A, klass=0, at=float(second)))
        for _ in range(9):  # never all of them
            head = queue.next(always, float(second))
            assert head is not None
            if head.key == 0:
                # Class 3 becomes class -1 after 20 seconds: better than any that just came.
                assert 15 <= second <= 21
                return
    pytest.fail("it waited for a minute")


@pytest.mark.parametrize(
    ("settings", "new", "why"),
    [
        ({"requests": 2}, ticket(9), QUEUE_FULL),
        ({"tokens": 299}, ticket(9), QUEUE_FULL),
        ({"size": 30}, ticket(9, size=31), QUEUE_FULL),
        ({}, ticket(9, Tenant(name="a", waiting=2)), TENANT_QUEUE_FULL),
        ({}, ticket(9), ""),
    ],
)
def test_the_queue_is_bounded(settings: dict[str, float], new: Ticket, why: str) -> None:
    assert made(ticket(1), ticket(2), **settings).refusal(new, math.inf, 0.0) == why


def test_one_that_would_wait_longer_than_it_may_is_refused_at_once() -> None:
    queue = made(ticket(1, tokens=1000))
    queue.went(A, 1000, 1.0)
    # After one second the weights add up to 10 * (1 - e^-0.1) = 0.952 s, so a goes at 1,051 tokens a second.
    assert queue.predicted(A, 100, 1.0) == pytest.approx(1100 / 1050.8, rel=1e-3)
    assert queue.refusal(ticket(2, until=2.0), 1100 / 1050.8, 1.0) == DEADLINE
    assert queue.refusal(ticket(2, until=2.1), 1100 / 1050.8, 1.0) == ""


def test_before_anything_went_no_wait_is_predicted() -> None:
    assert math.isinf(made().predicted(A, 100, 0.0))


def test_what_goes_while_nobody_waits_says_nothing_of_the_speed() -> None:
    queue = made()
    for second in range(60):
        queue.went(A, 60, float(second))
    assert queue.speed.at(60.0) is None
    assert math.isinf(queue.predicted(A, 60_000, 60.0))


def test_the_speed_is_that_of_the_backlog_however_long_nobody_waits_after_it() -> None:
    queue = made(ticket(1, tokens=10_000), ticket(2, tokens=10_000))
    for at in (2.0, 4.0):
        assert queue.next(always, at) is not None
    # 10,000 tokens after 2 and 4 seconds: (10,000 * e^-0.2 + 10,000) / (10 * (1 - e^-0.4)) = 5,515 a second.
    for later in (4.0, 30.0, 63.0):
        assert queue.speed.at(later) == pytest.approx(5515, rel=1e-3)
    assert queue.speed.at(65.0) is None  # a minute later it says nothing any more


def test_one_that_waited_for_a_trade_of_leases_alone_makes_no_speed() -> None:
    queue = made(ticket(1, tokens=10))
    assert queue.next(always, 0.1) is not None
    assert queue.speed.at(0.2) is None


def test_those_that_wait_for_their_own_rate_do_not_make_the_pool_look_slow() -> None:
    rated = Ticket(key=1, tenant=A, tokens=10, klass=1, arrived=0.0, until=1e9, lack="tenant_rate")
    queue = made(rated)
    queue.went(B, 10, 5.0)
    assert queue.speed.at(10.0) is None
    assert math.isinf(queue.predicted(B, 1000, 10.0))


def test_a_client_that_leaves_frees_its_place_and_its_bytes() -> None:
    queue = made(ticket(1, size=50), ticket(2, size=7))
    assert queue.remove(1) is not None
    assert queue.remove(1) is None
    assert held(queue) == (1, 100, 7)
    assert order(queue) == [2]
    assert held(queue) == (0, 0.0, 0)


def test_those_whose_time_is_over_leave() -> None:
    queue = made(ticket(1, until=5.0), ticket(2, until=6.0))
    assert [each.key for each in queue.expired(5.0)] == [1]
    assert len(queue) == 1


def test_what_waits_is_told_for_each_tenant() -> None:
    told = made(ticket(1, at=1.0), ticket(2, tokens=50), ticket(3, B, tokens=9, at=2.0)).waiting(4.0)
    assert told["a"] == Waiting(
        150, 100, 3.0, (0, 0, 150, 0, 100)
    )  # its turn: nobody was served, it stands first
    assert told["b"] == Waiting(9, 9, 2.0, (0, 0, 9, 0, 0))
    assert "c" not in told


# -- turns over all gateways -------------------------------------------------------------------------------


def test_what_other_gateways_let_go_counts_in_the_turns_of_long_and_short_requests() -> None:
    # Long ones of 100 tokens and more have half of the turns. 300 short ones went here, so a long one is next; but
    # another gateway let 400 long ones go since, so it is the short one's turn.
    queue = made(long=100, long_share=0.5)
    queue.heard({"two": {"a": Row(long=50, longs=100)}}, 0.0)
    queue.went(A, 50, 0.0)
    for _ in range(5):
        queue.went(A, 50, 0.0)
    queue.put(ticket(1, tokens=100))
    queue.put(ticket(2, tokens=50))
    queue.heard({"two": {"a": Row(long=450, longs=100)}}, 0.0)
    assert order(queue) == [2, 1]


def test_long_requests_that_wait_elsewhere_keep_the_turns_that_are_owed_to_them() -> None:
    # 300 short tokens went while long ones waited at the other gateway: the first that comes here goes before short
    # ones until it has caught up. Where none waited anywhere, nothing is owed to it.
    for longs, expected in ((100.0, [2, 3, 1]), (0.0, [1, 2, 3])):
        queue = made(ticket(1, tokens=50), long=100, long_share=0.5)
        queue.heard({"two": {"a": Row(longs=longs)}}, 0.0)
        for _ in range(6):
            queue.went(A, 50, 0.0)
        queue.put(ticket(2, tokens=100))
        queue.put(ticket(3, tokens=100))
        assert order(queue) == expected


def test_of_a_gateway_that_is_new_or_gone_nothing_counts_twice() -> None:
    queue = made()
    line = queue._lines["a"]
    queue.heard({"two": {"a": Row(short=300)}}, 0.0)
    queue.heard({"two": {"a": Row(short=375)}}, 0.0)
    queue.heard({}, 0.0)
    queue.heard({"two": {"a": Row(short=900)}}, 0.0)
    assert line.turns == [75 / 0.75, 0]


def test_a_long_requests_wait_is_predicted_by_what_all_gateways_let_go_and_keep_waiting() -> None:
    # A long share of a quarter. Here nothing went; elsewhere 4,000 tokens did: 4,000 / (10 (1 - 1/e)) = 633 a second.
    # While nobody waits anywhere that is what was wanted, and no limit. First: 200 / 633. With one of
    # 200 before it elsewhere, and short ones: (200 / 0.25 + 200) / 633.
    queue = made(long=100, long_share=0.25)
    queue.heard({"two": {"a": Row()}}, 0.0)
    queue.heard({"two": {"a": Row(short=4000)}}, 10.0)
    assert math.isinf(queue.predicted(A, 200, 10.0))
    queue.heard({"two": {"a": Row(short=4000, shorts=1)}}, 10.0)
    assert queue.predicted(A, 200, 10.0) == pytest.approx(200 / 632.8, rel=0.01)
    queue.heard({"two": {"a": Row(short=4000, shorts=5000, longs=200)}}, 10.0)
    assert queue.predicted(A, 200, 10.0) == pytest.approx(1000 / 632.8, rel=0.01)
    queue.heard({"two": {"a": Row(short=4000, longs=200)}}, 10.0)  # no short ones take turns
    assert queue.predicted(A, 200, 10.0) == pytest.approx(400 / 632.8, rel=0.01)
