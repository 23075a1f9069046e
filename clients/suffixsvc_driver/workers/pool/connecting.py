"""Factory of connections: chooses the client class by the form of an address."""

from __future__ import annotations

from suffixsvc.errors import InvalidConfigError
from suffixsvc_driver.workers.client.grpc_client import DraftWorkerClient
from suffixsvc_driver.workers.client.single import SingleWorker
from suffixsvc_driver.workers.llama_server.worker import LlamaServerClient


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
    try:
        return DraftWorkerClient(address)
    except InvalidConfigError as error:
        raise error.with_remedy("The address of a llama-server is http://HOST:PORT.") from None
