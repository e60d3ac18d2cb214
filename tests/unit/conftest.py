"""What makes thousands of small tests dear, made cheap."""

from itertools import count
from pathlib import Path

import pytest

_numbers = count()


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each test that writes files gets a folder of its own."""
    return tmp_path_factory.mktemp("unit")


@pytest.fixture
def tmp_path(folders: Path) -> Path:
    """An empty folder, in place of pytest's: that looks through all there are, and keeps a link to the latest."""
    path = folders / str(next(_numbers))
    path.mkdir()
    return path
