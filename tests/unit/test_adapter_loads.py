"""Which adapter is loaded where, and which has to go for it."""

from collections.abc import Sequence

import pytest

from extproc.core.adapter_loads import Loading, LoadRules, Step
from extproc.core.adapters import AdapterRules, Adapters
from extproc.core.decide import Decision, decide
from extproc.core.fleet import Replica
from extproc.core.ledger import Ledger
from extproc.core.policies.base import Rng
from extproc.core.pool import Pool
from extproc.core.prompt import Prompt
from extproc.core.sample import Sample
from extproc.core.traits import Traits

PATHS = {name: f"/lora/{name}" for name in "abcdef"}


class Middle:
    def random(self) -> float:
        return 0.5


class Client:
    """A request that waits; `told` is when it was told to go on."""

    told: float | None = None

    def due(self, now: float) -> None:
        self.told = now


class Fleet:
    """Replicas with two places each, a load of 0.5 s, and 1,000 prompt tokens a second."""

    def __init__(self, count: int = 3, **rules: float) -> None:
        self.pool = Pool("p", models=["base"], traits=Traits(prefill_speed=1000.0), now=0.0)
        self.adapters = self.pool.adapters = Adapters(
            AdapterRules(slots=2, load=0.5, names=dict.fromkeys(PATHS, "base"))
        )
        chosen = {"most": 2, "a_minute": 30, "wait": 10.0, "idle": 10.0} | rules
        self.loading = self.adapters.loading = Loading(self.adapters, LoadRules(paths=PATHS, **chosen))  # type: ignore[arg-type]
        self.replicas = [self.pool.join(f"10.0.0.{i + 1}:8000", 0.0) for i in range(count)]
        self.ledger, self.key, self.rng = Ledger(), 0, Middle()
        for replica in self.replicas:
            self.heard(replica, 0.0)

    def heard(self, replica: Replica, now: float, *adapters: str) -> None:
        self.pool.observe(replica.address, Sample(at=now, running=0.0, waiting=0.0, adapters=adapters))

    def lists(self, *names: Sequence[str]) -> None:
        for replica, each in zip(self.replicas, names, strict=True):
            self.adapters.listed(replica, dict.fromkeys(each, "base"))

    def ask(self, name: str, now: float) -> Client:
        """A request for an adapter that nobody serves."""
        self.key += 1
        client = Client()
        prompt = Prompt(dialect="openai_chat", kind="generate", model=name)
        assert self.adapters.keeps(client, self.key, prompt, self.replicas, now)
        return client

    def decide(self, name: str, now: float) -> Decision:
        self.key += 1
        prompt = Prompt(dialect="openai_chat", kind="generate", model=name)
        rng: Rng = self.rng
        return decide(self.pool, prompt, self.ledger, rng, key=self.key, now=now)

    def plan(self, now: float) -> tuple[int, str, str] | None:
        """The next step: number of the replica, what is loaded, what goes."""
        step = self.loading.plan(self.replicas, now)
        return step and (self.replicas.index(step.replica), step.name, step.unload)

    def do(self, now: float, seconds: float = 0.5) -> Step:
        """Do the next step, and have it done."""
        step = self.loading.plan(self.replicas, now)
        assert step is not None
        self.loading.began(step, now)
        self.loading.done(step, seconds, now + seconds)
        return step


def test_nothing_is_loaded_that_nobody_asks_for():
    fleet = Fleet()
    fleet.lists("", "", "")
    assert fleet.plan(1.0) is None


def test_an_adapter_that_is_waited_for_goes_where_most_places_are_free():
    fleet = Fleet()
    fleet.lists("b", "bc", "")
    fleet.ask("a", 1.0)
    assert fleet.plan(1.0) == (2, "a", "")


def test_work_ahead_counts_as_much_as_places():
    fleet = Fleet()
    fleet.lists("b", "bc", "")
    # A place that is taken costs half of a load of 0.5 s; 400 tokens of work ahead cost 0.4 s.
    fleet.ledger.charge(99, fleet.replicas[2], 400.0, 400, 1.0)
    fleet.ask("a", 1.0)
    assert fleet.plan(1.0) == (0, "a", "")


def test_what_a_replica_serves_has_to_be_known_before_something_is_loaded_there():
    fleet = Fleet(2)
    fleet.ask("a", 1.0)
    assert fleet.plan(1.0) is None, "unknown is not 'serves nothing'"
    fleet.adapters.listed(fleet.replicas[1], {})
    assert fleet.plan(1.0) == (1, "a", "")


