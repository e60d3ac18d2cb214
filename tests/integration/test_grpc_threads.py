"""A gateway on grpc.aio: its deciding thread runs as usual, gRPC's own threads give way to it."""

import contextlib
import os
import sys
from pathlib import Path

import pytest
import yaml

from extproc.demo.processes import Child, answers, free_port


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="the kernel has no SCHED_BATCH")
def test_the_threads_of_grpc_give_way_and_the_gateways_own_does_not(tmp_path: Path) -> None:
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        pytest.skip("these tests were started with a scheduling policy of their own")
    port = free_port()
    settings = {
        "grpc": {"address": f"127.0.0.1:{port}", "transport": "grpcio"},
        "admin": {"address": "127.0.0.1:0"},
        "pools": [{"name": "one", "engine": "vllm", "replicas": ["127.0.0.1:9"]}],
    }
    (tmp_path / "kvsteer.yaml").write_text(yaml.safe_dump(settings))
    gateway = Child(
        "gateway", [sys.executable, "-m", "extproc", "serve", "-c", str(tmp_path / "kvsteer.yaml")], tmp_path
    )
    try:
        gateway.wait_until(lambda: answers(port), 60)
        assert os.sched_getscheduler(gateway.pid) == os.SCHED_OTHER, "the deciding thread gives way"
        policies = policies_by_name(gateway.pid)
    finally:
        gateway.stop()
    assert policies.get("event_engine") == {os.SCHED_BATCH}, f"threads of gRPC cut in: {policies}"


def policies_by_name(pid: int) -> dict[str, set[int]]:
    """Scheduling policies of a process's threads, by the threads' names."""
    found: dict[str, set[int]] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # one may end meanwhile
            name = (task / "comm").read_text().strip()
            found.setdefault(name, set()).add(os.sched_getscheduler(int(task.name)))
    return found
