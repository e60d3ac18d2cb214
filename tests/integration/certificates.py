"""Certificates for tests of TLS."""

import subprocess
from pathlib import Path


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


def make_certificates(folder: Path) -> Path:
    """A CA, a server's and a client's certificate of it, and another CA."""
    new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    for name in ("ca", "other"):
        openssl(folder, *new, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")
    signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "basicConstraints=critical,CA:FALSE"]
    for name, host in (("server", "127.0.0.1"), ("client", "10.0.0.1")):
        names = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=IP:{host}"]
        openssl(folder, *new, *signed, "-keyout", f"{name}.key", "-out", f"{name}.pem", *names)
    return folder
