"""Live requests recorded and simulated: is what the simulator says of policies what happens when they run?

    .venv/bin/python -m benchmarks.whatif [--seconds 100] [--rate 6] [--check]

The same arrivals (chats of several turns over shared documents) are played through a real Envoy and gateway to four
emulated engines, once for each of three policies. While the first runs, `kvsteer record` records; then
`kvsteer simulate` plays the trace with all three on engines that are set as the emulated ones. The first tenth
of the requests is left out. Promised:

    the simulated mean time to first token of the policy that was recorded is within 20 % of the measured one
    the three policies rank the same, simulated and live

Measured is what clients see, with what HTTP, Envoy and the gateway take, which the simulator knows nothing of.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from extproc.demo.drive import Report, drive
from extproc.demo.stack import Stack, StackSettings
from extproc.demo.workload import Arrival, Shape, arrivals

_POLICIES = ("charged_cost", "cache_aware", "round_robin")
_PREFILL, _KV, _RUNNING = 10_000, 262_144, 128
_REPLICAS = 4
_ENGINE = (
    f"--prefill-speed {_PREFILL} --kv-tokens {_KV} --max-running {_RUNNING} --step-ms 10 --sequence-ms 0.05"
).split()
_SIMULATED = (
    f"prefill={_PREFILL},doubling=1e9,kv={_KV},max_running={_RUNNING},"
    "step=0.01,per_sequence=0.00005,per_context=0"
)
_WITHIN = 0.2
#: Simulated with each of these, as one placement leads to another: the means of single runs differ by a tenth.
_SEEDS = "0,1,2,3,4,5"
#: Seconds between the start of the recording and the first request.
_HEAD = 2.0


def main() -> None:
    """Play, record, simulate, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--rate", type=float, default=6.0, help="chats that begin in a second")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    shape = Shape(seconds=given.seconds, sessions_per_second=given.rate, documents=20)
    work = arrivals(shape)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "live.jsonl"
        live = {
            policy: _live(policy, work, trace if policy == _POLICIES[0] else None) for policy in _POLICIES
        }
        simulated = _simulated(trace)
    ok = _tell(len(work), live, simulated)
    sys.exit(0 if ok or not given.check else 1)


def _live(policy: str, work: list[Arrival], trace: Path | None) -> float:
    """Mean time to first token, seconds, of a run; recorded where a trace is asked for."""
    settings = StackSettings(
        replicas=_REPLICAS,
        redis_url="",
        engine=_ENGINE,
        policy=policy,
        gateway={"feedback": {"observer": True}},
        pool={"capacity": {"prefill_speed": _PREFILL, "kv_tokens": _KV, "max_running": _RUNNING}},
    )
    with Stack(settings) as stack:
        report = asyncio.run(_played(stack, policy, work, trace))
    if report.failures:
        print(f"{policy}: {report.failures} requests failed")
    report.outcomes = report.outcomes[len(report.outcomes) // 10 :]  # the simulator leaves them out too
    return report.mean_ttft


async def _played(stack: Stack, policy: str, work: list[Arrival], trace: Path | None) -> Report:
    if trace is None:
        return await drive(stack.url, work, policy)
    span = work[-1].at + 2 * _HEAD
    url = f"http://127.0.0.1:{stack.gateway_ports[0][1]}"
    options = ["--for", f"{span:.0f}s", "-o", str(trace), "--admin", url, "--json"]
    argv = [sys.executable, "-m", "extproc", "record", *options]
    recorder = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE)
    await asyncio.sleep(_HEAD)
    report = await drive(stack.url, work, policy)
    said, _ = await recorder.communicate()
    print(f"recorded: {said.decode().strip()}")
    return report


def _simulated(trace: Path) -> dict[str, float]:
    """Mean time to first token, seconds, by policy."""
    fleet = ["--replicas", str(_REPLICAS), "--engine", _SIMULATED]
    policies = ["--policies", ",".join(_POLICIES), "--seeds", _SEEDS, "--json", "-"]
    argv = [sys.executable, "-m", "extproc", "simulate", str(trace), *fleet, *policies]
    said: dict[str, Any] = json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)
    return _means(said)


def _means(said: dict[str, Any]) -> dict[str, float]:
    return {
        policy: fmean(run["ttft_mean"] for run in said["runs"] if run["policy"] == policy)
        for policy in _POLICIES
    }


def _tell(requests: int, live: dict[str, float], simulated: dict[str, float]) -> bool:
    print(f"{requests} requests, {_REPLICAS} replicas; mean time to first token")
    for policy in _POLICIES:
        off = simulated[policy] / live[policy] - 1
        both = f"live {live[policy] * 1000:8.1f} ms   simulated {simulated[policy] * 1000:8.1f} ms"
        print(f"  {policy:14} {both}   {off:+.0%}")
    first = _POLICIES[0]
    near = abs(simulated[first] / live[first] - 1) <= _WITHIN
    same = sorted(live, key=live.__getitem__) == sorted(simulated, key=simulated.__getitem__)
    print(f"{first} within {_WITHIN:.0%}: {'yes' if near else 'NO'}; same ranking: {'yes' if same else 'NO'}")
    return near and same


if __name__ == "__main__":
    main()