def test_a_request_goes_on_when_its_adapter_is_there():
    fleet = Fleet()
    fleet.lists("", "", "")
    client = fleet.ask("a", 1.0)
    step = fleet.do(1.0)
    fleet.loading.let_go(fleet.replicas, 1.5)
    assert client.told == 1.5
    assert fleet.decide("a", 1.5).replica is step.replica
    assert fleet.loading.waits.ended["loaded"] == 1


def test_a_request_waits_no_longer_than_it_may():
    fleet = Fleet(wait=10.0)
    client = fleet.ask("a", 1.0)
    fleet.loading.let_go(fleet.replicas, 10.9)
    assert client.told is None
    fleet.loading.let_go(fleet.replicas, 11.0)
    assert client.told == 11.0


def test_an_adapter_that_somebody_serves_is_not_waited_for():
    fleet = Fleet()
    fleet.lists("a", "", "")
    prompt = Prompt(dialect="openai_chat", kind="generate", model="a")
    assert not fleet.adapters.keeps(Client(), 1, prompt, fleet.replicas, 1.0)
    assert fleet.decide("a", 1.0).replica is fleet.replicas[0]


def test_where_nobody_may_wait_it_is_loaded_for_those_who_ask_again():
    fleet = Fleet(wait=0.0)
    fleet.lists("", "", "")
    prompt = Prompt(dialect="openai_chat", kind="generate", model="a")
    assert not fleet.adapters.keeps(Client(), 1, prompt, fleet.replicas, 1.0)
    assert fleet.decide("a", 1.0).replica is None
    assert fleet.plan(5.9) == (0, "a", "")
    assert fleet.plan(6.0) is None, "five seconds later nobody asked again"


def test_what_has_no_path_is_neither_waited_for_nor_loaded():
    fleet = Fleet()
    fleet.lists("", "", "")
    fleet.adapters.listed(fleet.replicas[0], {"static": "base"})
    for name in ("static", "base", "unheard-of"):
        prompt = Prompt(dialect="openai_chat", kind="generate", model=name)
        assert not fleet.adapters.keeps(Client(), 1, prompt, fleet.replicas, 1.0)


def test_the_idle_adapter_used_longest_ago_makes_room():
    fleet = Fleet(1)
    fleet.lists("ab")
    for name, at in (("b", 5.0), ("a", 8.0)):
        fleet.loading.use.touched(fleet.replicas[0].slot, name, at)
    fleet.ask("c", 18.0)
    assert fleet.plan(14.9) is None, "b was used less than 10 s ago"
    fleet.heard(fleet.replicas[0], 18.0)
    assert fleet.plan(18.0) == (0, "c", "b")


def test_above_the_bound_idle_ones_go_for_nothing_until_it_holds():
    fleet = Fleet(1)
    fleet.lists("abdf")
    for name, at in (("a", 5.0), ("b", 4.0), ("d", 3.0), ("f", 9.0)):
        fleet.loading.use.touched(fleet.replicas[0].slot, name, at)
    fleet.ask("c", 9.0)
    fleet.heard(fleet.replicas[0], 13.0)
    gone = []
    for now in (13.0, 14.0, 15.0):
        step = fleet.loading.plan(fleet.replicas, now)
        assert step is not None
        fleet.loading.began(step, now)
        gone.append((step.name, step.unload))
        if step.name:
            fleet.loading.done(step, 0.5, now)
        else:
            fleet.loading.cleared(step)
    assert gone == [("", "d"), ("", "b"), ("c", "a")]
    assert fleet.adapters.listing(fleet.replicas[0]) == {"c", "f"}
    assert list(fleet.loading.begun(15.0)) == [15.0], "what only goes is no load"


def test_a_replica_is_stuck_where_nothing_has_a_path_or_more_than_may_be_stay_used():
    fleet = Fleet(3)
    fleet.lists("ab", "abc", "")
    fleet.adapters.listed(fleet.replicas[2], {"static": "base", "other": "base"})
    assert fleet.loading.stuck(fleet.replicas, 0.0) == [fleet.replicas[2]]
    assert fleet.loading.stuck(fleet.replicas, 69.0) == [fleet.replicas[2]]
    assert fleet.loading.stuck(fleet.replicas, 70.0) == [fleet.replicas[1], fleet.replicas[2]]
    fleet.adapters.unloaded(fleet.replicas[1], "c", 71.0)
    assert fleet.loading.stuck(fleet.replicas, 71.0) == [fleet.replicas[2]]


