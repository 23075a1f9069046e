"""What a service logs and exposes of its certificate: at the start, after a change, before it expires."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from suffixsvc.transport.certificates import ServedPair
from support.scraping import Scrape, address_of
from support.serving import ServeProcess, eventually, socket_dir
from support.tls_files import TlsFiles

IN_USE, REFUSED = "TLS certificate in use", "TLS files cannot be used; the pair before stays in use"
SOON, EXPIRED = "the TLS certificate expires soon", "the TLS certificate has expired"


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_dir() as folder:
        yield folder


def lines_of(serve: ServeProcess) -> list[dict[str, Any]]:
    """The lines of its log, which a thread appends to."""
    assert serve.process is not None
    stderr = serve.process.stderr
    assert stderr is not None
    lines: list[dict[str, Any]] = []

    def read() -> None:
        for line in stderr:
            if line.startswith("{"):
                lines.append(json.loads(line))

    threading.Thread(target=read, daemon=True).start()
    return lines


def test_changes_of_the_files_are_logged_once_and_without_a_key(folder: Path) -> None:
    first, second = TlsFiles(folder / "first"), TlsFiles(folder / "second")
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(days=90)
    tls = first.server()
    certificate, key = second.issue("next.example", file="server", not_after=until)
    options = ("--log-format", "json", "--tls-cert", str(tls.certificate), "--tls-key", str(tls.key))
    listen = ("127.0.0.1:0", "127.0.0.1:0")
    with ServeProcess(folder, *options, "--metrics", "127.0.0.1:0", listen=listen).start() as serve:
        lines = lines_of(serve)

        def events(*wanted: str) -> list[dict[str, Any]]:
            return [line for line in lines if line["event"] in wanted]

        def expiry() -> float:
            return Scrape(address_of(serve))("tls_certificate_expiry_timestamp_seconds")

        def logs(number: int, *wanted: str) -> Callable[[], bool]:
            return lambda: len(events(*wanted)) == number

        eventually(logs(1, IN_USE), "the first pair is logged, once for two listeners")
        assert events(IN_USE)[0]["names"] == ["127.0.0.1", "localhost"]
        before = expiry()
        assert before > until.timestamp()
        tls.certificate.write_bytes(certificate.read_bytes())
        eventually(logs(1, REFUSED), "a certificate without its key is logged")
        assert "KEY_VALUES_MISMATCH" in events(REFUSED)[0]["error"]
        assert str(tls.certificate) in events(REFUSED)[0]["error"]
        tls.certificate.write_text("garbage")
        eventually(logs(2, REFUSED), "garbage is logged")
        assert "PEM" in events(REFUSED)[1]["error"]
        for _ in range(3):
            assert expiry() == before, "the old pair stays in use"
        tls.certificate.write_bytes(certificate.read_bytes())
        tls.key.write_bytes(key.read_bytes())
        eventually(logs(2, IN_USE), "the new pair is logged")
        assert events(IN_USE)[1]["names"] == ["next.example"]
        assert events(IN_USE)[1]["expires_at"] == f"{until:%Y-%m-%dT%H:%M:%SZ}"
        assert expiry() == until.timestamp()
        assert {line["level"] for line in events(REFUSED)} == {"warning"}
        # the certificate with the old key may have been found for a moment
        assert len(events(REFUSED)) <= 3
        assert not events(SOON, EXPIRED)
        assert "PRIVATE KEY" not in json.dumps(lines)
        assert not any(line in json.dumps(lines) for line in key.read_text().splitlines()[1:-1])


@pytest.mark.parametrize(("days", "event"), [(3, SOON), (-3, EXPIRED)])
def test_a_certificate_that_expires_soon_is_a_warning(folder: Path, days: int, event: str) -> None:
    certificate, key = TlsFiles(folder / "files").issue(
        "localhost", not_after=datetime.now(UTC) + timedelta(days=days)
    )
    options = ("--log-format", "json", "--tls-cert", str(certificate), "--tls-key", str(key))
    with ServeProcess(folder, *options, listen=("127.0.0.1:0",)).start() as serve:
        assert serve.terminate() == 0
        lines = [json.loads(line) for line in serve.output().splitlines() if line.startswith("{")]
    found = [line for line in lines if line["event"] in (SOON, EXPIRED)]
    assert [(line["event"], line["level"]) for line in found] == [(event, "warning")]


def test_a_file_that_becomes_readable_again_is_used(tmp_path: Path) -> None:
    first, second = TlsFiles(tmp_path / "first").server(), TlsFiles(tmp_path / "second").server()
    served = ServedPair(first.certificate, first.key, None)
    before = served.latest()
    hidden = first.key.rename(tmp_path / "hidden")
    assert served.latest() is before
    hidden.rename(first.key)
    assert served.latest() is before, "the same content is no new pair"
    first.key.write_bytes(second.key.read_bytes())
    assert served.latest() is before
    first.certificate.write_bytes(second.certificate.read_bytes())
    assert served.latest().certificate == second.certificate.read_bytes()
