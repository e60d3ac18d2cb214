"""Leases of one gateway: asked for together, and whose they are by name."""

from typing import Any

import pytest

from extproc.config import RedisSettings
from extproc.io import clock
from extproc.io.lease import Lease, gateway_of
from extproc.io.leases import Leases


class Pipeline:
    """Redis' answers: every lease is ours."""

    def __init__(self, calls: list[int]) -> None:
        self._calls = calls
        self._scripts = 0

    async def __aenter__(self) -> "Pipeline":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def eval(self, *_: Any) -> None:
        self._scripts += 1

    async def execute(self, raise_on_error: bool) -> list[Any]:
        assert not raise_on_error, "what is wrong with one lease must not cost the others"
        self._calls.append(self._scripts)
        return [[1, b"7"]] * self._scripts


class Client:
    def __init__(self) -> None:
        self.calls: list[int] = []

    def pipeline(self, transaction: bool) -> Pipeline:
        assert not transaction
        return Pipeline(self.calls)


async def test_all_leases_of_a_gateway_are_asked_for_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    monkeypatch.setattr("extproc.io.leases.make_client", lambda *_: client)
    monkeypatch.setattr(clock, "monotonic", lambda: 100.0)  # else a machine that stalls makes them due again
    monkeypatch.setitem(Lease.__init__.__kwdefaults__, "clock", clock.monotonic)
    leases = Leases(RedisSettings(url="redis://localhost/0"), "gw-1")
    made = [leases.of(f"collector:{number}") for number in range(40)]
    await leases.round()
    assert client.calls == [40]
    assert all(lease.held and lease.token == 7 for lease in made)
    await leases.round()
    assert client.calls == [40], "none is due for a third of its TTL"
    assert len({lease.due for lease in made}) == 1, "all are due together"


@pytest.mark.parametrize(
    ("holder", "gateway"),
    [
        ("gw-1#0a1b2c3d", "gw-1"),
        ("Gw_1.x-2#a", "Gw_1.x-2"),
        ("gw-1", ""),
        ("#ab", ""),
        ("gw-1#", ""),
        ("gw-1#xyz", ""),
        ("gw 1#ab", ""),
        ("\x1b[2Jgw#ab", ""),
        ("gw-1\n#ab", ""),
        ("gw-1#ab\n", ""),
        ("g" * 64 + "#ab", "g" * 64),
        ("g" * 65 + "#ab", ""),
    ],
)
def test_a_holders_name_is_that_of_a_gateway_or_nobodys(holder: str, gateway: str) -> None:
    assert gateway_of(holder) == gateway
