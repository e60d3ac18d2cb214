"""What the collector costs: CPU of one core for 100 replicas of 60 KB every 500 ms, and how fresh they stay.

    python -m benchmarks.scraping [--replicas 100] [--seconds 10] [--loop uvloop|asyncio] [--gzip] [--body FILE]

Measures the parse alone, then the collector against a server process on as many loopback addresses, of which
one never answers and one sends 100 MB. The body is the vLLM fixture, filled up to 60 KB with further histograms
as vLLM has them. CPU is that of the collecting process, the server's is not counted.
"""

import argparse
import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from extproc import engines
from extproc.core.sample import Sample
from extproc.engines.vllm import Vllm
from extproc.io.collector import Collector, Target

_FIXTURE = Path(__file__).parent.parent / "tests" / "fixtures" / "engines" / "vllm_0_32_load.txt"
_SIZE = 60 * 1024
_FLOOD = 100 * 2**20
_INTERVAL = 0.5


@dataclass
class _Settings:
    interval: float = _INTERVAL
    timeout: float = 1.0
    token: str = field(default="", repr=False)
    token_file: str = ""
    ca_file: str = ""


@dataclass
class _Record:
    """When each replica was last heard of, the largest gap there was, and what failed."""

    warm: float
    last: dict[str, float] = field(default_factory=dict)
    gap: dict[str, float] = field(default_factory=dict)
    samples: int = 0
    failures: dict[str, set[str]] = field(default_factory=dict)

    def on_sample(self, address: str, sample: Sample) -> None:
        self.samples += 1
        before = self.last.get(address, sample.at)
        if sample.at > self.warm:
            self.gap[address] = max(self.gap.get(address, 0.0), sample.at - before)
        self.last[address] = sample.at

    def on_failure(self, address: str, reason: str) -> None:
        self.failures.setdefault(address, set()).add(reason)


def default_body() -> bytes:
    """The fixture and further histogram lines, 60 KB in all."""
    body = _FIXTURE.read_text()
    number = 0
    while len(body) < _SIZE:
        labels = f'engine="0",le="{number % 20 / 10}",model_name="tiny"'
        body += f"vllm:request_decode_time_{number // 20}_seconds_bucket{{{labels}}} {number}.0\n"
        number += 1
    return body.encode()


def cpu_per_call(call: Callable[[], object], seconds: float = 1.0) -> float:
    """CPU seconds of one call: the best of five rounds."""
    best = float("inf")
    for _ in range(5):
        calls, began, until = 0, time.process_time(), time.process_time() + seconds / 5
        while time.process_time() < until:
            call()
            calls += 1
        best = min(best, (time.process_time() - began) / calls)
    return best


async def serve(body: bytes, replicas: int) -> None:
    """Answer on `replicas` loopback addresses, one port, which is printed; /hangs and /floods are sick."""

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path == "/hangs":
            await asyncio.Event().wait()
        if request.path == "/floods":
            return await _flood(request)
        response = web.Response(body=body, content_type="text/plain")
        response.enable_compression()  # only where the request asks for it
        return response

    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    first = web.TCPSite(runner, "127.0.0.1", 0)
    await first.start()
    port = runner.addresses[0][1]
    for number in range(1, replicas if sys.platform == "linux" else 1):
        await web.TCPSite(runner, _host(number), port).start()
    print(port, flush=True)
    await asyncio.Event().wait()


async def _flood(request: web.Request) -> web.StreamResponse:
    """100 MB in small parts, so that the server goes on answering the others."""
    response = web.StreamResponse()
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):  # the collector leaves, as it should
        for _ in range(_FLOOD // 2**16):
            await response.write(b"#" * 2**16)
    return response


def _host(number: int) -> str:
    """The loopback address of a replica; only Linux answers on all of 127.0.0.0/8."""
    return f"127.0.{number // 250}.{number % 250 + 1}" if sys.platform == "linux" else "127.0.0.1"


async def collect(port: int, replicas: int, seconds: float, gzip: bool) -> tuple[float, _Record]:
    """Share of one core that the collector takes, and what it saw; the first two seconds are not counted."""
    record = _Record(time.monotonic() + 2)
    collector = Collector(_Settings(), record.on_sample, record.on_failure, time.monotonic, gzip=gzip)
    paths = {0: "/hangs", 1: "/floods"}
    collector.set_targets(
        {
            f"{_host(number)}:{port}#{number}": Target(
                url=f"http://{_host(number)}:{port}{paths.get(number, '/metrics')}"
            )
            for number in range(replicas)
        }
    )
    await collector.start()
    await asyncio.sleep(2)
    began, record.samples, cpu = time.monotonic(), 0, time.process_time()
    await asyncio.sleep(seconds)
    share = (time.process_time() - cpu) / (time.monotonic() - began)
    await collector.stop()
    return share, record


def report_parse(body: bytes, replicas: int) -> None:
    """Print what reading one body costs."""
    vllm = Vllm()
    parse = cpu_per_call(lambda: vllm.parse(body, 0.0))
    lines = cpu_per_call(
        lambda: [line for line in body.split(b"\n") if line.startswith(b"vllm:num_requests_running")]
    )
    share = parse * replicas / _INTERVAL
    print(
        f"parse alone: {parse * 1e6:.0f} us for {len(body)} bytes; {share:.1%} of a core for {replicas} replicas"
    )
    print(f"  for comparison, one startswith() on every line: {lines * 1e6:.0f} us")
    print(f"detect: {cpu_per_call(lambda: engines.detect(body)) * 1e6:.1f} us")


def report_collect(port: int, options: argparse.Namespace) -> None:
    """Print what fetching and reading costs, and how fresh the healthy replicas stayed."""
    work = collect(port, options.replicas, options.seconds, options.gzip)
    if options.loop == "uvloop":
        import uvloop

        share, record = uvloop.run(work)
    else:
        share, record = asyncio.run(work)
    rate, gaps = record.samples / options.seconds, record.gap.values()
    how = f"{options.loop}, gzip" if options.gzip else options.loop
    print(
        f"fetch and parse ({how}): {share:.1%} of a core, {rate:.0f} samples/s, {share / rate * 1e6:.0f} us each"
    )
    print(f"longest time between two samples of one of the {len(gaps)} healthy replicas: {max(gaps):.2f} s")
    for address, reasons in sorted(record.failures.items()):
        print(f"  {address}: {', '.join(sorted(reasons))}")


def main() -> None:
    """Run the benchmark, or the server of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replicas", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop")
    parser.add_argument("--gzip", action="store_true", help="ask for compressed answers")
    parser.add_argument("--body", type=Path, help="a file to serve instead of the fixture")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    body = options.body.read_bytes() if options.body else default_body()
    if options.serve:
        asyncio.run(serve(body, options.replicas))
        return
    report_parse(body, options.replicas)
    command = [sys.executable, "-m", "benchmarks.scraping", *sys.argv[1:], "--serve"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        report_collect(int(server.stdout.readline()), options)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
