"""TLS for the gRPC library: it asks at each handshake whether there are newer certificates."""

from collections.abc import Callable

import grpc

from extproc.io.transports.tls import Certificates, Pems, TlsSource


def credentials(source: TlsSource, told: Callable[[str], None]) -> grpc.ServerCredentials:
    """Credentials that follow the source's changes, for connections from then on.

    Certificates are tried by Python's TLS before gRPC sees them, so that those that can't be used are told in the
    same words as by the other transport, and the ones before stay in use.

    Args:
        source: where they come from.
        told: given a sentence when changed ones can't be used; called on a thread of gRPC's.

    Raises:
        OSError, ssl.SSLError: they can't be read at the start, or used.
    """
    certificates = Certificates(source, told)
    given = certificates.pems

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal given
        certificates.look()
        if certificates.pems is given:
            return None  # gRPC goes on with what it has
        given = certificates.pems
        return _configuration(given)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(given), fetch, require_client_authentication=bool(given.client_ca)
    )


def _configuration(pems: Pems) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pems.key, pems.cert)], pems.client_ca or None)
