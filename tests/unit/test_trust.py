"""What servers are verified with."""

import ssl
from pathlib import Path
from typing import Any

import pytest

from extproc.config import RedisSettings
from extproc.io.redis_client import make_client
from extproc.io.transports import self_signed
from extproc.io.trust import trust

STRICT = ssl.VerifyFlags.VERIFY_X509_STRICT


@pytest.fixture
def ca_file(tmp_path: Path) -> str:
    (tmp_path / "own.pem").write_bytes(self_signed.make(["a"])[0])
    return str(tmp_path / "own.pem")


def test_a_ca_of_ones_own_need_not_have_the_form_that_newer_pythons_ask_for(ca_file: str) -> None:
    context = trust(ca_file)
    assert not context.verify_flags & STRICT
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_with_the_systems_cas_python_decides() -> None:
    assert trust().verify_flags == ssl.create_default_context().verify_flags


@pytest.mark.parametrize("kind", ["rediss://a", "rediss+sentinel://a/m"])
def test_redis_is_verified_in_the_same_way(kind: str, ca_file: str) -> None:
    def options(**given: str) -> dict[str, Any]:
        client: Any = make_client(RedisSettings(url=kind, **given))
        return dict(client.connection_pool.connection_kwargs)

    assert options(ca_file=ca_file)["ssl_exclude_verify_flags"] == [STRICT]
    assert not options()["ssl_exclude_verify_flags"]


def test_a_file_without_certificates_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(ssl.SSLError):
        trust(str(tmp_path / "ca.pem"))
    with pytest.raises(FileNotFoundError):
        trust(str(tmp_path / "none.pem"))
