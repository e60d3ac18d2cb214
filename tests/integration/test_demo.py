"""kvsteer demo leaves no process behind, however it ends."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from extproc.demo.processes import Child, StackError
from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import until
from tests.integration.patience import patient


def running_in(folder: Path) -> list[int]:
    """Processes that work in the folder or below it: where a child is born, or in the stack's own folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "cwd").readlink().is_relative_to(folder):
                    found.append(int(entry.name))
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_demo(number: int, tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "extproc", "demo", "--seconds", "30"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # the stack's folder too: Redis works in it
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        # itself, Redis, the replicas' process, a gateway, Envoy
        until(lambda: len(running_in(tmp_path)) >= 5, 40, "the demo has started its processes")
        demo.send_signal(number)
        demo.wait(patient(20))
        until(lambda: not running_in(tmp_path), 10, "every process it started has ended")
    finally:
        demo.kill()
        demo.wait()


def test_a_process_that_dies_is_told_with_its_last_words() -> None:
    with Stack(StackSettings(replicas=1)) as stack:
        stack.check()
        stack.children["envoy"].kill()
        with pytest.raises(StackError, match=r"(?s)envoy died.*last said"):
            stack.check()
    assert not stack.folder.exists()


def test_a_process_that_fails_at_its_start_is_told_with_what_it_said(tmp_path: Path) -> None:
    child = Child("broken", [sys.executable, "-c", "print('out of luck'); raise SystemExit(3)"], tmp_path)
    with pytest.raises(StackError, match=r"(?s)broken ended at its start.*out of luck"):
        child.wait_until(lambda: False, patient(10))


#: Starts children from a process in which gRPC has threads, and says which of them did not do as they were told.
_STARTS = """
import asyncio, sys
from pathlib import Path
import grpc.aio
from extproc.demo.processes import Child

def start(folder):
    children = [Child(f"child-{number}", ["/bin/sh", "-c", "echo hello"], folder) for number in range(60)]
    for child in children:
        child.wait_until(lambda: child.said() == "hello" or not child.running, 120)
    print([child.said() for child in children if child.said() != "hello"])

async def main():
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await grpc.aio.insecure_channel(f"127.0.0.1:{port}").channel_ready()
    await asyncio.to_thread(start, Path(sys.argv[1]))

asyncio.run(main())
"""


def test_a_process_with_grpc_in_it_starts_children_that_run(tmp_path: Path) -> None:
    """Code of ours between fork and exec ran gRPC's fork handlers, and one child in twenty ended with them."""
    argv = [sys.executable, "-c", _STARTS, str(tmp_path)]
    told = subprocess.run(argv, capture_output=True, text=True, timeout=patient(60), check=False)
    assert told.stdout.strip() == "[]", told.stdout + told.stderr
