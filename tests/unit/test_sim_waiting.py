"""The waiting room: who goes when, and that nobody waits for ever."""

import math
import random

import pytest

from extproc.core.decide import decide
from extproc.core.ledger import Ledger
from extproc.core.pool import Pool
from extproc.core.prompt import Chain, Prompt
from extproc.core.traits import Traits
from extproc.core.waiting import RoomSettings, WaitingRoom

SPEED = 1000.0


def prompt(tokens: int, root: int = 0) -> Prompt:
    ends = [*range(400, tokens * 4, 400), tokens * 4]
    hashes = [root * 10_000 + i + 1 for i in range(len(ends))]
    return Prompt(dialect="t", kind="generate", chains=[Chain(hashes, ends)], size=tokens * 4, token_ids=True)


class Bench:
    """A pool of two replicas, a room and a ledger."""

    def __init__(self, replicas: int = 2, **settings: float | str) -> None:
        traits = Traits(prefill_speed=SPEED, stale_after=math.inf)
        self.pool = Pool("p", traits=traits, policy_settings={"decode": 0.0, "near": 0.0})
        for number in range(replicas):
            self.pool.join(f"r{number}", 0.0)
        self.room = WaitingRoom(self.pool, RoomSettings(**settings))  # type: ignore[arg-type]
        self.ledger = Ledger()

    def busy(self, key: int, address: str, tokens: float, now: float = 0.0) -> None:
        replica = self.pool.get(address)
        assert replica is not None
        self.ledger.charge(key, replica, tokens, int(tokens), now, told=True)

    def bind(self, key: int, asked: Prompt, now: float) -> str:
        decision = decide(self.pool, asked, self.ledger, random.Random(1), key=key, now=now, told=True)
        self.room.remove(key)
        assert decision.replica is not None
        return decision.replica.address


def test_in_an_idle_fleet_nothing_waits() -> None:
    bench = Bench()
    bench.room.hold(1, prompt(500), 0.0)
    assert bench.room.next_own(0.0) == 1


def test_while_every_replica_has_more_than_theta_ahead_a_request_waits() -> None:
    bench = Bench(theta=0.2)
    bench.busy(90, "r0", 1000)
    bench.busy(91, "r1", 2000)
    bench.room.hold(1, prompt(500), 0.0)
    assert bench.room.next_own(0.0) is None
    assert bench.room.wake(0.0) == pytest.approx(0.5, abs=0.01)  # no longer than half a second
    assert bench.room.wake(0.4) == pytest.approx(0.8, abs=0.01)  # r0 falls to 0.2 s
    assert bench.room.next_own(0.8001) == 1
    assert bench.bind(1, prompt(500), 0.8001) == "r0"
    assert (len(bench.room), bench.room.own, bench.room.own_tokens) == (0, 0, 0)
    assert bench.room.wake(1.0) == math.inf


def test_the_shortest_goes_first_and_age_wins_in_the_end() -> None:
    bench = Bench(replicas=1, theta=0.2, alpha=0.1)
    bench.busy(90, "r0", 10_000)
    bench.room.hold(1, prompt(2000, root=1), 0.0)
    bench.room.hold(2, prompt(500, root=2), 9.0)
    assert bench.room.next_own(9.0) is None
    bench.ledger.release(90, 9.0)
    assert bench.room.next_own(9.9) == 2  # 0.5 - 0.1 * 0.9 = 0.41 against 2.0 - 0.1 * 9.9 = 1.01
    bench.room.remove(2)
    bench.room.hold(3, prompt(500, root=3), 25.0)
    assert bench.room.next_own(25.1) == 1  # 2.0 - 2.51 against 0.5 - 0.01


def test_fcfs_is_an_order_too() -> None:
    bench = Bench(replicas=1, order="fcfs")
    bench.room.hold(1, prompt(2000, root=1), 0.0)
    bench.room.hold(2, prompt(100, root=2), 1.0)
    assert bench.room.next_own(1.0) == 1


