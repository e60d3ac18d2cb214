"""Small files that are named in the settings."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from extproc.errors import ConfigError
from extproc.io.discovery.base import SourceFailed
from extproc.io.discovery.kube_api import Access, KubeApi
from extproc.io.redis_check import MissingPassword
from extproc.io.redis_client import Login
from extproc.io.regular import read_regular
from extproc.io.scrape import Bearer, tls_context
from extproc.io.transports.tls import SelfSigned, TlsFiles


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    os.mkfifo(tmp_path / "fifo")
    return str(tmp_path / "fifo")


def test_a_regular_file_is_read_up_to_a_bound_through_links_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(str(tmp_path / "link")) == b"12345"
    assert read_regular(str(tmp_path / "file"), 2) == b"12"


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, fifo: str) -> None:
    for path in (fifo, "/dev/zero", "/dev/null"):
        with pytest.raises(OSError, match="is no regular file"):
            read_regular(path)
    with pytest.raises(IsADirectoryError):
        read_regular(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        read_regular(str(tmp_path / "none"))


def kube(path: str, **access: str) -> Callable[[], object]:
    api = KubeApi(
        Access(url="https://127.0.0.1:1", namespace="llm", **{"token_file": "", "ca_file": ""} | access)
    )
    return lambda: api._credentials()


@pytest.mark.parametrize(
    "what", ["cert", "key", "client_ca", "own", "password", "token", "ca", "kube_token", "kube_ca"]
)
def test_no_file_of_the_settings_is_waited_for(what: str, fifo: str, tmp_path: Path) -> None:
    (tmp_path / "pem").write_bytes(b"pem")
    good = str(tmp_path / "pem")
    reads: dict[str, Callable[[], object]] = {
        "cert": TlsFiles(fifo, good).pems,
        "key": TlsFiles(good, fifo).pems,
        "client_ca": TlsFiles(good, good, fifo).pems,
        "own": lambda: SelfSigned(["127.0.0.1"], fifo).pems(),
        "password": Login("user", path=fifo).get_credentials,
        "token": lambda: Bearer("", fifo, lambda: 0.0),
        "ca": lambda: tls_context(fifo),
        "kube_token": kube(fifo, token_file=fifo),
        "kube_ca": kube(fifo, ca_file=fifo),
    }
    failed: list[BaseException] = []

    def read() -> None:
        try:
            reads[what]()
        except (OSError, ConfigError, SourceFailed, MissingPassword) as error:
            failed.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "it waits for a writer"
    assert failed
