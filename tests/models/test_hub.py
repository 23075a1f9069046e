"""Files of a hub, served by a small HTTP server in this process."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import suffixsvc_models as models
from suffixsvc.errors import InvalidConfigError, ModelCorruptError, ServiceUnavailableError
from suffixsvc_models.hub import url_of
from suffixsvc_models.registry import HubSource, Model

CONTENT = b"GGUF" + bytes(range(256)) * 20_000


class Hub(ThreadingHTTPServer):
    content = CONTENT
    #: bytes after which the connection is cut, once
    cut_after: int | None = None
    ranges: list[str | None]


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path != "/someone/toy/resolve/main/toy%20model.gguf":
            self.send_error(404)
            return
        content, etag = self.server.content, f'"{hashlib.md5(self.server.content).hexdigest()}"'
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)
        start = 0
        if wanted and self.headers.get("If-Range") == etag:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        if start == len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        self.send_header("ETag", etag)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        body = content[start:]
        if self.server.cut_after is not None:
            body, self.server.cut_after = body[: self.server.cut_after], None
            self.close_connection = True
        self.wfile.write(body)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub(("127.0.0.1", 0), Handler)
    server.ranges = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def registry() -> models.Registry:
    source = HubSource(about="a hub", repo="someone/toy", file="toy model.gguf")
    return models.Registry(
        {"toy": Model("toy", "Toy", "none", "for tests", len(CONTENT), "0" * 64, (source,))}
    )


def test_a_file_is_downloaded_and_its_hash_recorded(
    tmp_path: Path, hub: Hub, registry: models.Registry
) -> None:
    file = models.get("toy", directory=tmp_path, registry=registry)
    assert file.read_bytes() == CONTENT
    (status,) = models.list_models(directory=tmp_path, registry=registry)
    assert status.sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert not status.hash_known
    assert status.source == "huggingface"


def test_a_broken_connection_goes_on_where_it_was(
    tmp_path: Path, hub: Hub, registry: models.Registry
) -> None:
    hub.cut_after = 2 << 20
    with pytest.raises((ModelCorruptError, ServiceUnavailableError), match="resumes the download"):
        models.get("toy", directory=tmp_path, registry=registry)
    assert models.get("toy", directory=tmp_path, registry=registry).read_bytes() == CONTENT
    assert hub.ranges == [None, f"bytes={2 << 20}-"]


def test_a_file_that_changed_in_between_is_taken_whole(
    tmp_path: Path, hub: Hub, registry: models.Registry
) -> None:
    hub.cut_after = 2 << 20
    with pytest.raises((ModelCorruptError, ServiceUnavailableError)):
        models.get("toy", directory=tmp_path, registry=registry)
    hub.content = CONTENT[:-1] + b"!"
    assert models.get("toy", directory=tmp_path, registry=registry).read_bytes() == hub.content


def test_a_later_download_must_match_the_first(tmp_path: Path, hub: Hub, registry: models.Registry) -> None:
    file = models.get("toy", directory=tmp_path, registry=registry)
    file.unlink()
    hub.content = CONTENT[:-1] + b"!"
    with pytest.raises(ModelCorruptError, match="differs from its first download"):
        models.get("toy", directory=tmp_path, registry=registry)
    assert not file.exists()


def test_what_is_no_gguf_is_not_kept(tmp_path: Path, hub: Hub, registry: models.Registry) -> None:
    hub.content = b"<html>please log in</html>"
    with pytest.raises(ModelCorruptError, match="not a GGUF"):
        models.get("toy", directory=tmp_path, registry=registry)
    assert [p.name for p in tmp_path.iterdir()] == [".toy.lock"]


def test_a_missing_file_says_what_the_hub_said(tmp_path: Path, hub: Hub) -> None:
    source = HubSource(about="a hub", repo="someone/none", file="none.gguf")
    registry = models.Registry({"toy": Model("toy", "Toy", "none", "", 1, "0" * 64, (source,))})
    with pytest.raises(ServiceUnavailableError, match="404"):
        models.get("toy", directory=tmp_path, registry=registry)


def test_the_endpoint_must_be_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "file:///etc")
    with pytest.raises(InvalidConfigError, match="HF_ENDPOINT"):
        url_of(HubSource("", "a/b", "c"))
