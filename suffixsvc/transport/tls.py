"""TLS of servers and clients: certificates in PEM files, which are read again when they change."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from suffixsvc.errors import InvalidConfigError
from suffixsvc.runtime.file_signature import Signature, file_signature


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

    def signatures(self) -> tuple[Signature | None, ...]:
        """What changes with the files."""
        return tuple(map(file_signature, (self.certificate, self.key, self.client_ca)))

    def credentials(self) -> grpc.ServerCredentials:
        """Credentials of a gRPC port. Each connection uses the files as they are at its handshake.

        With ``client_ca`` a client without a certificate of it cannot connect.

        Raises:
            InvalidConfigError: a file is unreadable or not PEM; later, the files before stay in use.
        """
        reader = _Reader(self)
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
        return _Contexts(self).outer


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
    """Reads the files of a server for gRPC. Thread-safe."""

    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls
        self._signatures = tls.signatures()
        #: of the first files
        self.first = self._read()

    def read_if_changed(self) -> grpc.ServerCertificateConfiguration | None:
        """The files, or None (no change) while they are the same or one of them is invalid."""
        found = self._tls.signatures()
        if found == self._signatures:
            return None
        try:
            configuration = self._read()
        except InvalidConfigError:  # such as a key that is being replaced
            return None
        self._signatures = found
        return configuration

    def _read(self) -> grpc.ServerCertificateConfiguration:
        tls = self._tls
        certificate = read_pem(tls.certificate, "tls certificate")
        key = read_pem(tls.key, "tls key", "PRIVATE KEY")
        client_ca = None if tls.client_ca is None else read_pem(tls.client_ca, "tls client CA")
        _server_context(tls)
        return grpc.ssl_server_certificate_configuration([(key, certificate)], client_ca)


class _Contexts:
    """Contexts of a socket server: one that listens, and that of the files as they are, which it hands on to.

    Attributes:
        outer: the one that listens.
    """

    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls
        self._signatures = tls.signatures()
        self._latest = _server_context(tls)
        self.outer = _server_context(tls)
        self.outer.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Called by OpenSSL at each handshake, with or without a name."""
        found = self._tls.signatures()
        if found != self._signatures:
            with contextlib.suppress(InvalidConfigError):  # such as a key that is being replaced
                self._latest, self._signatures = _server_context(self._tls), found
        connection.context = self._latest


def certificate_names(certificate: Mapping[str, Any] | None) -> list[str]:
    """The names in a verified certificate, as ``ssl`` returns it: alternative names, then common names."""
    if not certificate:
        return []
    alternative = [str(name) for _, name in certificate.get("subjectAltName", ())]
    subject = (pair for group in certificate.get("subject", ()) for pair in group)
    return alternative + [str(name) for key, name in subject if key == "commonName"]


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


def _server_context(tls: ServerTls) -> ssl.SSLContext:
    """Context of the files. InvalidConfigError unless they are valid and certificate and key a pair."""
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
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        # no session is resumed, or a client of a replaced authority would be verified no more
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
    return context


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
