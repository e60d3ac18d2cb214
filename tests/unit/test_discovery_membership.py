"""Who belongs to a pool: joins, leaves, failing sources, empty answers, and what holds for any course of events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.membership import Changes, Endpoint, Membership, canonical, compare
from extproc.envoyconfig.eds import eds_text
from tests.examples import examples

A, B, C = "10.0.0.1:8000", "10.0.0.2:8000", "[fd00::3]:8000"


def at(address: str, **more: object) -> Endpoint:
    return Endpoint(address=address, **more)  # type: ignore[arg-type]


def made(*sources: str, grace: float = 30.0, limit: int = 100) -> Membership:
    return Membership(sources or ("dns",), grace=grace, limit=limit)


# -- endpoints -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("10.0.0.1:8000", "10.0.0.1:8000"),
        ("[FD00:0:0:0::1]:8000", "[fd00::1]:8000"),
        ("[2001:db8:0:0:1:0:0:1]:1", "[2001:db8::1:0:0:1]:1"),
        ("[::ffff:10.0.0.1]:8000", "10.0.0.1:8000"),
    ],
)
def test_an_address_is_kept_as_envoy_writes_it(written: str, kept: str) -> None:
    assert at(written).address == kept
    ip = kept.rpartition(":")[0].strip("[]")
    assert f"address: {ip}\n" in eds_text("p", [at(written).address]).replace("'", "").replace('"', "")


@pytest.mark.parametrize(
    "address",
    ["engine:8000", "10.0.0.1", "10.0.0.1:0", "0.0.0.0:80", "[::]:80", "224.0.0.1:80", "[ff02::1]:80",
     "[fe80::1%eth0]:80", "fd00::1:80", "10.0.0.1:65536", "http://10.0.0.1:80"],
)  # fmt: skip
def test_what_envoy_could_not_be_steered_to_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"write|looks like|has no"):
        canonical(address)


# -- rules ---------------------------------------------------------------------------------------------------


def test_what_is_named_joins_and_what_is_no_longer_named_leaves_at_once() -> None:
    members = made()
    changes = members.took("dns", [at(B), at(A)], 0.0)
    assert [e.address for e in changes.joined] == [A, B]
    assert changes.first
    changes = members.took("dns", [at(B), at(C)], 1.0)
    assert ([e.address for e in changes.joined], changes.left, changes.first) == ([C], (A,), False)
    assert set(members.endpoints) == {B, C}


def test_the_same_answer_changes_nothing() -> None:
    members, answer = made(), (at(A),)
    members.took("dns", answer, 0.0)
    assert not members.took("dns", answer, 1.0)
    assert not members.took("dns", [at(A)], 2.0)
    assert members.status(2.5)[0].age == 0.5


def test_terminating_is_told_once_and_taken_back() -> None:
    members = made()
    members.took("dns", [at(A), at(B)], 0.0)
    changes = members.took("dns", [at(A, terminating=True), at(B)], 1.0)
    assert changes == Changes(terminating=(at(A, terminating=True),))
    assert not members.took("dns", [at(A, terminating=True), at(B)], 2.0)
    assert members.took("dns", [at(A), at(B)], 3.0) == Changes(returned=(at(A),))


def test_who_joins_while_terminating_is_told_as_both() -> None:
    changes = made().took("dns", [at(A, terminating=True)], 0.0)
    assert changes.joined == changes.terminating == (at(A, terminating=True),)


def test_another_metrics_url_or_label_is_a_change_and_no_new_replica() -> None:
    members = made()
    members.took("dns", [at(A, labels={"zone": "a"})], 0.0)
    changed = at(A, metrics="http://10.0.0.1:9000/m", labels={"zone": "b"})
    assert members.took("dns", [changed], 1.0) == Changes(changed=(changed,))


def test_a_failing_source_keeps_its_set_and_says_since_when_and_why() -> None:
    members = made()
    members.took("dns", [at(A)], 10.0)
    members.failed("dns", "timeout", 12.0)
    members.failed("dns", "refused", 14.0)
    assert not members.tick(1000.0)
    (status,) = members.status(15.0)
    assert (status.endpoints, status.age, status.error, status.failing) == (1, 5.0, "refused", 3.0)
    members.took("dns", [at(A)], 20.0)
    (status,) = members.status(20.0)
    assert (status.age, status.error, status.failing) == (0.0, "", None)


def test_a_source_that_never_answered_has_no_age() -> None:
    members = made()
    members.failed("dns", "connect", 1.0)
    (status,) = members.status(3.0)
    assert (status.age, status.failing, status.endpoints) == (None, 2.0, 0)


def test_an_empty_answer_is_believed_when_the_grace_period_is_over() -> None:
    members = made(grace=30.0)
    members.took("dns", [at(A)], 0.0)
    assert not members.took("dns", [], 100.0)
    assert not members.tick(129.9)
    assert members.status(110.0)[0].doubted == 10.0
    assert members.tick(130.0).left == (A,)
    assert members.status(130.0)[0].doubted is None


def test_repeated_empty_answers_count_from_the_first() -> None:
    members = made(grace=30.0)
    members.took("dns", [at(A)], 0.0)
    for now in (100.0, 110.0, 129.0):
        assert not members.took("dns", [], now)
    assert members.took("dns", [], 130.0).left == (A,)


def test_a_full_answer_ends_the_doubt() -> None:
    members = made(grace=30.0)
    members.took("dns", [at(A), at(B)], 0.0)
    members.took("dns", [], 100.0)
    assert not members.took("dns", [at(A), at(B)], 101.0)
    assert members.took("dns", [at(A)], 102.0).left == (B,)


def test_after_an_empty_answer_who_joins_counts_and_who_is_missing_may_still_come_back() -> None:
    members = made(grace=30.0)
    members.took("dns", [at(A), at(B)], 0.0)
    members.took("dns", [], 100.0)
    changes = members.took("dns", [at(B), at(C)], 101.0)
    assert ([e.address for e in changes.joined], changes.left) == ([C], ())
    assert members.tick(130.0).left == (A,)


def test_a_failure_starts_the_grace_period_anew() -> None:
    members = made(grace=30.0)
    members.took("dns", [at(A)], 0.0)
    members.took("dns", [], 100.0)
    members.failed("dns", "timeout", 110.0)
    assert not members.tick(200.0)
    assert not members.took("dns", [], 210.0)
    assert not members.tick(239.0)
    assert members.tick(240.0).left == (A,)


def test_a_first_empty_answer_and_no_grace_are_believed_at_once() -> None:
    members = made(grace=30.0)
    members.took("dns", [], 0.0)
    members.took("dns", [at(A)], 1.0)
    assert set(members.endpoints) == {A}
    members = made(grace=0.0)
    members.took("dns", [at(A)], 0.0)
    assert members.took("dns", [], 1.0).left == (A,)


def test_a_doubtful_answer_lets_nobody_leave_for_the_grace_period() -> None:
    members = made(grace=30.0)
    members.took("dns", [at(A), at(B)], 0.0)
    assert not members.took("dns", [at(A)], 10.0, doubtful=True)
    assert not members.took("dns", [at(A)], 39.0)
    assert members.took("dns", [at(A)], 40.0).left == (B,)


def test_too_many_endpoints_are_a_failure_and_not_half_a_fleet() -> None:
    members = made(limit=2)
    members.took("dns", [at(A)], 0.0)
    assert not members.took("dns", [at(A), at(B), at(C)], 1.0)
    assert (set(members.endpoints), members.status(1.0)[0].error) == ({A}, "too_many")
    assert [e.address for e in members.took("dns", [at(A), at(B)], 2.0).joined] == [B]


def test_the_limit_holds_over_all_sources() -> None:
    members = made("static", "dns", limit=2)
    members.took("static", [at(A), at(B)], 0.0)
    assert not members.took("dns", [at(B), at(A)], 1.0)
    assert not members.took("dns", [at(C)], 2.0)
    assert [s.error for s in members.status(2.0)] == ["", "too_many"]


def test_an_address_two_sources_name_stays_until_neither_does() -> None:
    members = made("static", "dns")
    members.took("static", [at(A)], 0.0)
    assert not members.took("dns", [at(A)], 1.0)
    members.took("dns", [at(A), at(B)], 2.0)
    assert members.took("static", [at(B)], 3.0) == Changes()
    assert members.took("dns", [at(B)], 4.0).left == (A,)


def test_a_replica_named_twice_is_terminating_only_if_both_mentions_say_so() -> None:
    members = made()
    members.took("dns", [at(A, terminating=True), at(A)], 0.0)
    assert not members.endpoints[A].terminating
    changes = members.took("dns", [at(A, terminating=True), at(A, terminating=True)], 1.0)
    assert [e.address for e in changes.terminating] == [A]


# -- any course of events ------------------------------------------------------------------------------------

GRACE, LIMIT = 10.0, 6
ADDRESSES = [f"10.0.0.{n}:80" for n in range(1, 9)]
endpoints = st.builds(Endpoint, address=st.sampled_from(ADDRESSES), terminating=st.booleans())
steps = st.lists(
    st.tuples(
        st.sampled_from([0.0, 1.0, 4.0, 10.0, 25.0]),
        st.sampled_from(["one", "two"]),
        st.one_of(
            st.tuples(st.just("took"), st.lists(endpoints, max_size=7), st.booleans()),
            st.tuples(st.just("took"), st.just([]), st.booleans()),
            st.tuples(st.just("failed")),
            st.tuples(st.just("tick")),
        ),
    ),
    max_size=40,
)


def play(members: Membership, source: str, event: tuple, now: float) -> Changes:  # type: ignore[type-arg]
    if event[0] == "took":
        return members.took(source, event[1], now, doubtful=event[2])
    if event[0] == "failed":
        members.failed(source, "timeout", now)
        return Changes()
    return members.tick(now)


def test_a_dropped_endpoint_leaves_and_stays_out_whatever_sources_say_until_it_is_restored() -> None:
    members = made()
    members.took("dns", [at(A), at(B)], 0.0)
    assert members.drop(A, 1.0) == Changes(left=(A,))
    assert not members.drop(A, 2.0)
    assert not members.took("dns", [at(A, terminating=True), at(B)], 3.0)
    assert (set(members.endpoints), members.dropped) == ({B}, {A: 1.0})
    assert members.restore(A).joined == (at(A, terminating=True),)
    assert (set(members.endpoints), members.dropped) == ({A, B}, {})
    assert not members.restore(A)


def test_a_dropped_endpoint_that_no_source_names_is_forgotten_and_joins_as_a_new_one() -> None:
    members = made("dns", "file")
    members.took("dns", [at(A)], 0.0)
    members.took("file", [at(A)], 0.0)
    members.drop(A, 1.0)
    members.took("dns", [], 2.0)
    members.took("file", [at(B)], 3.0)
    assert members.dropped == {A: 1.0}, "the answer without it is within its grace period"
    members.tick(40.0)
    assert members.dropped == {}
    assert [e.address for e in members.took("file", [at(A), at(B)], 41.0).joined] == [A]


def test_an_endpoint_that_is_not_there_can_not_be_dropped() -> None:
    members = made()
    members.took("dns", [at(A)], 0.0)
    assert not members.drop(B, 1.0)
    assert members.took("dns", [at(A), at(B)], 2.0).joined == (at(B),)


@given(steps)
@examples(30)
def test_the_changes_told_always_add_up_to_the_members(course: list) -> None:  # type: ignore[type-arg]
    members, now = made("one", "two", grace=GRACE, limit=LIMIT), 0.0
    followed: dict[str, bool] = {}  # address -> terminating
    for wait, source, event in course:
        now += wait
        changes = play(members, source, event, now)
        assert not {e.address for e in changes.joined} & followed.keys()
        assert set(changes.left) <= followed.keys()
        for address in changes.left:
            del followed[address]
        followed |= {e.address: False for e in changes.joined}
        followed |= {e.address: True for e in changes.terminating}
        followed |= {e.address: False for e in changes.returned}
        assert followed == {e.address: e.terminating for e in members.endpoints.values()}
        assert len(followed) <= LIMIT


@given(steps)
@examples(30)
def test_nobody_leaves_unless_a_source_said_so_and_had_its_grace(course: list) -> None:  # type: ignore[type-arg]
    """A model of one source in its own words: the last answer, when an empty or doubtful one came, what fails."""
    members, now = made("one", grace=GRACE, limit=100), 0.0
    answer: set[str] | None = None
    believed: set[str] = set()
    unsure: float | None = None
    failing = False
    for wait, _source, event in course:
        now += wait
        play(members, "one", event, now)
        if event[0] == "failed":
            failing = True
        elif event[0] == "took":
            said = {e.address for e in event[1]}
            if answer is not None and (not said or event[2]) and unsure is None:
                unsure = now
            if unsure is not None and failing:
                unsure = now
            answer, failing = said, False
            if believed <= said:
                unsure = None
        if unsure is not None and not failing and now - unsure >= GRACE:
            unsure = None
        if answer is not None and not (failing and unsure is not None):
            believed = answer if unsure is None else believed | answer
        assert set(members.endpoints) == believed


@given(st.lists(endpoints, max_size=8), st.lists(endpoints, max_size=8))
@examples(25)
def test_a_set_compared_with_itself_has_no_changes(first: list[Endpoint], second: list[Endpoint]) -> None:
    before, after = ({e.address: e for e in some} for some in (first, second))
    assert not compare(before, before)
    changes = compare(before, after)
    assert (before.keys() - set(changes.left)) | {e.address for e in changes.joined} == after.keys()
