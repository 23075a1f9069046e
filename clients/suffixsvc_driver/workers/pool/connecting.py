"""Factory of connections: chooses the client class by the form of an address."""

from __future__ import annotations

from suffixsvc.errors import InvalidConfigError
from suffixsvc.transport.identity import ClientIdentity
from suffixsvc_driver.workers.client.grpc_client import DraftWorkerClient
from suffixsvc_driver.workers.client.single import SingleWorker
from suffixsvc_driver.workers.llama_server.worker import LlamaServerClient


def connect(address: str, identity: ClientIdentity | None = None) -> SingleWorker:
    """Return a connection to one draft worker; nothing is sent yet. For several, use ``WorkerPool``.

    Args:
        address: ``unix:PATH`` or ``HOST:PORT`` for ``suffixsvc draft-worker``, ``http://HOST:PORT`` for a
            llama-server.
        identity: token and certificates for a worker of ours; None: those that the environment names.

    Raises:
        InvalidConfigError: another form, or an invalid identity.
    """
    if "://" in address:
        return LlamaServerClient(address)
    identity = ClientIdentity.from_environment() if identity is None else identity
    identity.check(address)
    try:
        return DraftWorkerClient(address, identity)
    except InvalidConfigError as error:
        raise error.with_remedy("The address of a llama-server is http://HOST:PORT.") from None
