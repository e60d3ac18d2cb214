"""What admission adds to a decision: CPU of a whole exchange with it on, beside the same with it off.

    python -m benchmarks.admission_cost [--rounds 15] [--check]

Headers, body, decision and end of chats of 2 KB at 16 replicas, with ten tenants that are known by a header and have
caps and rates, all of whom find room; in turns, CPU time, medians of rounds. With --check the exit status is 1 when a
decision with admission costs more than 1.25 times of one without.
"""

import argparse
import asyncio
import statistics
import sys
import time

from benchmarks.decision import bodies
from extproc.app import Gateway
from extproc.config import parse
from extproc.core.exchange import Exchange
from extproc.core.states import STEERED
from extproc.io import clock
from extproc.pb import ext_proc_pb2 as pb

#: Most that a decision may cost, times that of one without admission.
MOST = 1.25
_REQUESTS, _TENANTS = 400, 10


def configuration(mode: str) -> str:
    """kvsteer.yaml with admission in a mode."""
    replicas = [f"10.0.0.{i}:8000" for i in range(1, 17)]
    tenants = [
        {
            "name": f"t{i}",
            "ids": [f"id-{i}"],
            "share": 0.05,
            "tokens_per_minute": 10**11,
            "tokens_in_flight": 10**10,
        }
        for i in range(_TENANTS)
    ]
    admission = {"mode": mode, "identity": {"source": "header", "header": "x-team"}, "tenants": tenants}
    return str({"pools": [{"replicas": replicas}], "admission": admission})


async def supplied(mode: str) -> Gateway:
    """A gateway whose budgets are leased."""
    gateway = Gateway(parse(configuration(mode), "benchmark"))
    if gateway.admission is not None:
        gateway.admission.look()
        await gateway.admission.tick()
        await gateway.admission.tick()
    return gateway


def messages() -> list[tuple[bytes, bytes]]:
    """Headers and bodies, of each tenant in turn."""
    made = []
    for number, body in enumerate(bodies(2048, _REQUESTS)):
        headers, whole = pb.ProcessingRequest(), pb.ProcessingRequest()
        pairs = {":method": "POST", ":path": "/v1/chat/completions", "content-length": str(len(body))}
        for key, value in {**pairs, "x-team": f"id-{number % _TENANTS}"}.items():
            headers.request_headers.headers.headers.add(key=key, raw_value=value.encode())
        headers.protocol_config.request_body_mode = pb.ProcessingMode.BUFFERED
        whole.request_body.body, whole.request_body.end_of_stream = body, True
        made.append((headers.SerializeToString(), whole.SerializeToString()))
    return made


def played(gateway: Gateway, requests: list[tuple[bytes, bytes]]) -> float:
    """CPU seconds of an exchange, from its first message to its end."""
    began = time.process_time()
    for headers, body in requests:
        exchange = Exchange(gateway.steering)
        exchange.receive(headers, clock.monotonic())
        exchange.receive(body, clock.monotonic())
        exchange.end(clock.monotonic())
        if exchange.outcome != STEERED:
            raise SystemExit(f"a request was {exchange.outcome}: {exchange.why}")
    return (time.process_time() - began) / len(requests)


async def compared(rounds: int) -> tuple[float, float]:
    """CPU seconds of an exchange without and with admission, medians."""
    gateways = [await supplied("off"), await supplied("on")]
    requests = messages()
    seen: list[list[float]] = [[], []]
    for number in range(rounds + 1):
        for which in (0, 1) if number % 2 else (1, 0):
            admission = gateways[which].admission
            if admission is not None:
                await admission.tick()
            taken = played(gateways[which], requests)
            if number:  # the first round warms up
                seen[which].append(taken)
    return statistics.median(seen[0]), statistics.median(seen[1])


def main() -> int:
    """Print both and their ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    off, on = asyncio.run(compared(given.rounds))
    print(
        f"an exchange: {off * 1e6:.0f} us without admission, {on * 1e6:.0f} us with it: {on / off:.2f} times"
    )
    return 1 if given.check and on > MOST * off else 0


if __name__ == "__main__":
    sys.exit(main())
