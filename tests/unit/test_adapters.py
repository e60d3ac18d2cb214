"""Which replica gets a request for a LoRA adapter, and what of it is known."""

import math
import random

import pytest

from extproc.core.adapters import BUSY, HELD, IDLE, LONGEST_NAME, MOST_NAMES, ROOM, AdapterRules, Adapters
from extproc.core.catalog import Catalog
from extproc.core.decide import Decision, decide
from extproc.core.fleet import Replica
from extproc.core.ledger import Ledger
from extproc.core.parts import parts_of
from extproc.core.pool import Pool
from extproc.core.prompt import Prompt
from extproc.core.router import Router
from extproc.core.sample import Sample
from extproc.core.traits import Traits
from tests.unit.policy_asks import TRAITS, fleet

RULES = AdapterRules(slots=2, load=0.5, keep=60.0, names={"a": "base", "b": "base", "c": "base"})


def sample(at: float = 0.0, *names: str, slots: int | None = None) -> Sample:
    return Sample(at=at, running=0.0, waiting=0.0, adapters=names, max_adapters=slots)


def asking(model: str, adapter: str = "") -> Prompt:
    return Prompt(dialect="openai_chat", kind="generate", model=model, adapter=adapter, max_output=10)


class Fleet:
    """A pool of `count` replicas that looks at adapters, and what is decided in it."""

    def __init__(self, count: int, rules: AdapterRules = RULES) -> None:
        self.pool = Pool("p", traits=Traits(prefill_speed=1000.0, output_tokens=10), now=0.0)
        self.adapters = self.pool.adapters = Adapters(rules)
        self.replicas = [self.pool.join(f"10.0.0.{i + 1}:8000", 0.0) for i in range(count)]
        self.ledger, self.key = Ledger(), 0

    def decide(self, prompt: Prompt, now: float = 1.0) -> Decision:
        self.key += 1
        return decide(self.pool, prompt, self.ledger, random.Random(self.key), key=self.key, now=now)


def test_what_a_replica_costs_that_must_load_the_adapter_first():
    adapters = Adapters(RULES)
    held, room, idle, busy = fleet(1.0, 1.0, 1.0, 1.0)
    adapters.placed(held, "a", 0.0)
    for replica in (idle, busy):
        adapters.placed(replica, "b", 0.0)
        adapters.placed(replica, "c", 30.0)
    busy.observe(sample(60.0, "b", "c"))
    costs = adapters.costs([held, room, idle, busy], "a", 100.0, 60.0)
    # b was used 60 s ago, so 1/e of another load is its price; 100 tokens of an answer take 0.1 s at 1,000 a second.
    again = 0.5 * (1 + math.exp(-1))
    assert costs == [0.0, 0.5, pytest.approx(again), pytest.approx(again + 0.1)]


def test_requests_are_counted_by_how_their_replica_stood_to_the_adapter():
    adapters = Adapters(RULES)
    (replica,) = fleet(1.0)
    for name in ("a", "a", "b", "c", ""):
        adapters.placed(replica, name, 1.0)
    assert adapters.bound == {HELD: 1, ROOM: 2, IDLE: 1, BUSY: 0}
    assert adapters.held(replica) == ["b", "c"], "two slots: the one used longest ago made room"


def test_a_request_goes_where_its_adapter_is_held():
    world = Fleet(4)
    world.adapters.placed(world.replicas[2], "a", 0.0)
    assert {world.decide(asking("a")).replica for _ in range(5)} == {world.replicas[2]}


def test_work_ahead_that_is_worth_more_than_a_load_sends_it_elsewhere():
    world = Fleet(2)
    world.adapters.placed(world.replicas[0], "a", 0.0)
    # 1,000 tokens a second: 400 tokens are 0.4 s of work, less than a load; 600 are more.
    world.ledger.charge(100, world.replicas[0], 400.0, 400, 1.0)
    assert world.decide(asking("a")).replica is world.replicas[0]
    world.ledger.charge(101, world.replicas[0], 200.0, 200, 1.0)
    assert world.decide(asking("a")).replica is world.replicas[1]
    assert world.adapters.holders("a").keys() == {r.slot for r in world.replicas}


def test_an_adapter_named_apart_from_the_model_counts_too():
    world = Fleet(3)
    world.adapters.placed(world.replicas[1], "b", 0.0)
    assert world.decide(asking("base", "b")).replica is world.replicas[1]


def test_what_only_a_client_names_is_no_adapter():
    world = Fleet(2)
    for number in range(50):
        world.decide(asking(f"made-up-{number}", f"other-{number}"))
    assert set(world.adapters.names) == {"a", "b", "c"}
    assert sum(world.adapters.bound.values()) == 0


def test_samples_tell_of_adapters_that_other_gateways_use():
    world = Fleet(2)
    world.pool.observe(world.replicas[1].address, sample(1.0, "x", slots=3))
    assert world.adapters.of(asking("x")) == "x"
    assert world.decide(asking("x")).replica is world.replicas[1]
    assert world.adapters.slots(world.replicas[1]) == 3, "the engine's own number"
    assert world.adapters.slots(world.replicas[0]) == 2, "that of the settings, where it tells none"