def test_a_request_waits_for_the_replica_that_has_its_prefix_though_another_is_free() -> None:
    bench = Bench(theta=0.2)
    warm = bench.pool.get("r0")
    assert warm is not None
    bench.pool.place(warm, prompt(5000, root=7).chains, 0.0)
    bench.busy(90, "r0", 1000)
    bench.room.hold(1, prompt(5100, root=7), 0.0)
    assert bench.room.next_own(0.0) is None  # 1 s behind plus 0.1 s is better than 5.1 s
    bench.ledger.prompt_done(90, 0.5)
    assert bench.room.next_own(0.5) == 1
    assert bench.bind(1, prompt(5100, root=7), 0.5) == "r0"


def warmed(tokens: int, cached: int, load: float, **settings: float | str) -> Bench:
    """r0 has a second ahead and so many tokens of the request that waits, r1 nothing to do; `load` is rho."""
    bench = Bench(theta=0.2, **settings)
    warm = bench.pool.get("r0")
    assert warm is not None
    bench.pool.place(warm, prompt(cached, root=7).chains, 0.0)
    bench.busy(90, "r0", 1000)
    bench.pool.busy.add(2 * load, 0.0)  # of two replicas, in the first second
    bench.room.hold(1, prompt(tokens, root=7), 0.0)
    return bench


def test_a_replica_without_work_is_wanted_where_a_request_that_waits_would_be_computed_sooner() -> None:
    # 1 s and 0.1 s behind it on r0 against 0.9 s or 1.2 s on r1. Charged it is 1 + 6 * 0.1 s against 2 * 0.9 s.
    sooner = warmed(900, 800, 5.0)
    assert sooner.room.next_own(0.0) is None
    assert sooner.room.wanted([1], 0.0) == 1
    later = warmed(1200, 1100, 5.0)
    assert later.room.next_own(0.0) is None
    assert later.room.wanted([1], 0.0) == 0


def test_a_replica_without_work_takes_more_of_what_waits_for_another_the_less_is_charged_there() -> None:
    # 0.7 s on r1: 1.4 s if charged twice, which is less than 1 + 6 * 0.1 s on r0; charged six times it is 4.2 s.
    assert warmed(700, 600, 5.0).room.next_own(0.0) == 1
    assert warmed(700, 600, 5.0, dry=5.0).room.next_own(0.0) is None


def test_what_another_request_makes_warm_counts_for_those_that_wait() -> None:
    bench = Bench(theta=0.2)
    bench.busy(90, "r0", 1000)
    bench.busy(91, "r1", 1500)
    bench.room.hold(1, prompt(3000, root=7), 0.0)
    assert bench.room.next_own(0.9) == 1
    bench.room.hold(2, prompt(3100, root=7), 0.9)
    assert bench.bind(1, prompt(3000, root=7), 0.9) == "r0"
    bench.ledger.prompt_done(91, 1.0)
    # r1 is free now, but r0 will have 3000 of its 3100 tokens in 3 s: 3 + 0.1 s are less than 3.1 s times 1 + w.
    assert bench.room.next_own(1.0) is None


def test_after_the_cap_a_request_goes_however_busy_the_replicas_are() -> None:
    bench = Bench(cap=30.0)
    bench.busy(90, "r0", 100_000)
    bench.busy(91, "r1", 200_000)
    bench.room.hold(1, prompt(500), 0.0)
    assert bench.room.next_own(29.9) is None
    assert bench.room.wake(29.9) == pytest.approx(30.0, abs=0.01)
    assert bench.room.next_own(30.0) == 1


def test_room_is_left_for_another_gateways_request_that_comes_first_but_not_for_ever() -> None:
    bench = Bench(replicas=1, theta=0.2, patience=0.05)
    bench.room.hear(50, prompt(300, root=5), 0.0)
    bench.room.hold(1, prompt(600, root=1), 0.0)
    assert bench.room.next_own(0.0) is None
    assert bench.room.next_own(0.04) is None
    assert bench.room.next_own(0.06) == 1, "the owner did not take it, and the replica stood idle"


