"""Envoy's EDS files follow who may get a new request."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from extproc.core.handover import Handover, HandoverRules
from extproc.core.pool import Pool
from extproc.envoyconfig import write_eds
from extproc.io.eds_files import EdsFiles, listed
from extproc.io.tasks import Supervisor

A, B, C = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"


def pool(*addresses: str, name: str = "p") -> Pool:
    made = Pool(name)
    for address in addresses:
        made.join(address, 0.0)
    return made


def drained(made: Pool, address: str) -> None:
    replica = made.get(address)
    assert replica is not None
    replica.drain("operator", 1.0)


def ports(folder: Path, name: str = "p") -> list[str]:
    (resource,) = yaml.safe_load((folder / f"{name}.yaml").read_text())["resources"]
    sockets = [it["endpoint"]["address"]["socket_address"] for it in resource["endpoints"][0]["lb_endpoints"]]
    return [f"{socket['address']}:{socket['port_value']}" for socket in sockets]


def test_who_drains_and_who_was_removed_are_not_listed() -> None:
    made = pool(A, B, C)
    drained(made, B)
    made.leave(C)
    assert listed(made) == [A]


def test_a_drained_replica_stays_out_when_its_engine_restarts() -> None:
    made = pool(A, B)
    drained(made, B)
    made.restarted(B, 2.0)
    assert listed(made) == [A]


def test_one_that_is_only_in_trouble_stays_listed_as_envoy_may_need_it() -> None:
    made = pool(A, B)
    replica = made.get(B)
    assert replica is not None
    replica.failed("connect", 1.0)
    assert replica.barred == "backoff"
    assert listed(made) == [A, B]


def test_who_only_computes_prompts_is_not_listed_by_setting_or_by_label() -> None:
    made = pool(A, B, C)
    made.handover = Handover(HandoverRules(), {A: "prefill", B: "decode"})
    assert listed(made) == [B, C]
    made.handover.found([(A, {}), (B, {}), (C, {"llm-d.ai/role": "prefill"})])
    assert listed(made) == [B]


def test_the_first_files_are_written_before_anything_else(tmp_path: Path) -> None:
    made = pool(A, B)
    drained(made, A)
    EdsFiles(str(tmp_path), [made], {"p"}).write()
    assert ports(tmp_path) == [B]


def test_the_file_of_a_discovered_pool_is_left_alone_until_discovery_has_answered(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("of an earlier run")
    made = pool()
    files = EdsFiles(str(tmp_path), [made], set())
    files.write()
    assert (tmp_path / "p.yaml").read_text() == "of an earlier run"
    made.join(A, 0.0)
    files.found("p")
    files.write()
    assert ports(tmp_path) == [A]


def test_without_a_folder_nothing_is_written(tmp_path: Path) -> None:
    files = EdsFiles("", [pool(A)], {"p"})
    files.write()
    files.look()
    assert list(tmp_path.iterdir()) == []


async def test_a_drain_and_its_end_reach_the_file(tmp_path: Path) -> None:
    made = pool(A, B)
    files, tasks = EdsFiles(str(tmp_path), [made], {"p"}), Supervisor()
    files.write()
    files.start(tasks)
    try:
        drained(made, B)
        files.look()
        await _until(lambda: ports(tmp_path) == [A])
        replica = made.get(B)
        assert replica is not None
        replica.undrain("operator", 2.0)
        files.look()
        await _until(lambda: ports(tmp_path) == [A, B])
    finally:
        await tasks.close()


async def test_what_changes_while_a_file_is_written_reaches_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = pool(A, B)
    files, tasks = EdsFiles(str(tmp_path), [made], {"p"}), Supervisor()
    files.write()
    begun, goes_on = threading.Event(), threading.Event()
    done: list[str] = []

    def slow(folder: str, name: str, text: str) -> None:
        begun.set()
        assert goes_on.wait(30), "nobody let it go on"
        write_eds(folder, name, text)
        done.append(name)

    monkeypatch.setattr("extproc.io.eds_files.write_eds", slow)
    files.start(tasks)
    try:
        drained(made, B)
        files.look()
        await _until(begun.is_set)
        replica = made.get(B)
        assert replica is not None
        replica.undrain("operator", 2.0)
        files.look()  # what was written last lists both, as what is to be
        goes_on.set()
        await _until(lambda: len(done) == 2)
        assert ports(tmp_path) == [A, B]
    finally:
        goes_on.set()
        await tasks.close()


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.01)
