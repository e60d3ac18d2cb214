"""gRPC's threads do not cut in on the one that decides, where the kernel lets us say so."""

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from extproc.io.transports.grpc_tuning import helpers_give_way

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="the kernel has no SCHED_BATCH")


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    """Each test begins, and is left, as a process usually runs."""
    if policy() != os.SCHED_OTHER:
        pytest.skip("these tests were started with a scheduling policy of their own")
    yield
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def in_a_thread(ask: Callable[[], int]) -> int:
    """What is said in a thread that is started here."""
    said: list[int] = []
    thread = threading.Thread(target=lambda: said.append(ask()))
    thread.start()
    thread.join(10)
    return said[0]


def policy() -> int:
    """Of the thread that asks."""
    return os.sched_getscheduler(0)


def test_threads_started_within_give_way_and_so_do_theirs() -> None:
    with helpers_give_way():
        own, theirs = in_a_thread(policy), in_a_thread(lambda: in_a_thread(policy))
    assert (own, theirs) == (os.SCHED_BATCH, os.SCHED_BATCH)


def test_who_starts_them_and_later_threads_are_as_before() -> None:
    with helpers_give_way():
        pass
    assert (policy(), in_a_thread(policy)) == (os.SCHED_OTHER, os.SCHED_OTHER)


def test_it_is_as_before_after_an_error_too() -> None:
    with pytest.raises(RuntimeError, match="no port"), helpers_give_way():
        raise RuntimeError("no port")
    assert policy() == os.SCHED_OTHER


def test_a_policy_that_an_operator_gave_stays() -> None:
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with helpers_give_way():
        assert policy() == os.SCHED_BATCH
    assert policy() == os.SCHED_BATCH


def test_where_it_is_forbidden_threads_are_started_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError("seccomp")

    monkeypatch.setattr(os, "sched_setscheduler", forbidden)
    with helpers_give_way():
        assert in_a_thread(policy) == os.SCHED_OTHER
    monkeypatch.undo()


def test_where_there_is_no_such_policy_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "SCHED_BATCH")
    with helpers_give_way():
        assert in_a_thread(policy) == os.SCHED_OTHER
