"""Orders of operators as they stand in Redis, hand-written ones included."""

import pytest

from extproc.io import clock
from extproc.io.operator import _deadline


@pytest.mark.parametrize(
    "order", [b'{"deadline": "nan"}', b'{"deadline": true}', b'{"deadline": [1]}', b"{}", b"no JSON", b"[]"]
)
def test_a_deadline_that_is_no_time_is_none_and_drops_nobody(order: bytes) -> None:
    assert _deadline(order, 10.0) is None


def test_a_deadline_is_brought_to_our_clock() -> None:
    order = f'{{"deadline": {clock.wall() + 60}}}'.encode()
    assert _deadline(order, 10.0) == pytest.approx(70.0, abs=5.0)
