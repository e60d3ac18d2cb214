"""A Redis of a test's own, with options; and a client of the project for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from extproc.demo.processes import Child, answers, free_port
from extproc.demo.stack import redis_program


@contextmanager
def redis_server(
    folder: Path, *options: str, port: int = 0, name: str = "redis"
) -> Iterator[tuple[int, Child]]:
    """A server that listens on loopback; its port and its process."""
    port = port or free_port()
    base = [redis_program(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    if "--cluster-enabled" in options:  # its second port is 10,000 above the first, and may be no port at all
        base += ["--cluster-port", str(free_port())]
    child = Child(f"{name}-{port}", [*base, *options], folder)
    try:
        child.wait_until(lambda: answers(port), 20)
        yield port, child
    finally:
        child.kill()
