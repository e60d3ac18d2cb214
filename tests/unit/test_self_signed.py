"""The certificate of the gateway's own making, read by Python's TLS."""

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from extproc.io.transports import self_signed
from extproc.io.transports.tls import Certificates, Pems, SelfSigned, TlsFiles
from extproc.settings.grpc import GrpcSettings, TlsSettings
from tests.examples import count_of

NAMES = ["kvsteer.serving.svc", "*.serving.example", "10.0.0.1", "fd00::1"]


def read(certificate: bytes, tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "cert.pem"
    path.write_bytes(certificate)
    told: dict[str, Any] = ssl._ssl._test_decode_cert(str(path))  # type: ignore[attr-defined]
    return told


def test_it_holds_the_names_and_a_life_from_yesterday_for_ten_years(tmp_path: Path) -> None:
    certificate, _ = self_signed.make(NAMES, datetime(2026, 3, 1, 12, tzinfo=UTC))
    told = read(certificate, tmp_path)
    assert told["subject"] == told["issuer"] == ((("commonName", "kvsteer.serving.svc"),),)
    assert told["subjectAltName"] == (
        ("DNS", "kvsteer.serving.svc"),
        ("DNS", "*.serving.example"),
        ("IP Address", "10.0.0.1"),
        ("IP Address", "FD00:0:0:0:0:0:0:1"),
    )
    assert (told["version"], told["notBefore"]) == (3, "Feb 28 12:00:00 2026 GMT")
    assert told["notAfter"] == "Feb 27 12:00:00 2036 GMT"  # 3,650 days, of which two leap


def test_a_life_beyond_2049_is_written_as_such_years_are(tmp_path: Path) -> None:
    certificate, _ = self_signed.make(["a"], datetime(2045, 1, 1, tzinfo=UTC))
    assert read(certificate, tmp_path)["notAfter"].endswith("2054 GMT")


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> ssl.SSLObject:
    """A handshake in memory; the client's side after it. Raises ssl.SSLError."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = client.wrap_bio(down, up, server_hostname=name)
    ours = server.wrap_bio(up, down, server_side=True)
    done = 0
    while done < 2:
        done = 0
        for side in (theirs, ours):
            try:
                side.do_handshake()
                done += 1
            except ssl.SSLWantReadError:
                pass
    return theirs


@pytest.mark.parametrize("round_", range(count_of(8, quick=3)))  # signatures hold random numbers
def test_whoever_trusts_it_can_shake_hands_by_each_of_its_names(round_: int) -> None:
    source = SelfSigned(NAMES)
    server = Certificates(source).context
    client = ssl.create_default_context(cadata=source.pems().cert.decode())
    client.set_alpn_protocols(["h2"])
    for name in ("kvsteer.serving.svc", "a.serving.example", "10.0.0.1", "fd00::1"):
        assert shake_hands(server, client, name).selected_alpn_protocol() == "h2"
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, client, "another.serving.svc")


def test_each_has_a_key_of_its_own_that_no_text_shows() -> None:
    one, other = SelfSigned(["a"]).pems(), SelfSigned(["a"]).pems()
    assert one.key != other.key
    assert one.cert != other.cert
    assert one.key.decode() not in repr(one)


def test_a_key_with_a_passphrase_is_refused_and_asks_nobody(tmp_path: Path) -> None:
    cert, _ = self_signed.make(["a"])
    (tmp_path / "cert.pem").write_bytes(cert)
    told = "Proc-Type: 4,ENCRYPTED", f"DEK-Info: AES-128-CBC,{'0' * 32}", "", "AAAA"
    locked = "\n".join(("-----BEGIN EC PRIVATE KEY-----", *told, "-----END EC PRIVATE KEY-----\n"))
    (tmp_path / "key.pem").write_text(locked)
    with pytest.raises(ssl.SSLError):
        Certificates(TlsFiles(str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")))


def test_a_key_is_in_no_text_of_what_holds_it() -> None:
    assert "secret" not in repr(Pems(b"cert", b"secret"))


@pytest.mark.parametrize(
    ("tls", "why"),
    [
        ({"self_signed": True, "cert_file": "/c", "key_file": "/k"}, "remove one"),
        ({"names": ["a"]}, "self_signed: true"),
        ({"self_signed": True, "names": ["a b"]}, "neither a DNS name nor an IP address"),
        ({"self_signed": True, "names": ["fe80::1%eth0"]}, "neither a DNS name"),
        ({"client_ca_file": "/ca"}, "client_ca_file needs TLS"),
        ({"cert_file": "/c"}, "go together"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(tls: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        TlsSettings(**tls)


@pytest.mark.parametrize("transport", ["fast", "grpcio"])
def test_both_transports_take_it(transport: str) -> None:
    made = GrpcSettings(transport=transport, tls={"self_signed": True, "names": NAMES})  # type: ignore[arg-type]
    assert made.tls.on
