"""Admission in the simulator: tokens are conserved, and every request is over in one way."""

import pytest

from benchmarks.admission import admission, arrivals, merged, settings
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
