"""gRPC's own settings: wake-ups taken in together, and an environment that already says something is left alone."""

import os
import socket

import pytest

from extproc.io.transports.grpc_tuning import fewer_threads, merged_wakeups


def test_one_read_takes_in_every_wake_up_that_came() -> None:
    with merged_wakeups():
        reads, writes = socket.socketpair()
    with reads, writes:
        reads.setblocking(False)
        for _ in range(3):
            writes.send(b"1")
        assert reads.recv(1) == b"111"
        with pytest.raises(BlockingIOError):
            reads.recv(1)


def test_more_wake_ups_than_are_taken_at_once_wake_the_loop_again() -> None:
    with merged_wakeups():
        reads, writes = socket.socketpair()
    with reads, writes:
        writes.send(b"1" * 300)
        assert [len(reads.recv(1)), len(reads.recv(1))] == [256, 44]


def test_pairs_made_afterwards_are_ordinary_ones_even_when_making_a_server_failed() -> None:
    made = socket.socketpair
    with pytest.raises(OSError, match="no server"), merged_wakeups():
        raise OSError("no server")
    assert socket.socketpair is made
    reads, writes = socket.socketpair()
    with reads, writes:
        writes.send(b"11")
        assert reads.recv(1) == b"1"


def test_experiments_are_chosen_only_where_the_environment_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GRPC_EXPERIMENTS", raising=False)
    monkeypatch.setenv("GRPC_EXPERIMENTS", "ours")
    fewer_threads()
    assert os.environ["GRPC_EXPERIMENTS"] == "ours"
    monkeypatch.delenv("GRPC_EXPERIMENTS")
    fewer_threads()
    assert os.environ["GRPC_EXPERIMENTS"] == "-event_engine_listener"
