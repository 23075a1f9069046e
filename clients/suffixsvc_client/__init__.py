"""Thin client of the suffixsvc service.

    from suffixsvc_client import SuffixClient

    with SuffixClient("unix:/run/suffixsvc.sock") as client:
        session = client.namespace("acme/qwen2.5-coder").open_session(prompt_token_ids)
        draft = session.step(new_token_ids)
        session.close()

Importing it loads neither the native engine nor the store: it needs grpc, protobuf and numpy only.
"""

from suffixsvc_client.aio import AsyncClientNamespace, AsyncClientSession, AsyncSuffixClient
from suffixsvc_client.client import ClientNamespace, ClientSession, SuffixClient
from suffixsvc_client.config import ClientConfig
from suffixsvc_client.counters import ClientStats, EmptyReason
from suffixsvc_client.exporting import ExportedFileSummary, ExportSummary
from suffixsvc_client.questions import ServerInfo, ServiceStats
from suffixsvc_client.transport import AsyncTransport, Transport

__all__ = [
    "AsyncClientNamespace",
    "AsyncClientSession",
    "AsyncSuffixClient",
    "AsyncTransport",
    "ClientConfig",
    "ClientNamespace",
    "ClientSession",
    "ClientStats",
    "EmptyReason",
    "ExportSummary",
    "ExportedFileSummary",
    "ServerInfo",
    "ServiceStats",
    "SuffixClient",
    "Transport",
]
