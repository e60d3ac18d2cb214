"""However many models, tenants, paths and ids clients make up: metrics have no series for them, and no such name."""

import random
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest

from benchmarks.day import clean_end, log_entry
from extproc.app import Gateway
from extproc.config import parse
from tests.examples import count_of
from tests.unit.messages import chat, request_body, request_headers

#: In everything that clients make up.
MARK = "zzmadeup"
#: Tries of each kind in a round.
EACH = count_of(40)

SETTINGS: dict[str, Any] = {
    "gateway_id": "gw-0",
    "tracing": {"endpoint": "http://127.0.0.1:1/v1/traces", "share": 1.0},
    "admission": {
        "mode": "on",
        "identity": {"source": "header", "header": "x-tenant"},
        "tenants": [{"name": "one", "ids": ["one"], "tokens_per_minute": 100}],
        "queue": {"wait": "0s"},
    },
    "pools": [
        {"name": "a", "engine": "vllm", "models": ["m"], "replicas": ["10.0.0.1:80", "10.0.0.2:80"]},
        {"name": "b", "engine": "vllm", "models": ["n"], "replicas": ["10.0.0.3:80"], "adapters": {"enabled": True}},
    ],
}  # fmt: skip


class Made:
    """A gateway, and clients that make things up."""

    def __init__(self) -> None:
        self.gateway = Gateway(parse(yaml.safe_dump(SETTINGS), "test"))
        self._rng = random.Random(1)
        self._count = 0

    def name(self) -> str:
        """One that nobody used before; some are long, some have signs that break what is not quoted."""
        self._count += 1
        return f'{MARK}-{self._count}"\\\n{{}}é' + "x" * (self._count % 7 * 50)

    def round(self) -> None:
        """Some of each kind, ended in every way."""
        for _ in range(EACH):
            plain = f"{MARK}-{self._count}"
            self.ask(chat(self.name(), model="m"), x_tenant=plain)
            self.ask(chat("hello", model="m"), x_tenant="one", x_request_id=plain)
            self.ask(chat("hello", model=self.name()))
            self.ask(chat("hello", model="n", user=self.name(), lora=self.name()))
            self.ask(chat("hello", model="m"), path=f"/{plain}/v1/chat/completions")
            self.ask(chat("hello", model="m"), path=f"/v1/{plain}")
            self.ask(self.name().encode(), content_encoding=plain)
            self.ask(b"{" + self.name().encode())
            self.ask({"model": [plain], plain: plain})
            self.ask(chat("hello", model="m"), traceparent=f"00-{plain}")

    def ask(self, body: Any, **headers: str) -> None:
        """One request; its answer ends cleanly, or its client leaves, as the access log says."""
        session = self.gateway.exchanges.session()
        session.receive(request_headers(**headers))
        session.receive(request_body(body))
        decision = session._exchange.decision
        replica = decision.replica if decision is not None else None
        if replica is not None and self._rng.random() < 0.5:
            session.receive(clean_end(self._rng, replica.address, 100))
        session.end()
        self.gateway.exchanges.logged(log_entry(f"{MARK}-{self._count}", f"10.9.9.{self._count % 250}:80"))
        if replica is not None:
            self.gateway.exchanges.logged(log_entry(session._exchange.request_id, replica.address))

    def series(self) -> set[str]:
        """Names and labels of all series."""
        lines = generate_latest(self.gateway.prometheus).decode().splitlines()
        return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}


@pytest.fixture
async def made() -> Made:
    return Made()


async def test_what_clients_make_up_makes_no_series_and_is_in_none(made: Made) -> None:
    for _ in range(2):  # by then each kind came, and ended in each way
        made.round()
    before = made.series()
    for _ in range(3):
        made.round()
    after = made.series()
    assert not [name for name in after if MARK in name]
    assert len(after - before) < EACH  # a reason that came late, by the clock, but not one for each name
    assert len(before) < 2000
