"""What admission promises, in virtual time: no collapse above capacity, guarantees, long requests among short ones.

    python -m benchmarks.admission [overload | tenants | long] [--seconds 300]

Exit status: 0 when everything held, 1 when something did not.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from random import Random

from extproc.core.admission.adapt import AdaptSettings
from extproc.core.admission.queue import QueueSettings
from extproc.core.admission.tenants import Tenant, Tenants
from extproc.core.traits import Traits
from extproc.sim.admission import AdmissionSettings, Admitted, TenantRow
from extproc.sim.engine import EngineSettings
from extproc.sim.gateway import GatewaySettings
from extproc.sim.jobs import BLOCK_TOKENS, Status, block_hash
from extproc.sim.outcome import Outcome
from extproc.sim.plan import Fleet
from extproc.sim.run import SimSettings, Simulation

REPLICAS = 2
ENGINE = EngineSettings()
#: Requests a second that these replicas serve at most, of the mix below; found by `_capacity`.
SHORT, LONG, LONG_PART, OUTPUT = 1000, 32_000, 0.05, 200
#: Seconds left out at the start, at most a fifth of a run: budgets find their size meanwhile.
WARM, WARM_PART = 60.0, 0.2

_blocks = count(1)


def row(at: float, tokens: int, tenant: str, rng: Random) -> TenantRow:
    """A request whose prompt nobody else has."""
    blocks = [block_hash(next(_blocks)) for _ in range(-(-tokens // BLOCK_TOKENS))]
    return TenantRow(at, tokens, max(round(rng.expovariate(1 / OUTPUT)), 1), blocks, tenant)


def arrivals(
    rate: float, seconds: float, seed: int, tenant: str = "a", part: float = LONG_PART
) -> Iterator[TenantRow]:
    """Poisson arrivals of short prompts, and of `part` long ones."""
    rng, at = Random(seed), 0.0
    while (at := at + rng.expovariate(rate)) < seconds:
        yield row(at, LONG if rng.random() < part else round(rng.uniform(0.2, 1.8) * SHORT), tenant, rng)


def merged(*streams: Iterator[TenantRow]) -> list[TenantRow]:
    """Several streams in one order."""
    return sorted((each for stream in streams for each in stream), key=lambda each: each.at)


def settings(gateways: int) -> SimSettings:
    """The fleet."""
    traits = Traits(
        prefill_speed=ENGINE.prefill_speed,
        prefill_doubling=ENGINE.prefill_doubling,
        max_running=ENGINE.max_running,
        kv_tokens=ENGINE.kv_tokens,
    )
    replicas = {f"r{i}": ENGINE for i in range(REPLICAS)}
    return SimSettings(
        fleet=Fleet(replicas=replicas), gateway=GatewaySettings(traits=traits), gateways=gateways, drain=600.0
    )


def admission(*tenants: Tenant, **queue: float) -> AdmissionSettings:
    """Admission for these tenants, known by their names."""
    known = Tenants({tenant.name: tenant for tenant in tenants})
    return AdmissionSettings(tenants=known, queue=QueueSettings(**queue))  # type: ignore[arg-type]


def warm(seconds: float) -> float:
    """Seconds that are left out at the start of a run of so many."""
    return min(WARM, WARM_PART * seconds)


def goodput(outcome: Outcome, seconds: float) -> float:
    """Tokens a second of requests that arrived after the warm-up and were answered by the end of the arrivals."""
    return sum(
        tokens + output
        for arrived, ttft, tokens, output, status in _rows(outcome)
        if status == Status.FINISHED and arrived >= warm(seconds) and arrived + ttft < seconds
    ) / (seconds - warm(seconds))


def p99(outcome: Outcome, seconds: float) -> float:
    """P99 of the time to first token of requests that were served, seconds."""
    served = sorted(ttft for arrived, ttft, *_ in _rows(outcome) if ttft >= 0 and arrived >= warm(seconds))
    return served[int(len(served) * 0.99)] if served else float("inf")


def _rows(out: Outcome) -> Iterator[tuple[float, float, int, int, int]]:
    return zip(out.arrived, out.ttft, out.tokens, out.output, out.status, strict=True)


def overload(seconds: float, gateways: int) -> list[tuple[str, bool]]:
    """Twice what the fleet can do."""
    limit = capacity()
    one = settings(gateways)
    runs = {
        "0.9x": Simulation(one).run(arrivals(0.9 * limit, seconds, 1)),
        "1x": Simulation(one).run(arrivals(limit, seconds, 2)),
        "2x without": Simulation(one).run(arrivals(2 * limit, seconds, 3)),
    }
    sim = Admitted(one, admission(Tenant(name="a", share=1.0, waiting=10_000), wait=2.0))
    runs["2x admitted"] = sim.run(arrivals(2 * limit, seconds, 3))
    for name, out in runs.items():
        refused = sum(status == Status.REJECTED for status in out.status)
        good, slowest = goodput(out, seconds), p99(out, seconds)
        print(f"  {name:12} goodput {good:9,.0f} tokens/s  P99 TTFT {slowest:7.2f} s  refused {refused}")
    print(f"  budget {sim.board.total:,.0f}, changes {len(sim.changes)}")
    kept = goodput(runs["2x admitted"], seconds) / goodput(runs["1x"], seconds)
    slower = p99(runs["2x admitted"], seconds) / p99(runs["0.9x"], seconds)
    return [
        (f"goodput at 2x is {kept:.2f} of that at 1x (at least 0.90)", kept >= 0.9),
        (f"P99 TTFT at 2x is {slower:.2f} of that at 0.9x (at most 2)", slower <= 2.0),
    ]


def capacity() -> float:
    """Requests a second at which prompts take all of the replicas' time: the mix's mean prefill, and decode steps."""
    work = {tokens: tokens * (1 + tokens / 2 / ENGINE.prefill_doubling) for tokens in (SHORT, LONG)}
    mean = (1 - LONG_PART) * work[SHORT] + LONG_PART * work[LONG]
    return 0.8 * REPLICAS * ENGINE.prefill_speed / mean


def tenants(seconds: float, gateways: int) -> list[tuple[str, bool]]:
    """Guaranteed 50, 30 and 0 %; all want everything, but one that sleeps in the middle third."""
    limit = capacity()
    a, b, c = Tenant(name="a", share=0.5), Tenant(name="b", share=0.3), Tenant(name="c")
    third = seconds / 3
    awake = [each for each in arrivals(1.5 * limit, seconds, 1, "a") if not third <= each.at < 2 * third]
    sim = Admitted(settings(gateways), admission(a, b, c, wait=2.0))
    sim.run(merged(iter(awake), arrivals(1.5 * limit, seconds, 2, "b"), arrivals(4 * limit, seconds, 3, "c")))
    parts = {"a asleep": (third + 2, 2 * third), "all": (2 * third + 2, seconds)}
    shares = {name: _shares(sim, *window) for name, window in parts.items()}
    for name, found in shares.items():
        print(f"  {name:9} " + "  ".join(f"{tenant} {share:.3f}" for tenant, share in sorted(found.items())))
    return [
        (f"a gets {shares['all']['a']:.3f} (at least 0.475)", shares["all"]["a"] >= 0.95 * 0.5),
        (f"b gets {shares['all']['b']:.3f} (at least 0.285)", shares["all"]["b"] >= 0.95 * 0.3),
        (
            f"while a sleeps the others use all but {shares['a asleep'].get('a', 0):.3f}",
            shares["a asleep"].get("a", 0.0) == 0.0,
        ),
    ]


def _shares(sim: Admitted, since: float, until: float) -> dict[str, float]:
    sums: dict[str, float] = {}
    for at, tenant, tokens in sim.admitted:
        if since <= at < until:
            sums[tenant] = sums.get(tenant, 0.0) + tokens
    return {tenant: tokens / sum(sums.values()) for tenant, tokens in sums.items()}


def narrow(chosen: AdmissionSettings) -> AdmissionSettings:
    """The same with a budget that holds four long requests."""
    most = 4.0 * LONG + 4.0 * OUTPUT
    return replace(chosen, adapt=AdaptSettings(cap=most), bears=most / REPLICAS)


def long(seconds: float, gateways: int) -> list[tuple[str, bool]]:
    """Requests of 32 k tokens, more than their share has room for, among a flood of short ones, of one tenant."""
    chosen = admission(Tenant(name="a", share=1.0, waiting=1000), wait=10.0)
    found = []
    for size, each in (("the budget that is found", chosen), ("a budget of four of them", narrow(chosen))):
        print(f"  {size}", flush=True)
        found += _long(Admitted(settings(gateways), each), seconds)
    return found


def _long(sim: Admitted, seconds: float) -> list[tuple[str, bool]]:
    flood = arrivals(6 * capacity(), seconds, 1, "a", 0.0)
    out = sim.run(merged(flood, arrivals(0.6, seconds, 2, "a", 1.0)))
    served = [status for _, _, tokens, _, status in _rows(out) if tokens == LONG]
    done = sum(status == Status.FINISHED for status in served)
    went = [(tokens, at) for at, _, tokens in sim.admitted if at >= warm(seconds)]
    part = sum(tokens for tokens, _ in went if tokens >= LONG) / max(sum(tokens for tokens, _ in went), 1)
    worst = max((waited for waited, _ in sim.waits), default=0.0)
    print(f"  {done} of {len(served)} long requests served; longest wait {worst:.2f} s of 10 s")
    return [
        (f"long ones get {part:.3f} of the tokens (their share is 0.250; at least 0.225)", part >= 0.225),
        (f"none waits beyond 10 s: {worst:.2f} s", worst <= 10.0 + 0.11),
    ]


#: Given seconds and gateways: what was to hold, in words, and whether it did.
Part = Callable[[float, int], list[tuple[str, bool]]]


def run(description: str | None, parts: dict[str, Part]) -> int:
    """Run the parts that the command line asks for, and print what held; the exit status."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=parts)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--gateways", type=int, nargs="*", default=[1, 4])
    given = parser.parse_args()
    good = True
    for name in [given.part] if given.part else parts:
        for gateways in given.gateways:
            print(f"{name}, {gateways} gateways", flush=True)
            for what, held in parts[name](given.seconds, gateways):
                good = good and held
                print(f"  {'held' if held else 'MISSED'}: {what}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(run(__doc__, {"overload": overload, "tenants": tenants, "long": long}))
