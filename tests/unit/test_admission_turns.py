"""Nobody starves: one whose requests are larger than its part of the budget is served at its turn."""

from extproc.core.admission.answers import QUEUE
from extproc.core.admission.board import Board
from extproc.core.admission.budget import Budget
from extproc.core.admission.gate import Ask, Gate
from extproc.core.admission.queue import QueueSettings
from extproc.core.admission.shares import Row, grants
from extproc.core.admission.tenants import Tenant, Tenants

SMALL, LARGE = Tenant(name="small"), Tenant(name="large")


def test_room_gathers_for_the_first_request_at_its_turn_and_for_one_tenant_at_a_time() -> None:
    # Of 6,000 each of three tenants is due 2,000; the one at its turn gets the 3,100 its first needs, the two others
    # half of the rest each. One whose turn it is not gets its part alone.
    tenants = (SMALL, LARGE, Tenant(name="third"))
    wants = {name: Row(want=9000, need=3100, since=1.0) for name in ("small", "large", "third")}
    assert set(grants(6000, tenants, {"one": wants}, "one").values()) == {2000}
    wants["large"] = wants["large"]._replace(gather=3100)
    assert grants(6000, tenants, {"one": wants}, "one") == {"small": 1450, "large": 3100, "third": 1450}
    wants["third"] = wants["third"]._replace(gather=4000, since=9.0)
    assert grants(6000, tenants, {"one": wants}, "one") == {"small": 1000, "large": 1000, "third": 4000}


def test_one_that_gathered_room_and_did_not_get_it_has_had_its_turn() -> None:
    tenants = Tenants({"small": SMALL, "large": LARGE})
    gate = Gate("pool", tenants, QueueSettings(wait=9.0), Budget("one", tenants.all, 1000, 1, 0.0), 0.0)
    board = Board(tenants.all, 1000, 0.0)
    gate.take(board.trade("one", gate.asks(0.0), 0.0), 0.0)
    gate.budget.reserve(0, LARGE, 900, 0.0)
    for key, tenant, deadline in ((1, SMALL, 5.0), (2, LARGE, 9.0)):
        assert gate.ask(Ask(key, tenant, 900, deadline=deadline), 0.0).verdict == QUEUE
    assert gate.asks(4.9)["small"].row.gather == 900  # neither was served; it stands first
    assert [ticket.key for ticket, _ in gate.expired(5.0)] == [1]
    gate.ask(Ask(3, SMALL, 900), 5.0)
    assert gate.asks(5.1)["large"].row.gather == 900
    assert gate.asks(5.1)["small"].row.gather == 0
