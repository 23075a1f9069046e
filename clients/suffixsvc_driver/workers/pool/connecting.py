"""Factory of connections: chooses the client class by the form of an address."""

from __future__ import annotations

import re
from typing import Final

from suffixsvc.errors import InvalidConfigError
from suffixsvc_driver.workers.client.grpc_client import DraftWorkerClient
from suffixsvc_driver.workers.client.single import SingleWorker
from suffixsvc_driver.workers.llama_server.worker import LlamaServerClient

_HOST_AND_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+):(\d{1,5})")


def connect(address: str) -> SingleWorker:
    """Return a connection to one draft worker; nothing is sent yet. For several, use ``WorkerPool``.

    Args:
        address: ``unix:PATH`` or ``HOST:PORT`` for ``suffixsvc draft-worker``, ``http://HOST:PORT`` for a
            llama-server.

    Raises:
        InvalidConfigError: another form.
    """
    if "://" in address:
        return LlamaServerClient(address)
    found = _HOST_AND_PORT.fullmatch(address)
    if address.removeprefix("unix:") and (
        address.startswith("unix:") or (found and 0 < int(found[2]) < 65536)
    ):
        return DraftWorkerClient(address)
    raise InvalidConfigError(
        "the address of a draft worker must be unix:PATH, HOST:PORT or http://HOST:PORT",
        got=repr(address)[:80],
    )
