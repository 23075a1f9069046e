"""From an address to a connection."""

from __future__ import annotations

import re
from typing import Final

from suffixsvc.errors import InvalidConfigError
from suffixsvc_driver.workers.client import DraftWorkerClient
from suffixsvc_driver.workers.llama_server import LlamaServerClient
from suffixsvc_driver.workers.single import SingleWorker

__all__ = ["connect"]

_HOST_AND_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+):(\d{1,5})")


def connect(address: str) -> SingleWorker:
    """A connection to one draft worker; nothing is sent yet. Several: ``workers.pool.WorkerPool``.

    Args:
        address: ``unix:PATH`` or ``HOST:PORT`` for ``suffixsvc draft-worker``, ``http://HOST:PORT`` for a
            llama-server.

    Raises:
        InvalidConfigError: none of these.
    """
    if "://" in address:
        return LlamaServerClient(address)
    found = _HOST_AND_PORT.fullmatch(address)
    if address.removeprefix("unix:") and (
        address.startswith("unix:") or (found and 0 < int(found[2]) < 65536)
    ):
        return DraftWorkerClient(address)
    raise InvalidConfigError(
        "not the address of a draft worker",
        expected="unix:PATH, HOST:PORT or http://HOST:PORT",
        got=repr(address)[:80],
    )
