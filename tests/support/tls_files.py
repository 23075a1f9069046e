"""Certificates in PEM files, for servers and clients of tests."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import trustme

from suffixsvc.transport.tls import ClientTls, ServerTls


class TlsFiles:
    """An authority, and what it has signed, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self.ca))

    def issue(
        self,
        *names: str,
        common_name: str | None = None,
        file: str | None = None,
        not_after: datetime | None = None,
    ) -> tuple[Path, Path]:
        """Certificate chain and key for some names; files of that name are replaced."""
        issued = self._authority.issue_cert(
            *names, common_name=common_name, not_before=datetime(2000, 1, 1, tzinfo=UTC), not_after=not_after
        )
        stem = file or (names[0] if names else "named")
        certificate, key = self._folder / f"{stem}.pem", self._folder / f"{stem}.key"
        chain = b"".join(each.bytes() for each in issued.cert_chain_pems)
        certificate.write_bytes(chain)
        issued.private_key_pem.write_to_path(str(key))
        return certificate, key

    def server(self, *, mutual: bool = False) -> ServerTls:
        """Of a server on a loopback address; with ``mutual`` clients need a certificate of this authority."""
        certificate, key = self.issue("127.0.0.1", "localhost", file="server")
        return ServerTls(certificate, key, self.ca if mutual else None)

    def client(self, name: str | None = None) -> ClientTls:
        """Of a client, with a certificate if it has a name."""
        return ClientTls(self.ca) if name is None else ClientTls(self.ca, *self.issue(name))
