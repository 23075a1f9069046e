"""Download of a file from a Hugging Face repository over HTTPS, with resumption.

Its hash is not known beforehand: the caller records it at the first download.
"""

from __future__ import annotations

import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Final

from suffixsvc.errors import InvalidConfigError, ModelCorruptError, ServiceUnavailableError
from suffixsvc_models.files import BLOCK, require_space
from suffixsvc_models.registry import HubSource

DEFAULT_ENDPOINT: Final = "https://huggingface.co"
TIMEOUT_SECONDS: Final = 60.0
NOTHING_LEFT: Final = 416


def url_of(source: HubSource) -> str:
    """Return the URL of a file. HF_ENDPOINT names a mirror, as for Hugging Face's own tools.

    Raises:
        InvalidConfigError: HF_ENDPOINT is not an http or https URL.
    """
    endpoint = os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT
    if urllib.parse.urlsplit(endpoint).scheme not in ("https", "http"):
        raise InvalidConfigError("HF_ENDPOINT must be an https address", got=repr(endpoint))
    path = "/".join((source.repo, "resolve", source.revision, source.file))
    return f"{endpoint.rstrip('/')}/{urllib.parse.quote(path)}"


def fetch_file(source: HubSource, folder: Path, report: Callable[[int, str], None]) -> Path:
    """Download a file to ``folder`` and return its path.

    Raises:
        ServiceUnavailableError: unreachable, refused, or the connection broke (the downloaded part is kept).
        ModelCorruptError: more or fewer bytes than the server announced.
        ModelError: not enough disk space.
    """
    target, tag = folder / "download", folder / "download.etag"
    there = target.stat().st_size if target.exists() and tag.exists() else 0
    request = urllib.request.Request(url_of(source), headers={"User-Agent": "suffixsvc"})  # noqa: S310  # scheme checked by url_of
    if there:
        # a file that has changed meanwhile is sent whole, from its beginning
        request.add_header("Range", f"bytes={there}-")
        request.add_header("If-Range", tag.read_text(encoding="utf-8"))
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310  # scheme checked by url_of
            if answer.status != 206:
                there = 0
            length = answer.headers.get("Content-Length")
            total = there + int(length) if length is not None else None
            if total is not None:
                require_space(folder, total - there)
            tag.write_text(answer.headers.get("ETag") or '""', encoding="utf-8")
            with target.open("ab" if there else "wb") as output:
                while block := answer.read(BLOCK):
                    output.write(block)
                    there += len(block)
                    report(there, "download")
                output.flush()
                os.fsync(output.fileno())
    except urllib.error.HTTPError as error:
        if error.code == NOTHING_LEFT and error.headers.get("Content-Range") == f"bytes */{there}":
            return target
        raise _unreachable(source, f"HTTP status {error.code}") from error
    except (OSError, HTTPException) as error:
        raise _unreachable(source, str(error)) from error
    if total is not None and there != total:
        raise ModelCorruptError(
            f"the download of {source.repo}/{source.file} is not complete",
            expected=f"{total} bytes",
            got=f"{there} bytes",
            remedy="Run the same command again: it resumes the download.",
        )
    return target


def _unreachable(source: HubSource, reason: str) -> ServiceUnavailableError:
    return ServiceUnavailableError(
        f"could not download {source.file} of {source.repo} from Hugging Face",
        got=reason,
        remedy="Check the network, then run the same command again: it resumes the download.",
    )
