"""What `kvsteer serve` does with more than one worker: the parent of them, and the Redis they share."""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import structlog

from extproc.config import GatewaySettings
from extproc.demo.processes import Child, StackError
from extproc.demo.stack import redis_program
from extproc.errors import ConfigError
from extproc.io import logs
from extproc.io.worker_pool import WorkerPool, this_program
from extproc.workers import WORKER, WORKER_REDIS

_log = structlog.get_logger("kvsteer.workers")

#: Seconds the embedded Redis may take to answer.
_READY = 20.0
#: Most memory of the embedded Redis: several times what a million index entries and their journal take.
_MEMORY = "512mb"
#: Seconds between looks whether the embedded Redis runs.
_LOOK = 0.5


def run(settings: GatewaySettings, path: str) -> int:
    """Run the workers until SIGTERM or SIGINT; returns the exit status.

    Raises:
        ConfigError: no Redis is configured and none can be started.
    """
    logs.configure(settings.log)
    with shared_redis(settings) as (redis_url, child):
        return asyncio.run(_keep(settings, path, redis_url, child))


@contextlib.contextmanager
def shared_redis(settings: GatewaySettings) -> Iterator[tuple[str, Child | None]]:
    """URL and process of a Redis of our own where none is configured. It ends with us, by kill -9 too (Linux).

    It listens on a socket in a folder that only this user can enter, and keeps nothing on disk.
    """
    if settings.redis.url:
        yield "", None
        return
    with tempfile.TemporaryDirectory(prefix="kvsteer-") as name:
        folder = Path(name)
        socket = folder / "redis.sock"
        options = ["--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700", "--dir", name]
        options += ["--maxmemory", _MEMORY, "--maxmemory-policy", "noeviction"]
        try:
            child = Child("redis", [redis_program(), *options, "--save", "", "--appendonly", "no"], folder)
            child.wait_until(socket.exists, _READY)
        except StackError as error:
            raise ConfigError(
                f"workers share what they know through Redis, redis.url names none, and none can be started: {error}"
            ) from None
        _log.info("redis started for the workers", pid=child.pid)
        try:
            yield f"unix://{socket}", child
        finally:
            child.stop()


async def _keep(settings: GatewaySettings, path: str, redis_url: str, redis: Child | None) -> int:
    def command(_number: int) -> list[str]:
        return [*this_program(), "serve", "-c", path, "--workers", str(settings.workers)]

    def environment(number: int) -> dict[str, str]:
        return {**os.environ, WORKER: str(number), WORKER_REDIS: redis_url}

    pool = WorkerPool(
        command, environment, settings.workers, settings.grpc.drain + settings.grpc.drain_notice
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, pool.stop)
    hang_up = pool.stop if sys.stderr.isatty() else lambda: pool.signal(signal.SIGHUP)
    loop.add_signal_handler(signal.SIGHUP, hang_up)
    watch = asyncio.create_task(_keep_redis(redis))
    try:
        return await pool.run()
    finally:
        watch.cancel()


async def _keep_redis(redis: Child | None) -> None:
    """Start our Redis again should it die. The workers go on alone meanwhile."""
    while redis is not None:
        await asyncio.sleep(_LOOK)
        if not redis.running:
            redis.restart()
            _log.error("the workers' redis died; it is started again", pid=redis.pid)
