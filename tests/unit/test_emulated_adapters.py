"""Adapters of the emulated engine: slots, loads and who waits, by hand (times as in test_emulated_scheduler.py)."""

from extproc.sim.emulated.adapters import Registry, Slots
from tests.unit.test_emulated_scheduler import Bench


def test_the_first_of_an_adapter_waits_for_its_load_and_the_next_does_not():
    bench = Bench(adapter_load_ms=100.0)
    bench.submit("a", 40, 1, at=0.0, adapter="x")  # 40 ms of prompt, 10 ms of step, 100 ms of load
    bench.submit("b", 40, 1, at=1.0, adapter="x")
    assert bench.events(2.0) == [("a", 1, 150.0, True), ("b", 1, 1050.0, True)]
    assert (bench.scheduler.slots.loads, bench.scheduler.slots.hits) == (1, 1)


def test_a_load_delays_all_that_are_in_the_step():
    bench = Bench(adapter_load_ms=100.0)
    bench.submit("plain", 40, 1, at=0.0)
    bench.submit("a", 40, 1, at=0.0, adapter="x")
    assert bench.events(1.0) == [("plain", 1, 190.0, True), ("a", 1, 190.0, True)]


def test_while_every_slot_computes_another_adapter_waits_and_those_behind_go_on():
    bench = Bench(max_loras=1)
    bench.submit("a", 40, 3, at=0.0, adapter="x")  # 50, 60, 70 ms
    bench.submit("b", 40, 1, at=0.0, adapter="y")  # begins at 70 ms, 50 ms
    bench.submit("c", 40, 1, at=0.0, adapter="x")  # beside a: the first step takes 40 ms more
    ended = [(name, at) for name, _, at, is_end in bench.events(1.0) if is_end]
    assert ended == [("c", 90.0), ("a", 110.0), ("b", 160.0)]


def test_the_idle_adapter_used_longest_ago_makes_room():
    slots = Slots(2)
    for name in ("x", "y", "x"):
        slots.take(name)
        slots.give_back(name)
    assert slots.take("z")
    assert slots.resident == ["x", "z"]


def test_an_adapter_in_use_is_never_put_out():
    slots = Slots(2)
    slots.take("x")
    slots.take("y")
    assert not slots.has_room("z")
    slots.give_back("y")
    assert slots.has_room("z")
    slots.take("z")
    assert slots.resident == ["x", "z"]


def test_an_adapter_is_registered_once_and_removed_once():
    registry = Registry(["x"])
    assert [registry.add("x"), registry.add("y"), registry.remove("x"), registry.remove("x")] == [
        False, True, True, False,
    ]  # fmt: skip
    assert list(registry) == ["y"]
