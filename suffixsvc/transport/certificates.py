"""Certificate and key of a server: PEM files that are read again when they change.

A pair that cannot be used leaves the one before in use. Changes, refusals and a certificate that expires soon
are logged once each, without the content of a file.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import InvalidConfigError
from suffixsvc.runtime.file_signature import file_signature

#: a certificate that expires within this time is logged as a warning
EXPIRES_SOON_SECONDS: Final = 7 * 86_400
#: OpenSSL's X509_V_FLAG_NO_CHECK_TIME: an expired certificate can be described
_NO_CHECK_TIME: Final = 0x200000
#: time between two attempts to read files that could not be used and have not changed
_RETRY_SECONDS: Final = 1.0
#: names of a certificate in a log line
_MOST_NAMES: Final = 10


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """Certificate and key of a server, that belong together.

    Attributes:
        certificate, key, client_ca: contents of the PEM files; ``client_ca`` is None without mutual TLS.
        context: of these files.
        names: in the certificate, alternative names first; empty if OpenSSL cannot describe it.
        expires_at: seconds since the epoch; None if OpenSSL cannot describe it.
    """

    certificate: bytes
    key: bytes
    client_ca: bytes | None
    context: ssl.SSLContext
    names: tuple[str, ...]
    expires_at: float | None


class ServedPair:
    """The pair that a server uses: that of the files, or the last usable one. Thread-safe.

    Args:
        certificate, key, client_ca: PEM files.

    Raises:
        InvalidConfigError: a file is unreadable or not PEM, or certificate and key are no pair.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None) -> None:
        self._files = (certificate, key, client_ca)
        self._lock = threading.Lock()
        #: of the files that were read last, usable or not
        self._tried = self._signatures()
        #: why those could not be used, and when that was found
        self._refusal, self._refused_at = "", 0.0
        self._pair = self._read()
        #: was logged, and was logged as one that expires soon
        self._announced: Pair | None = None
        self._warned: Pair | None = None

    def latest(self) -> Pair:
        """The pair to use now. A change of the files is logged."""
        with self._lock:
            found = self._signatures()
            changed = found != self._tried
            # unchanged files can become readable
            if changed or (self._refusal and time.monotonic() - self._refused_at >= _RETRY_SECONDS):
                self._reload(changed=changed)
                self._tried = found
            self._warn_before_expiry()
            return self._pair

    def announce(self) -> None:
        """Log the pair that is in use, once."""
        with self._lock:
            if self._announced is not self._pair:
                self._log_in_use()
            self._warn_before_expiry()

    def new_context(self) -> ssl.SSLContext:
        """Another context of the files. InvalidConfigError: they cannot be used."""
        return _server_context(*self._files)

    def _signatures(self) -> tuple[object, ...]:
        return tuple(map(file_signature, self._files))

    def _reload(self, *, changed: bool) -> None:
        """Use the files if they can be used."""
        try:
            pair = self._read()
        except InvalidConfigError as error:
            if changed or str(error) != self._refusal:
                _log().warning(
                    "TLS files cannot be used; the pair before stays in use",
                    error=str(error),
                    certificate=str(self._files[0]),
                    key=str(self._files[1]),
                )
            self._refusal, self._refused_at = str(error), time.monotonic()
            return
        self._refusal = ""
        same = (pair.certificate, pair.key, pair.client_ca)
        if same != (self._pair.certificate, self._pair.key, self._pair.client_ca):
            self._pair = pair
            self._log_in_use()

    def _log_in_use(self) -> None:
        self._announced = pair = self._pair
        more = {} if pair.expires_at is None else {"expires_at": _utc(pair.expires_at)}
        names = list(pair.names[:_MOST_NAMES])
        _log().info("TLS certificate in use", certificate=str(self._files[0]), names=names, **more)

    def _warn_before_expiry(self) -> None:
        pair = self._pair
        if pair.expires_at is None or self._warned is pair:
            return
        left = pair.expires_at - time.time()
        if left < EXPIRES_SOON_SECONDS:
            self._warned = pair
            _log().warning(
                "the TLS certificate expires soon" if left > 0 else "the TLS certificate has expired",
                certificate=str(self._files[0]),
                expires_at=_utc(pair.expires_at),
            )

    def _read(self) -> Pair:
        certificate, key, client_ca = self._files
        texts = (
            read_pem(certificate, "tls certificate"),
            read_pem(key, "tls key", "PRIVATE KEY"),
            None if client_ca is None else read_pem(client_ca, "tls client CA"),
        )
        context = _server_context(*self._files)
        described = _described(certificate, key)
        expires = described.get("notAfter")
        return Pair(
            *texts,
            context,
            tuple(certificate_names(described)),
            None if expires is None else float(ssl.cert_time_to_seconds(expires)),
        )


def _utc(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _described(certificate: Path, key: Path) -> Mapping[str, Any]:
    """Fields of a server's certificate, as ``ssl`` returns them; empty if it refuses the certificate.

    ``ssl`` describes the certificate of a peer only, so a client in this process, which trusts just this
    certificate, shakes hands with it.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(OSError, ValueError):  # SSLError is an OSError
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(_NO_CHECK_TIME)
        client.load_verify_locations(certificate)
        server_side = _server_context(certificate, key, None).wrap_bio(to_server, to_client, server_side=True)
        client_side = client.wrap_bio(to_client, to_server)
        for side in (client_side, server_side, client_side):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
        return client_side.getpeercert() or {}
    return {}


def certificate_names(certificate: Mapping[str, Any] | None) -> list[str]:
    """The names in a verified certificate, as ``ssl`` returns it: alternative names, then common names."""
    if not certificate:
        return []
    alternative = [str(name) for _, name in certificate.get("subjectAltName", ())]
    subject = (pair for group in certificate.get("subject", ()) for pair in group)
    return alternative + [str(name) for key, name in subject if key == "commonName"]


def _server_context(certificate: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    """Context of the files. InvalidConfigError unless they are valid and certificate and key a pair."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=lambda: b"")
        if client_ca is not None:
            context.load_verify_locations(client_ca)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise InvalidConfigError(
            f"tls certificate {certificate} must be valid, and its key {key}, without a password",
            got=getattr(error, "reason", None) or error,
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if client_ca is not None:
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


def _log() -> Any:
    import structlog  # noqa: PLC0415 - clients load this module, and neither it nor rich

    return structlog.get_logger(__name__)
