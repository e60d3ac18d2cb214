"""A real Envoy follows the EDS file of a pool."""

from pathlib import Path

import pytest

from extproc.envoyconfig import eds_text, write_eds
from tests.integration.alone import envoy, until

POOL = "kvsteer_pool_default"


def test_envoy_follows_a_rewritten_file_within_two_seconds(tmp_path: Path) -> None:
    eds = tmp_path / "eds"
    write_eds(eds, "default", eds_text("default", ["10.0.0.1:8000"]))
    tree = {"pools": [{"replicas": ["10.0.0.1:8000"]}], "envoy": {"eds_dir": str(eds)}}
    with envoy(tmp_path, tree) as running:
        assert running.hosts(POOL) == {"10.0.0.1:8000"}
        for replicas in (["10.0.0.1:8000", "[fd00::2]:8000"], ["10.0.0.3:8000"], [], ["10.0.0.1:8000"]):
            write_eds(eds, "default", eds_text("default", replicas))
            wanted = set(replicas)
            until(lambda wanted=wanted: running.hosts(POOL) == wanted, 2, f"Envoy has {replicas}")


def test_envoy_does_not_start_before_the_file_is_there(tmp_path: Path) -> None:
    """The bootstrap's own comment says so, and how to write the files."""
    (tmp_path / "eds").mkdir()
    tree = {"pools": [{"replicas": ["10.0.0.1:8000"]}], "envoy": {"eds_dir": str(tmp_path / "eds")}}
    with pytest.raises(AssertionError, match="does not exist"), envoy(tmp_path, tree):
        pass


@pytest.mark.parametrize(
    "broken", ["", "resources: [", "resources: []\n", "version_info: '1'\nresources: 7\n"]
)
def test_envoy_keeps_its_replicas_when_a_file_is_broken(tmp_path: Path, broken: str) -> None:
    eds = tmp_path / "eds"
    write_eds(eds, "default", eds_text("default", ["10.0.0.1:8000"]))
    tree = {"pools": [{"replicas": ["10.0.0.1:8000"]}], "envoy": {"eds_dir": str(eds)}}
    with envoy(tmp_path, tree) as running:
        write_eds(eds, "default", broken)
        write_eds(eds, "default", eds_text("default", ["10.0.0.1:8000", "10.0.0.2:8000"]))
        both = {"10.0.0.1:8000", "10.0.0.2:8000"}
        until(lambda: running.hosts(POOL) == both, 2, "Envoy recovers")