def test_a_replica_that_is_dry_is_left_for_twice_patience_however_many_of_others_requests_are_next() -> None:
    bench = Bench(replicas=1, theta=0.2, patience=0.1)
    for number in range(4):  # each of them fills the replica, so that there is room for one at a time
        bench.room.hear(50 + number, prompt(300, root=5 + number), 0.0)
    bench.room.hold(1, prompt(600, root=1), 0.0)
    assert bench.room.next_own(0.0) is None
    assert bench.room.wake(0.0) == pytest.approx(0.1, abs=0.001)
    assert bench.room.next_own(0.11) is None, "for the second one"
    assert bench.room.wake(0.11) == pytest.approx(0.2, abs=0.001)
    assert bench.room.next_own(0.19) is None
    assert bench.room.next_own(0.201) == 1, "0.2 s in all, not 0.1 s for each of the four"


def test_where_the_replica_still_has_work_each_of_others_requests_is_left_room() -> None:
    bench = Bench(replicas=1, theta=1.0, patience=0.1)
    bench.busy(90, "r0", 900)
    for number in range(2):
        bench.room.hear(50 + number, prompt(950, root=5 + number), 0.0)
    bench.room.hold(1, prompt(990, root=1), 0.0)
    assert bench.room.next_own(0.0) is None
    assert bench.room.next_own(0.11) is None, (
        "room is left for the second now, 0.79 s before the replica is dry"
    )
    assert bench.room.next_own(0.22) == 1


def test_where_news_come_late_a_replica_opens_so_much_sooner_within_bounds() -> None:
    bench = Bench(replicas=1, theta=0.2)
    bench.busy(90, "r0", 1000)
    bench.room.hold(1, prompt(500), 0.0)
    for _ in range(100):
        bench.room.heard(0.02)
    assert bench.room.horizon == pytest.approx(0.2), "a journal's delay is covered by theta"
    for _ in range(100):
        bench.room.heard(0.12)
    assert bench.room.horizon == pytest.approx(0.3, abs=0.001)
    assert bench.room.next_own(0.69) is None
    assert bench.room.wake(0.69) == pytest.approx(0.7, abs=0.001)
    assert bench.room.next_own(0.701) == 1
    for _ in range(100):
        bench.room.heard(30.0)
    assert bench.room.horizon == pytest.approx(0.7)


def test_where_the_gateway_looks_late_for_want_of_cpu_a_replica_opens_so_much_sooner() -> None:
    bench = Bench(replicas=1, theta=0.2)
    for _ in range(100):
        bench.room.looked(0.17)
        bench.room.heard(0.12)
    assert bench.room.horizon == pytest.approx(0.35, abs=0.001)  # the longer of both counts, less 0.02 s


def test_the_measured_lag_rises_faster_than_it_falls() -> None:
    bench = Bench()
    bench.room.heard(0.8)
    assert bench.room.lag == pytest.approx(0.1)  # an eighth of it
    bench.room.heard(0.0)
    assert bench.room.lag == pytest.approx(0.1 * 31 / 32)


def test_another_gateways_request_that_comes_later_does_not_keep_an_own_one_back() -> None:
    bench = Bench(replicas=1)
    bench.room.hear(50, prompt(900, root=5), 0.0)
    bench.room.hold(1, prompt(600, root=1), 0.0)
    assert bench.room.next_own(0.0) == 1


def test_another_gateways_request_is_forgotten_when_it_is_bound_or_long_overdue() -> None:
    bench = Bench(replicas=1, cap=10.0)
    bench.room.hear(50, prompt(300, root=5), 0.0)
    bench.room.remove(50)
    assert len(bench.room) == 0
    bench.room.hear(51, prompt(300, root=5), 0.0)
    bench.room.hold(1, prompt(600, root=1), 15.1)
    assert bench.room.next_own(15.2) == 1
    assert 51 not in bench.room


def test_the_room_is_bounded_in_requests_and_tokens() -> None:
    bench = Bench(requests=2, tokens=1000)
    assert bench.room.has_space(1000)
    assert not bench.room.has_space(1001)
    bench.room.hold(1, prompt(300), 0.0)
    assert not bench.room.has_space(701)
    bench.room.hold(2, prompt(300), 0.0)
    assert not bench.room.has_space(1)
    for key in range(100, 200):
        bench.room.hear(key, prompt(100), 0.0)
    assert len(bench.room) == 2 + 32