def test_a_replica_that_does_not_list_the_adapter_is_no_candidate():
    world = Fleet(3)
    world.adapters.listed(world.replicas[0], {"a": "base"})
    world.adapters.listed(world.replicas[1], {"b": "base"})
    decision = world.decide(asking("b"))
    assert decision.excluded == [(world.replicas[0], "adapter")], "the third told nothing, so it may"
    world.adapters.listed(world.replicas[2], {})
    assert world.decide(asking("b")).replica is world.replicas[1]
    assert world.decide(asking("c")).replica is not None, (
        "nobody lists it: lists may be old, the engine decides"
    )


def test_what_a_replica_lists_no_more_it_does_not_hold():
    world = Fleet(1)
    world.adapters.placed(world.replicas[0], "a", 0.0)
    world.adapters.listed(world.replicas[0], {"b": "base"})
    assert world.adapters.held(world.replicas[0]) == []


def test_a_restarted_engine_holds_nothing():
    world = Fleet(1)
    address = world.replicas[0].address
    world.adapters.placed(world.replicas[0], "a", 0.0)
    world.adapters.listed(world.replicas[0], {"a": "base"})
    new = world.pool.restarted(address, 5.0)
    assert new is not None
    assert (world.adapters.held(new), dict(world.adapters.holders("a"))) == ([], {})
    assert world.adapters.lists(new, "b"), "what it lists is not known yet"


def test_names_that_engines_tell_are_bounded():
    adapters = Adapters(AdapterRules())
    (replica,) = fleet(1.0)
    adapters.listed(
        replica, {f"n{i}": "base" for i in range(MOST_NAMES + 5)} | {"x" * (LONGEST_NAME + 1): "base"}
    )
    assert len(adapters.names) == MOST_NAMES


def test_what_is_gone_everywhere_is_forgotten_and_what_may_be_somewhere_is_not():
    pool = Pool("p", models=["base"])
    adapters = pool.adapters = Adapters(AdapterRules(names={"known": "base"}))
    one, other = (pool.join(f"10.0.0.{number}:8000", 0.0) for number in (1, 2))
    adapters.listed(one, {f"n{number}": "base" for number in range(10_000)})
    assert len(adapters.names) == MOST_NAMES
    adapters.listed(one, {"n1": "base", "n2": "base"})
    adapters.forget([one, other])
    assert len(adapters.names) == MOST_NAMES, "the other one was never heard"
    adapters.listed(other, {"n2": "base"})
    adapters.forget([one, other])
    assert set(adapters.names) == {"known", "n1", "n2"}
    adapters.left(one.slot)
    adapters.unsure(other, 1.0)
    adapters.forget([other])
    assert set(adapters.names) == {"known", "n1", "n2"}, "nobody knows what it lists"
    adapters.listed(other, {"n2": "base"})
    adapters.forget([other])
    assert set(adapters.names) == {"known", "n2"}


def test_loads_through_the_api_teach_what_a_load_takes():
    adapters = Adapters(RULES)
    (replica,) = fleet(1.0)
    adapters.loaded(replica, "a", 1.0, 2.5)
    assert adapters.load == 1.0, "0.5 s, and a quarter of the way to 2.5 s"
    assert adapters.held(replica) == ["a"]
    adapters.unloaded(replica, "a", 2.0)
    assert (adapters.held(replica), adapters.lists(replica, "a")) == ([], False)


def test_what_an_adapter_costs_is_a_part_of_the_explanation():
    world = Fleet(2)
    world.adapters.placed(world.replicas[0], "a", 0.0)
    parts = parts_of(world.decide(asking("a")))
    assert parts["adapter"] == [0.0, 0.5]
    assert parts["total"][1] - parts["total"][0] == pytest.approx(
        0.5 + parts["decode"][1] - parts["decode"][0]
    )


def test_without_adapters_a_question_has_no_extra_cost():
    pool, ledger = Pool("p", now=0.0), Ledger()
    pool.join("10.0.0.1:8000", 0.0)
    choice = decide(pool, asking("a"), ledger, random.Random(1), key=1, now=0.0).choice
    assert choice is not None
    assert "adapter" not in choice.parts


@pytest.fixture
def two_pools() -> tuple[Router, list[Pool]]:
    pools = [Pool("small", models=["tiny"]), Pool("large", models=["base"])]
    for pool in pools:
        pool.adapters = Adapters(AdapterRules())
    return Router(pools, None, False, random.Random(1)), pools


def test_an_adapter_that_engines_list_is_a_model_of_their_pool(two_pools: tuple[Router, list[Pool]]):
    router, pools = two_pools
    assert router.pool_of(asking("a")) is None, "nobody told of it yet"
    replica = pools[1].join("10.0.0.1:8000", 0.0)
    assert pools[1].adapters is not None
    pools[1].adapters.listed(replica, {"a": "base"})
    assert router.pool_of(asking("a")) is pools[1]
    listed = Catalog(pools, router, {}).models()
    assert listed["a"]["parent"] == "base"


def test_an_adapter_of_unknown_model_goes_to_who_told_of_it(two_pools: tuple[Router, list[Pool]]):
    router, pools = two_pools
    replica = Replica("10.0.0.1:8000", 0, TRAITS, 0.0)
    assert pools[1].adapters is not None
    pools[1].adapters.sampled(replica, sample(0.0, "a"))
    assert router.pool_of(asking("a")) is pools[1]
