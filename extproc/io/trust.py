"""What servers are verified with: the same under every Python."""

import ssl
from functools import cache

#: Python 3.13 began to ask that certificates have the form of RFC 5280, by default. A CA that one made oneself, and
#: many a cluster's, lacks an extension of it ("CA cert does not include key usage extension"), and would be refused
#: after a change of nothing but the interpreter. Chain, name and dates are verified all the same.
_FORM = ssl.VerifyFlags.VERIFY_X509_STRICT


def trust(ca_file: str = "") -> ssl.SSLContext:
    """Verifies chain, name and dates against a file of CA certificates, or against the system's CAs.

    Raises:
        OSError: the file can't be read, or (ssl.SSLError) has no certificate.
    """
    if not ca_file:
        return _systems()
    context = ssl.create_default_context(cafile=ca_file)
    for flag in left_out(ca_file):
        context.verify_flags &= ~flag
    return context


@cache
def _systems() -> ssl.SSLContext:
    """The system's CAs, which take 15 to 30 ms to read: once for all, as long as the process runs."""
    return ssl.create_default_context()


def left_out(ca_file: str) -> list[ssl.VerifyFlags]:
    """Of Python's demands on certificates those that are not made with this file, which is one's own; "" is none."""
    return [_FORM] if ca_file else []