def test_a_client_that_leaves_frees_its_place() -> None:
    bench = Bench(requests=1)
    bench.busy(90, "r0", 5000)
    bench.busy(91, "r1", 5000)
    bench.room.hold(1, prompt(300), 0.0)
    assert not bench.room.has_space(1)
    bench.room.remove(1)
    assert bench.room.has_space(1)
    assert bench.room.next_own(0.1) is None


def test_a_replica_that_may_not_be_chosen_is_not_waited_for() -> None:
    bench = Bench()
    bench.busy(91, "r1", 5000)
    idle = bench.pool.get("r0")
    assert idle is not None
    idle.barred = "backoff"
    bench.room.hold(1, prompt(300), 0.0)
    assert bench.room.next_own(0.0) is None
    bench.pool.join("r2", 0.1)
    assert bench.room.next_own(0.1) == 1


def test_only_charged_cost_binds_late() -> None:
    with pytest.raises(ValueError, match="needs the policy charged_cost, not 'random'"):
        WaitingRoom(Pool("p", policy="random"), RoomSettings())


@pytest.mark.parametrize(
    ("name", "value"), [("theta", -1.0), ("cap", math.nan), ("order", "best"), ("requests", -1)]
)
def test_settings_out_of_range_are_refused(name: str, value: float | str) -> None:
    with pytest.raises(ValueError, match=f"waiting: .*{name}"):
        RoomSettings(**{name: value})  # type: ignore[arg-type]


def test_when_all_telemetry_is_stale_nothing_waits_for_it_to_come_back() -> None:
    bench = Bench()
    for replica in bench.pool.replicas:
        replica.fresh_until = 5.0
    bench.room.hold(1, prompt(300), 6.0)
    assert bench.room.next_own(6.0) == 1


def test_who_was_there_when_a_replica_opened_goes_before_a_shorter_one_that_came_later() -> None:
    bench = Bench(replicas=1, theta=0.2, patience=0.1)
    bench.busy(90, "r0", 1000)
    bench.room.hold(1, prompt(900, root=1), 0.0)
    bench.room.hear(50, prompt(600, root=5), 0.0)
    assert bench.room.next_own(0.7) is None  # 0.3 s are ahead
    assert bench.room.next_own(0.81) is None  # open since 0.8 s, and 0.6 s of work go before 0.9 s
    bench.room.hold(2, prompt(300, root=2), 0.82)
    assert bench.room.next_own(0.82) is None, "the other's was bound at 0.8 s, only the news is on its way"
    bench.room.remove(50)
    assert bench.room.next_own(0.83) == 2, "it was bound elsewhere, and of the own ones the shorter goes"


def test_who_came_less_than_a_journals_delay_before_a_replica_opened_counts_as_later() -> None:
    bench = Bench(replicas=1, theta=0.2, patience=0.2)  # a tenth: news takes 20 ms
    bench.busy(90, "r0", 1000)
    bench.room.hear(50, prompt(600, root=5), 0.0)
    bench.room.hold(1, prompt(300, root=1), 0.79)
    assert bench.room.next_own(0.79) is None
    assert bench.room.next_own(0.801) is None, "the other's owner did not know of it at 0.8 s"
    known = Bench(replicas=1, theta=0.2, patience=0.2)
    known.busy(90, "r0", 1000)
    known.room.hear(50, prompt(600, root=5), 0.0)
    known.room.hold(1, prompt(300, root=1), 0.7)
    assert known.room.next_own(0.7) is None
    assert known.room.next_own(0.801) == 1


def test_a_request_that_found_its_replica_taken_is_left_room_again_when_it_opens() -> None:
    bench = Bench(replicas=1, theta=0.2, patience=0.1)
    bench.room.hear(50, prompt(300, root=5), 0.0)
    bench.room.hold(1, prompt(600, root=1), 0.0)
    assert bench.room.next_own(0.02) is None
    bench.busy(90, "r0", 700, now=0.03)  # somebody else's came before both
    assert bench.room.next_own(0.03) is None
    assert bench.room.next_own(0.6) is None, "room is left anew, though the first time is more than 0.1 s ago"
    assert bench.room.wake(0.6) == pytest.approx(0.7, abs=0.01)  # patience ends
    assert bench.room.next_own(0.71) == 1


