"""TLS of servers and clients: certificates in PEM files, which are read again when they change."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import grpc

from suffixsvc.errors import InvalidConfigError
from suffixsvc.transport.certificates import Pair, ServedPair, read_pem


@dataclass(frozen=True)
class ServerTls:
    """Certificate of a server, and whose clients' certificates it accepts.

    Attributes:
        certificate: chain of the server, PEM, its own certificate first.
        key: private key of the certificate, PEM.
        client_ca: certificates that sign those of clients (mutual TLS); None: clients present none.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None

    @cached_property
    def served(self) -> ServedPair:
        """The files in use, shared by all listeners.

        Raises:
            InvalidConfigError: a file is unreadable or not PEM; later, the files before stay in use.
        """
        return ServedPair(self.certificate, self.key, self.client_ca)

    def credentials(self) -> grpc.ServerCredentials:
        """Credentials of a gRPC port. Each connection uses the files as they are at its handshake.

        With ``client_ca`` a client without a certificate of it cannot connect.

        Raises:
            InvalidConfigError: a file is unreadable or not PEM; later, the files before stay in use.
        """
        self.served.announce()
        reader = _Reader(self.served)
        return grpc.dynamic_ssl_server_credentials(
            reader.first,
            reader.read_if_changed,  # type: ignore[arg-type]  # None: no change, as gRPC documents
            require_client_authentication=self.client_ca is not None,
        )

    def ssl_context(self) -> ssl.SSLContext:
        """Context of a socket server. Each connection uses the files as they are at its handshake.

        With ``client_ca`` a client without a certificate of it cannot connect, and TLS is 1.3 or later.

        Raises:
            InvalidConfigError: a file is unreadable or not PEM; later, the files before stay in use.
        """
        self.served.announce()
        listening = self.served.new_context()

        def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            """Called by OpenSSL at each handshake, with or without a name."""
            connection.context = self.served.latest().context

        listening.sni_callback = choose
        return listening


def server_tls(certificate: Path | None, key: Path | None, client_ca: Path | None) -> ServerTls | None:
    """The TLS of a server's options, which are checked; None: none is given.

    Raises:
        InvalidConfigError: some are missing, or a file is invalid.
    """
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        missing = "--tls-cert" if certificate is None else "--tls-key"
        raise InvalidConfigError("--tls-cert and --tls-key must be given together", got=f"no {missing}")
    tls = ServerTls(certificate, key, client_ca)
    _ = tls.served
    return tls


class _Reader:
    """Hands the files of a server to one gRPC port. Thread-safe: gRPC serialises its calls."""

    def __init__(self, served: ServedPair) -> None:
        self._served = served
        self._given = served.latest()

    @property
    def first(self) -> grpc.ServerCertificateConfiguration:
        """The files at the start."""
        return _configuration(self._given)

    def read_if_changed(self) -> grpc.ServerCertificateConfiguration | None:
        """The files, or None (no change) while they are the same or one of them is invalid."""
        latest = self._served.latest()
        if latest is self._given:
            return None
        self._given = latest
        return _configuration(latest)


def _configuration(pair: Pair) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pair.key, pair.certificate)], pair.client_ca)


@dataclass(frozen=True, slots=True)
class ClientTls:
    """How a client verifies a server, and proves who it is.

    Attributes:
        ca: certificates that sign the server's, PEM; None: those that gRPC ships.
        certificate, key: of the client (mutual TLS), PEM; None: it presents none.
        server_name: name in the server's certificate, where it is not that of the address.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            missing = "certificate" if self.certificate is None else "key"
            raise InvalidConfigError(
                "certificate and key of a client must be given together",
                got=f"no {missing}",
                remedy="Set both SUFFIXSVC_TLS_CERT and SUFFIXSVC_TLS_KEY, or neither.",
            )

    def credentials(self) -> grpc.ChannelCredentials:
        """Credentials of a channel. InvalidConfigError: a file is unreadable or not PEM."""
        return grpc.ssl_channel_credentials(
            None if self.ca is None else read_pem(self.ca, "tls CA"),
            None if self.key is None else read_pem(self.key, "tls key", "PRIVATE KEY"),
            None if self.certificate is None else read_pem(self.certificate, "tls certificate"),
        )

    def ssl_context(self) -> ssl.SSLContext:
        """The same for HTTPS. InvalidConfigError: a file is unreadable or not PEM."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except OSError as error:  # SSLError is an OSError
            raise InvalidConfigError(
                f"tls CA {self.ca} and certificate {self.certificate} must be PEM files", got=error
            ) from None
        return context

    def options(self) -> list[tuple[str, str]]:
        """Options of a channel."""
        name = self.server_name
        return [] if name is None else [("grpc.ssl_target_name_override", name)]
