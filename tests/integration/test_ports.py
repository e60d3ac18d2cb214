"""Ports of servers that tests, the demo and benchmarks start: nobody else is given them before they listen."""

import json
import socket
import subprocess
import sys
from pathlib import Path

from extproc.demo.processes import free_port
from tests.integration.patience import patient

#: What a process says that takes 400 ports and stays until it is told to end.
_TAKES = """
import json, sys
from extproc.demo.processes import free_port
print(json.dumps([free_port() for _ in range(400)]), flush=True)
sys.stdin.read()
"""


def test_processes_that_look_for_ports_at_once_find_none_in_common() -> None:
    argv = [sys.executable, "-c", _TAKES]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    others = [subprocess.Popen(argv, **pipes) for _ in range(3)]  # type: ignore[call-overload]
    try:
        found = [json.loads(other.stdout.readline()) for other in others]
        found.append([free_port() for _ in range(400)])
    finally:
        for other in others:
            other.communicate(timeout=patient(10))
    assert len({port for ports in found for port in ports}) == 4 * 400


def test_no_connection_is_given_one_of_them() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not [port for port in (free_port() for _ in range(100)) if first <= port <= last]


def test_a_port_that_somebody_listens_on_is_passed_by() -> None:
    with socket.create_server(("127.0.0.1", free_port(3) + 3)) as taken:
        assert taken.getsockname()[1] not in [free_port() for _ in range(10)]


def test_ports_in_a_row_are_all_its_own() -> None:
    firsts = [free_port(7) for _ in range(20)]
    assert len({first + i for first in firsts for i in range(7)}) == 140