def test_what_is_served_is_not_missed_and_goes_after_a_short_idle_time():
    fleet = Fleet(1, idle=1.0, most=1)
    fleet.lists("")
    fleet.ask("a", 10.0)
    fleet.do(10.0)
    fleet.loading.let_go(fleet.replicas, 10.5)
    fleet.decide("a", 10.5)
    fleet.loading.ended(fleet.key, 10.6)
    fleet.ask("b", 10.7)
    fleet.heard(fleet.replicas[0], 11.5)
    assert fleet.plan(11.5) is None, "a was used less than a second ago"
    assert fleet.plan(11.7) == (0, "b", "a")


def test_nothing_is_loaded_for_a_client_that_left():
    fleet = Fleet()
    fleet.lists("", "", "")
    fleet.ask("a", 1.0)
    fleet.ask("a", 1.0)
    fleet.loading.ended(1, 1.5)
    assert fleet.loading.missed(1.5) == ["a"], "another one waits"
    fleet.loading.ended(2, 2.0)
    assert fleet.loading.missed(2.0) == []
    assert fleet.plan(2.0) is None


def test_who_comes_to_load_knows_of_the_last_minutes_loads():
    fleet = Fleet(3, a_minute=2)
    fleet.lists("", "", "")
    fleet.loading.others_began([10.0, 50.0], 60.0)
    fleet.ask("a", 60.0)
    assert fleet.plan(69.9) is None
    for replica in fleet.replicas:
        fleet.heard(replica, 70.0)
    fleet.do(70.0)
    fleet.loading.others_began([50.0], 70.0)
    assert list(fleet.loading.begun(70.0)) == [50.0, 70.0], "old news takes nothing away"
    fleet.loading.others_began([50.0, 60.0, 999.0], 70.0)
    assert list(fleet.loading.begun(70.0)) == [50.0, 60.0, 70.0], "nothing begins later than now"


def test_what_is_in_flight_never_goes_and_counts_as_used_until_it_ends():
    fleet = Fleet(1)
    fleet.lists("ab")
    fleet.decide("a", 1.0)
    fleet.decide("b", 2.0)
    fleet.heard(fleet.replicas[0], 990.0)
    fleet.ask("c", 1000.0)
    assert fleet.plan(1000.0) is None, "both were in flight for a quarter of an hour"
    fleet.loading.ended(1, 1000.0)
    fleet.heard(fleet.replicas[0], 1009.0)
    assert fleet.plan(1009.0) is None
    assert fleet.plan(1010.0) == (0, "c", "a")


def test_what_other_gateways_or_the_engine_say_is_used_does_not_go():
    fleet = Fleet(1)
    fleet.lists("ab")
    fleet.ask("c", 100.0)
    fleet.loading.use.told("other", {fleet.replicas[0].address: {"a": 3.0}}, 100.0)
    fleet.heard(fleet.replicas[0], 100.0, "b")
    assert fleet.plan(100.0) is None, "a was used by another gateway 3 s ago, b is computed with now"
    fleet.heard(fleet.replicas[0], 107.0)
    assert fleet.plan(107.0) == (0, "c", "b")


def test_what_was_not_loaded_here_and_can_not_be_loaded_again_stays():
    fleet = Fleet(1)
    fleet.adapters.listed(fleet.replicas[0], {"static": "base", "other": "base"})
    fleet.heard(fleet.replicas[0], 100.0)
    fleet.ask("c", 100.0)
    assert fleet.plan(100.0) is None


def test_no_more_is_loaded_in_a_minute_than_may_be():
    fleet = Fleet(3, a_minute=2)
    fleet.lists("", "", "")
    for name in "abc":
        fleet.ask(name, 1.0)
    fleet.do(1.0)
    fleet.do(2.0)
    assert fleet.plan(60.9) is None
    for replica in fleet.replicas:
        fleet.heard(replica, 61.0)
    assert fleet.plan(61.0) is not None, "the first was begun a minute ago"


def test_a_crowded_adapter_gets_a_second_replica():
    fleet = Fleet(2)
    fleet.lists("a", "")
    fleet.decide("a", 1.0)
    fleet.ledger.charge(99, fleet.replicas[0], 400.0, 400, 1.0)
    assert fleet.plan(1.0) is None, "0.4 s of work ahead is less than a load"
    fleet.ledger.charge(98, fleet.replicas[0], 200.0, 200, 1.0)
    assert fleet.plan(1.0) == (1, "a", "")


def test_for_a_second_copy_nothing_goes_that_is_missed_and_half_of_the_loads_are_left():
    fleet = Fleet(2, a_minute=4)
    fleet.lists("a", "bc")
    fleet.decide("a", 20.0)
    fleet.ledger.charge(99, fleet.replicas[0], 5000.0, 5000, 20.0)
    for replica in fleet.replicas:
        fleet.heard(replica, 20.0)
    assert fleet.plan(20.0) is None, "b and c are nowhere else, and were used within the minute"
    fleet.lists("ab", "bc")
    assert fleet.plan(20.0) == (1, "a", "b")
    for number in range(2):
        fleet.loading.began(Step(Replica("x", 50 + number, Traits(), 0.0), "f"), 20.0)
    assert fleet.plan(20.0) is None, "two of four loads are spent"


