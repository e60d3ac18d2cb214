"""Log lines are written by a thread of their own, so that a reader that stopped can't stop the gateway."""

import os
import time

from extproc.io.logs import LogWriter


def read_all(fd: int) -> str:
    parts = []
    while part := os.read(fd, 65536):
        parts.append(part)
    return b"".join(parts).decode()


def test_lines_arrive_in_order() -> None:
    end, begin = os.pipe()
    writer = LogWriter(begin)
    for number in range(50):
        writer.write(f"{number}\n")
    writer.close()
    os.close(begin)
    assert read_all(end).split() == [str(number) for number in range(50)]
    os.close(end)


def test_a_reader_that_does_not_read_holds_nobody_up_and_is_told_what_it_missed() -> None:
    end, begin = os.pipe()
    writer = LogWriter(begin, most=8)
    began = time.monotonic()
    for _ in range(100):
        writer.write("x" * 9999 + "\n")  # a pipe takes 64 KiB
    assert time.monotonic() - began < 10.0, "writing waited for the reader"
    assert writer.dropped >= 100 - 8 - 8
    dropped = writer.dropped
    said = b""
    while f"{dropped} pieces of log were dropped".encode() not in said:
        said += os.read(end, 65536)
    writer.close()
    os.close(begin)
    os.close(end)


def test_a_reader_that_is_gone_harms_nobody() -> None:
    end, begin = os.pipe()
    os.close(end)
    writer = LogWriter(begin)
    writer.write("nobody reads this\n")
    writer.close()
    os.close(begin)
    assert writer.dropped == 0
