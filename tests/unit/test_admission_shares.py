"""A budget divided among tenants and gateways; values worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.admission.shares import Row, among_gateways, among_tenants, fill, grants
from extproc.core.admission.tenants import OTHERS, Tenant, Tenants

A = Tenant(name="a", share=0.5)
B = Tenant(name="b", share=0.3)
C = Tenant(name="c")


def test_filling_satisfies_the_small_and_divides_the_rest_by_weight() -> None:
    # 10 wants less than its third; the other two share 80 as 3 to 1.
    assert fill(90, [10, 500, 500], [1, 3, 1]) == pytest.approx([10, 60, 20])


def test_filling_gives_everybody_all_where_there_is_enough() -> None:
    assert fill(100, [10, 20], [1, 1]) == [10, 20]


def test_nothing_is_filled_from_less_than_nothing() -> None:
    assert fill(-5, [10, 20], [1, 1]) == [0, 0]


def test_tenants_who_want_all_get_their_guarantees_and_the_rest_evenly() -> None:
    # 1000: 500 and 300 are guaranteed, 200 are free, a third each.
    assert among_tenants(1000, [A, B, C], [5000, 5000, 5000]) == pytest.approx(
        [566.67, 366.67, 66.67], abs=0.01
    )


def test_the_share_of_an_idle_tenant_is_used_by_the_others() -> None:
    # b and c: 300 guaranteed, 700 free, half each.
    assert among_tenants(1000, [A, B, C], [0, 5000, 5000]) == pytest.approx([0, 650, 350])


def test_half_of_what_nobody_wants_is_lent() -> None:
    # 100 wanted, 900 free: 450 lent, a third each.
    assert among_tenants(1000, [A, B, C], [100, 0, 0]) == pytest.approx([250, 150, 150])


def test_no_tenant_gets_more_than_its_cap_not_even_lent() -> None:
    capped = Tenant(name="a", share=0.5, in_flight=120)
    assert among_tenants(1000, [capped, B, C], [5000, 0, 0])[0] == 120


def test_gateways_divide_their_tenants_part_evenly_up_to_what_each_wants() -> None:
    assert among_gateways(100, [Row(30, 50), Row(10, 110)]) == pytest.approx([50, 50])


def test_a_request_that_needs_more_than_its_gateway_gets_has_it_by_age() -> None:
    # Evenly they get 30 and 70; the second waits longer and needs 80; the first gets what is left.
    rows = [Row(0, 30, need=30, since=1), Row(0, 80, need=80, since=5)]
    assert among_gateways(100, rows) == [20, 80]


def test_a_request_that_needs_more_than_its_gateway_gets_has_it_beside_what_is_in_flight_there() -> None:
    # Evenly they get 50 each. The first needs 40 beside the 45 that run there; the second gets what is left.
    rows = [Row(45, 200, need=40, since=5), Row(45, 200, need=40, since=1)]
    assert among_gateways(100, rows) == [85, 15]
    # What runs elsewhere stays there until it ends, whatever is due.
    assert among_gateways(60, [Row(30, 200, need=40, since=5), Row(30, 200)]) == [60, 0]


def test_a_small_request_gets_no_more_than_its_gateways_even_part() -> None:
    # 6 is less than a fifth of 50: ends of what runs make room for it soon enough.
    assert among_gateways(100, [Row(48, 200, need=6, since=5), Row(48, 200, need=6, since=1)]) == [50, 50]


def test_who_has_more_running_than_its_part_is_due_less() -> None:
    assert among_gateways(60, [Row(80, 80), Row(40, 90), Row(0, 10)]) == [25, 25, 10]


def test_what_is_due_to_all_gateways_adds_up_to_the_total() -> None:
    rows = {"one": {"a": Row(0, 700)}, "two": {"a": Row(0, 300), "b": Row(0, 900)}}
    due = [grants(1000, [A, B, C], rows, gateway) for gateway in rows]
    # a: 500 + 100 = 600 of 1000; b: 300 + 100 = 400 of 900.
    assert due[0]["a"] + due[1]["a"] == pytest.approx(600)
    assert due[1]["b"] == pytest.approx(400)
    assert sum(sum(each.values()) for each in due) == pytest.approx(1000)


amounts = st.floats(0, 1e6)


@given(amounts, st.lists(amounts, min_size=3, max_size=3))
def test_tenants_never_get_more_than_there_is_and_always_their_guarantee(
    total: float, wants: list[float]
) -> None:
    parts = among_tenants(total, [A, B, C], wants)
    assert sum(parts) <= total * (1 + 1e-9) + 1e-6
    for tenant, part, want in zip([A, B, C], parts, wants, strict=True):
        assert part >= min(want, tenant.share * total) * (1 - 1e-9) - 1e-6


@given(
    amounts,
    st.lists(st.builds(Row, st.just(0.0), amounts, amounts, st.floats(0, 10)), min_size=1, max_size=5),
)
def test_gateways_never_get_more_than_their_tenant_has(part: float, rows: list[Row]) -> None:
    given_ = among_gateways(part, rows)
    assert min(given_) >= 0
    assert sum(given_) <= part * (1 + 1e-9) + 1e-6


def test_unknown_identities_share_one_tenant() -> None:
    tenants = Tenants({"x": A, "y": A})
    assert tenants.of("x") is tenants.of("y") is A
    assert tenants.of("") is tenants.of("nobody")
    assert [tenant.name for tenant in tenants.all] == ["a", OTHERS]


def test_more_guarantees_than_there_is_are_refused() -> None:
    with pytest.raises(ValueError, match=r"add up to 1\.1"):
        Tenants({"x": A, "y": Tenant(name="b", share=0.6)})


def test_two_tenants_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two tenants are named 'a'"):
        Tenants({"x": A, "y": Tenant(name="a")})


@pytest.mark.parametrize(("asked", "klass"), [(None, 1), (0, 1), (2, 2), (99, 3), (-7, 1)])
def test_a_request_is_never_of_a_better_class_than_its_tenants_best(asked: int | None, klass: int) -> None:
    assert Tenant(name="a", best=1).class_of(asked) == klass


def test_a_tenant_has_no_cap_unless_it_is_given_one() -> None:
    assert math.isinf(C.in_flight)
    assert math.isinf(C.per_minute)


def test_two_gateways_whose_long_requests_came_at_one_moment_agree_on_which_gathers_room() -> None:
    everything = Tenant(name="a", share=1.0)
    needs = {"a": Row(0.0, 5000.0, 1630.0, since=2.6)}
    older = {"a": Row(0.0, 5000.0, 1630.0, since=2.5)}  # what the other one said at its last trade
    short = {"a": Row(1600.0, 4000.0, 100.0, since=1.0)}
    first = grants(6464.0, [everything], {"gw-2": needs, "gw-3": older, "gw-0": short, "gw-1": short}, "gw-2")
    second = grants(
        6464.0, [everything], {"gw-3": needs, "gw-2": older, "gw-0": short, "gw-1": short}, "gw-3"
    )
    assert first["a"] == pytest.approx(1630.0)
    assert second["a"] == pytest.approx((6464.0 - 1630.0) / 3), "else neither leaves the other what it needs"


def test_a_gateway_where_a_long_request_runs_keeps_its_room_and_another_still_gathers_for_its_own() -> None:
    runs, waits = Row(1630.0, 5000.0, 100.0), Row(0.0, 5000.0, 1629.0, since=4.0)
    shorts = Row(800.0, 4000.0, 100.0)
    given = among_gateways(6464.0, [runs, waits, shorts, shorts])
    rest = (6464.0 - 1629.0 - 1630.0) / 2
    assert given == pytest.approx([1630.0, 1629.0, rest, rest])