def test_what_goes_gets_no_more_requests_and_comes_back_if_it_was_used_after_all():
    fleet = Fleet(1)
    fleet.lists("ab")
    fleet.heard(fleet.replicas[0], 100.0)
    fleet.ask("c", 100.0)
    step = fleet.loading.plan(fleet.replicas, 100.0)
    assert step is not None
    fleet.loading.began(step, 100.0)
    assert fleet.adapters.listing(fleet.replicas[0]) == {"b"}
    fleet.adapters.listed(fleet.replicas[0], {"a": "base", "b": "base"})
    assert fleet.adapters.listing(fleet.replicas[0]) == {"b"}, "what it listed meanwhile says nothing"
    assert not fleet.loading.is_used(step, 100.0, 101.0)
    fleet.loading.use.told("other", {fleet.replicas[0].address: {"a": 0.0}}, 100.5)
    assert fleet.loading.is_used(step, 100.0, 101.0)
    fleet.loading.dropped(step, 101.0)
    assert fleet.adapters.listing(fleet.replicas[0]) == {"a", "b"}


def test_an_adapter_that_is_refused_rests_twice_as_long_each_time_and_nobody_waits_for_it():
    fleet = Fleet()
    fleet.lists("", "", "")
    client = fleet.ask("a", 1.0)
    for now, rest in ((1.0, 2.0), (3.0, 4.0)):
        step = fleet.loading.plan(fleet.replicas, now)
        assert step is not None
        fleet.loading.began(step, now)
        fleet.loading.failed(step, now, refused=True)
        assert fleet.plan(now + rest - 0.1) is None
    fleet.loading.let_go(fleet.replicas, 4.0)
    assert client.told == 4.0
    assert fleet.loading.waits.ended["hopeless"] == 1
    prompt = Prompt(dialect="openai_chat", kind="generate", model="a")
    assert not fleet.adapters.keeps(Client(), 9, prompt, fleet.replicas, 4.0)
    assert fleet.decide("a", 4.0).replica is None, "no engine is asked for what all are known not to serve"


def test_a_replica_that_fails_rests_and_another_one_is_tried():
    fleet = Fleet(2)
    fleet.lists("", "b")
    fleet.ask("a", 1.0)
    step = fleet.loading.plan(fleet.replicas, 1.0)
    assert step == (fleet.replicas[0], "a", "")
    fleet.loading.began(step, 1.0)
    fleet.loading.failed(step, 1.0, refused=False)
    assert fleet.adapters.listing(fleet.replicas[0]) is None, "it may have been loaded"
    assert fleet.plan(1.0) == (1, "a", "")
    fleet.lists("", "b")
    assert fleet.plan(2.9) == (1, "a", "")
    assert fleet.plan(3.0) == (0, "a", "")


def test_a_restarted_engine_has_nothing_and_no_rest():
    fleet = Fleet(1)
    fleet.lists("a")
    new = fleet.pool.restarted(fleet.replicas[0].address, 5.0)
    assert new is not None
    assert fleet.adapters.listing(new) is None
    assert not fleet.loading.serves("a", fleet.pool.replicas, 5.0)


def test_what_others_wait_for_is_loaded_too():
    fleet = Fleet()
    fleet.lists("", "", "")
    fleet.loading.wanted = {"other": ("d", "no-path")}
    assert fleet.plan(1.0) == (0, "d", "")


@pytest.mark.parametrize("serves", [True, False])
def test_who_does_not_load_takes_the_word_of_who_does(serves: bool):
    fleet = Fleet(1)
    fleet.adapters.listed(fleet.replicas[0], {"a": "base", "static": "base"})
    fleet.adapters.told(fleet.replicas[0], ["a", "b"] if serves else [], PATHS)
    assert fleet.adapters.listing(fleet.replicas[0]) == ({"a", "b", "static"} if serves else {"static"})


def test_the_gateway_stops_and_nobody_waits_any_more():
    fleet = Fleet()
    client = fleet.ask("a", 1.0)
    fleet.loading.waits.close(2.0)
    assert client.told == 2.0
    prompt = Prompt(dialect="openai_chat", kind="generate", model="a")
    assert not fleet.adapters.keeps(Client(), 9, prompt, fleet.replicas, 2.0)
