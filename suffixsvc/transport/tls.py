"""TLS of servers and clients: certificates in PEM files, which are read again when they change."""

from __future__ import annotations

import ssl
import threading
from dataclasses import dataclass
from pathlib import Path

import grpc

from suffixsvc.errors import InvalidConfigError


@dataclass(frozen=True, slots=True)
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

    def credentials(self) -> grpc.ServerCredentials:
        """Credentials of a gRPC port. Each connection uses the files as they are at its handshake.

        With ``client_ca`` a client without a certificate of it cannot connect.

        Raises:
            InvalidConfigError: a file is unreadable or not PEM; later, the files before stay in use.
        """
        reader = _Reader(self)
        return grpc.dynamic_ssl_server_credentials(
            reader.read(),
            reader.read_if_valid,  # type: ignore[arg-type]  # None: no change, as gRPC documents
            require_client_authentication=self.client_ca is not None,
        )


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
    tls.credentials()
    return tls


class _Reader:
    """Reads the files of a server. Thread-safe."""

    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls
        self._lock = threading.Lock()
        self._last: tuple[bytes, bytes, bytes | None] | None = None

    def read(self) -> grpc.ServerCertificateConfiguration:
        tls = self._tls
        contents = (
            read_pem(tls.certificate, "tls certificate"),
            read_pem(tls.key, "tls key", "PRIVATE KEY"),
            None if tls.client_ca is None else read_pem(tls.client_ca, "tls client CA"),
        )
        certificate, key, client_ca = contents
        _require_pair(tls)
        configuration = grpc.ssl_server_certificate_configuration([(key, certificate)], client_ca)
        with self._lock:
            self._last = contents
        return configuration

    def read_if_valid(self) -> grpc.ServerCertificateConfiguration | None:
        """The files, or None (no change) while they are the same or one of them is invalid."""
        with self._lock:
            before = self._last
        try:
            configuration = self.read()
        except InvalidConfigError:  # such as a key that is being replaced
            return None
        return None if self._last == before else configuration


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
            raise InvalidConfigError("certificate and key of a client must be given together")

    def credentials(self) -> grpc.ChannelCredentials:
        """Credentials of a channel. InvalidConfigError: a file is unreadable or not PEM."""
        return grpc.ssl_channel_credentials(
            None if self.ca is None else read_pem(self.ca, "tls CA"),
            None if self.key is None else read_pem(self.key, "tls key", "PRIVATE KEY"),
            None if self.certificate is None else read_pem(self.certificate, "tls certificate"),
        )

    def options(self) -> list[tuple[str, str]]:
        """Options of a channel."""
        name = self.server_name
        return [] if name is None else [("grpc.ssl_target_name_override", name)]


def _require_pair(tls: ServerTls) -> None:
    """Raise InvalidConfigError unless certificate and key are valid, and belong together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.certificate, tls.key, password=lambda: b"")
        if tls.client_ca is not None:
            context.load_verify_locations(tls.client_ca)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise InvalidConfigError(
            f"tls certificate {tls.certificate} must be valid, and its key {tls.key}, without a password",
            got=getattr(error, "reason", None) or error,
        ) from None


def read_pem(path: Path, what: str, label: str = "CERTIFICATE") -> bytes:
    """The bytes of a PEM file.

    Raises:
        InvalidConfigError: it is unreadable, or holds no block whose label ends so.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidConfigError(f"{what} {path} must be a readable file", got=error.strerror) from None
    if f"{label}-----".encode() not in data:
        raise InvalidConfigError(
            f"{what} {path} must be a PEM file",
            expected=f"a block '-----BEGIN ... {label}-----'",
            got="no such block",
        )
    return data
