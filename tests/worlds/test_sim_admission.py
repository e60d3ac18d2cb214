"""Admission in the simulator: tokens are conserved, and every request is over in one way."""

import pytest

from benchmarks.admission import LONG, admission, arrivals, capacity, merged, narrow, settings
from extproc.core.admission.tenants import Tenant
from extproc.sim.admission import Admitted
from extproc.sim.jobs import Status


@pytest.mark.parametrize("gateways", [1, 4])
def test_overload_is_refused_in_part_and_leaves_nothing_behind(gateways: int) -> None:
    tenants = Tenant(name="a", share=0.5), Tenant(name="b", in_flight=20_000)
    sim = Admitted(settings(gateways), admission(*tenants, wait=1.0))
    out = sim.run(merged(arrivals(20, 10, 1, "a"), arrivals(20, 10, 2, "b"), arrivals(20, 10, 3, "c")))
    statuses = list(out.status)
    assert len(statuses) == out.arrivals
    assert set(statuses) == {Status.FINISHED, Status.REJECTED}
    assert statuses.count(Status.FINISHED) == len(sim.admitted)
    for gate in sim.gates:
        assert (gate.budget.used, len(gate.budget), len(gate.queue)) == (0, 0, 0)
    assert max((waited for waited, _ in sim.waits), default=0.0) <= 1.0 + 0.1


@pytest.mark.parametrize("gateways", [1, 4])
def test_long_requests_in_a_flood_of_short_ones_get_their_share_over_all_gateways(gateways: int) -> None:
    flood, some = arrivals(6 * capacity(), 60, 1, "a", 0.0), arrivals(0.6, 60, 2, "a", 1.0)
    sim = Admitted(settings(gateways), admission(Tenant(name="a", share=1.0, waiting=1000), wait=10.0))
    sim.run(merged(flood, some))
    went = [tokens for at, _, tokens in sim.admitted if 15 <= at < 60]
    # A quarter of the tokens; one more or less of them is a twentieth of all that goes in these 45 seconds.
    assert sum(tokens for tokens in went if tokens >= LONG) >= 0.25 * sum(went) - LONG
    assert max(waited for waited, _ in sim.waits) <= 10.0 + 0.11


def test_long_requests_get_their_share_of_a_budget_in_which_a_gateways_even_part_has_no_room_for_one() -> (
    None
):
    flood, some = arrivals(6 * capacity(), 100, 1, "a", 0.0), arrivals(0.6, 100, 2, "a", 1.0)
    sim = Admitted(settings(4), narrow(admission(Tenant(name="a", share=1.0, waiting=1000), wait=10.0)))
    sim.run(merged(flood, some))
    went = [tokens for at, _, tokens in sim.admitted if 20 <= at < 100]
    # While a gateway that gathered room for one had to do without all else, they got a seventh instead of a quarter.
    assert sum(tokens for tokens in went if tokens >= LONG) >= 0.25 * sum(went) - LONG
