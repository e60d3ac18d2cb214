"""A process that keeps a lease and says so: `python -m tests.integration.lease_holder URL ID`.

On each line of standard input it tries a fenced write, and prints how that ended.
"""

import asyncio
import sys

from extproc.config import LogSettings, RedisSettings
from extproc.io import logs
from extproc.io.lease import Fenced
from extproc.io.leases import Leases
from extproc.io.tasks import Supervisor


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def main(url: str, name: str) -> None:
    logs.configure(LogSettings())  # to standard error
    leases, tasks = Leases(RedisSettings(url=url), name), Supervisor()
    lease = leases.of("test")
    leases.start(tasks)
    while not lease.held:
        await asyncio.sleep(0.01)
    say(f"held {lease.token}")
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        held = lease.held  # asked before anything was renewed
        try:
            await lease.write("kvsteer:written", line.strip().encode(), 60.0)
            say(f"{held} written")
        except Fenced:
            say(f"{held} fenced")


asyncio.run(main(*sys.argv[1:3]))
