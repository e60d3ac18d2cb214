"""Answers of HTTP/1.1, read however their bytes come; tests/integration/test_http_get.py has them over sockets."""

import pytest

from extproc.io.http_answer import MAX_HEAD, Answer, GetFailed, read_answer

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nx: y\r\n\r\n"


def fed(*pieces: bytes, limit: int = 1000) -> Answer | None:
    """What is read of pieces that come one after the other; b"" is the connection's end. None for "more"."""
    reading = read_answer(limit)
    next(reading)
    try:
        for piece in pieces:
            reading.send(piece)
    except StopIteration as done:
        answer: Answer = done.value
        return answer
    return None


ANSWERS = [
    (b"HTTP/1.1 200 OK\r\ndate: now\r\nContent-Length: 5\r\n\r\nabcde", b"abcde", True),
    (b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 5\r\n\r\nabcde", b"abcde", True),
    (b"HTTP/1.1 200 OK\r\nconnection: Close\r\ncontent-length: 5\r\n\r\nabcde", b"abcde", False),
    (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b"", True),
    (CHUNKED + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n", b"abcde", True),
    (CHUNKED + b"5\r\nabcde\r\n0\r\na: trailer\r\nb: another\r\n\r\n", b"abcde", True),
    (b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + CHUNKED + b"1\r\na\r\n0\r\n\r\n", b"a", True),
    (b"HTTP/1.1 503 Busy\r\ncontent-length: 5\r\n\r\n", b"", False),
]


@pytest.mark.parametrize(("text", "body", "keeps"), ANSWERS)
def test_an_answer_is_the_same_wherever_its_bytes_are_cut(text, body, keeps) -> None:
    whole = fed(text)
    assert whole is not None
    assert (whole.body, whole.keeps) == (body, keeps)
    for at in range(1, len(text)):
        assert fed(text[:at], text[at:]) == whole, text[at:]
    assert fed(*(text[at : at + 1] for at in range(len(text)))) == whole


@pytest.mark.parametrize(("text", "body", "keeps"), ANSWERS[:-1])
def test_an_answer_that_is_cut_off_is_none(text, body, keeps) -> None:
    for at in range(len(text)):
        with pytest.raises(EOFError):
            fed(text[:at] or b"H", b"")


def test_without_a_length_the_connections_end_ends_it() -> None:
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    assert fed(head + b"ab", b"cde") is None
    assert fed(head + b"ab", b"cde", b"") == Answer(200, {}, b"abcde", keeps=False)
    with pytest.raises(GetFailed, match="too_large"):
        fed(head, b"a" * 6, b"a" * 5, limit=10)
    with pytest.raises(GetFailed, match="too_large"):
        fed(head + b"a" * 11, limit=10)


def test_a_connection_on_which_more_came_than_the_answer_is_not_used_again() -> None:
    answer = fed(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\n")
    assert answer == Answer(200, {"content-length": "2"}, b"hi", keeps=False)


@pytest.mark.parametrize("size", [1, 1000, MAX_HEAD * 2])
def test_an_endless_head_is_given_up_within_its_bound(size) -> None:
    pieces = [b"HTTP/1.1 200 OK\r\n", *[b"x" * size] * (2 * MAX_HEAD // size + 1)]
    with pytest.raises(GetFailed, match="broken"):
        fed(*pieces)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\n folded: line\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nname : x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: a\nb: c\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/3 200\r\n\r\n",
        b"\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    ],
)
def test_a_head_that_is_none_is_refused(head) -> None:
    with pytest.raises(GetFailed, match="broken"):
        fed(head)


@pytest.mark.parametrize(
    "text",
    [
        b"HTTP/1.1 200 OK\ncontent-length: 0\n\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\n\n",
        b"\n\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        CHUNKED + b"1\na\n0\n\n",
        CHUNKED + b"0\r\na: b\n\n",
    ],
)
def test_what_can_come_to_no_answer_is_not_waited_for(text) -> None:
    """As a server goes on keeping the connection open, that would be a timeout."""
    with pytest.raises(GetFailed, match="broken"):
        fed(text)
    with pytest.raises(GetFailed, match="broken"):
        fed(*(text[at : at + 1] for at in range(len(text))))