def test_an_own_request_waits_for_the_news_of_where_anothers_goes_that_shares_its_text() -> None:
    bench = Bench(replicas=2, theta=0.2)
    bench.busy(90, "r0", 1000)
    bench.busy(91, "r1", 1000)
    bench.room.hear(50, prompt(3000, root=7), 0.0)
    bench.room.hold(1, prompt(3100, root=7), 0.0)
    bench.room.hold(2, prompt(3200, root=8), 0.0)
    assert bench.room.next_own(0.5) is None
    bench.ledger.prompt_done(90, 0.6)
    bench.ledger.prompt_done(91, 0.6)
    bench.busy(92, "r1", 100, now=0.6)  # so r0 is best for all three; room is left there for 50
    assert bench.room.next_own(0.6) is None
    cold = bench.pool.get("r0")
    assert cold is not None
    bench.room.remove(50)
    bench.ledger.charge(50, cold, 3000, 3000, 0.62)
    bench.pool.place(cold, prompt(3000, root=7).chains, 0.62)
    # 1 finds 3000 of its tokens at r0 and waits for it; 2 goes where nothing is ahead of it but 0.1 s.
    assert bench.room.next_own(0.62) == 2


def test_waiting_expects_the_answer_that_a_decision_expects() -> None:
    bench = Bench(replicas=2)
    for number in range(200):  # r0's running slots are all taken: the longer an answer, the later one is free
        bench.busy(100 + number, "r0", 0.0)
    bench.busy(90, "r1", 1000)
    brief = prompt(500)
    brief.max_output = 1
    bench.room.hold(1, brief, 0.0)
    assert bench.room.next_own(0.0) == 1
    assert bench.bind(1, brief, 0.0) == "r0"


def test_where_a_sequence_waits_for_a_running_slot_nothing_is_sent_until_an_answer_ends() -> None:
    bench = Bench(replicas=1)
    slots = bench.pool.traits.max_running
    for number in range(slots):
        bench.busy(100 + number, "r0", 0.0)
    bench.room.hold(1, prompt(50, root=1), 0.0)
    assert bench.room.next_own(0.0) == 1, "one may stand ready, so that no slot is ever empty"
    bench.bind(1, prompt(50, root=1), 0.0)
    bench.room.hold(2, prompt(50, root=2), 0.1)
    assert bench.room.next_own(0.1) is None, "0.05 s of prompt work ahead, but one waits already"
    bench.ledger.release(100, 0.2)
    assert bench.room.next_own(0.2) == 2


def test_a_request_waits_for_a_slot_where_its_prefix_is_though_another_replica_has_one() -> None:
    bench = Bench(replicas=2)
    warm = bench.pool.get("r0")
    assert warm is not None
    bench.pool.place(warm, prompt(5000, root=7).chains, 0.0)
    for number in range(bench.pool.traits.max_running + 1):
        bench.busy(100 + number, "r0", 0.0)
    bench.room.hold(1, prompt(5100, root=7), 0.0)
    assert bench.room.next_own(0.0) is None
    bench.ledger.release(100, 0.1)
    assert bench.room.next_own(0.1) == 1
    assert bench.bind(1, prompt(5100, root=7), 0.1) == "r0"


def test_room_for_anothers_request_takes_the_last_place_of_a_full_replica() -> None:
    bench = Bench(replicas=1, patience=0.05)
    for number in range(bench.pool.traits.max_running):
        bench.busy(100 + number, "r0", 0.0)
    bench.room.hear(50, prompt(30, root=5), 0.0)
    bench.room.hold(1, prompt(60, root=1), 0.0)
    assert bench.room.next_own(0.0) is None, "only one may stand ready, and the other comes first"
    bench.room.remove(50)
    assert bench.room.next_own(0.01) == 1
