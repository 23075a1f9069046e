"""Client of the suffixsvc service, without the native engine.

    from suffixsvc_client import SuffixClient

    with SuffixClient("unix:/run/suffixsvc.sock") as client:
        session = client.namespace("acme/qwen2.5-coder").open_session(prompt_token_ids)
        draft = session.step(new_token_ids)
        session.close()

The package needs grpc, protobuf and numpy only; it loads neither the native core nor lmdb.
"""

from suffixsvc_client.aio import AsyncClientNamespace, AsyncClientSession, AsyncSuffixClient
from suffixsvc_client.client import ClientNamespace, ClientSession, SuffixClient
from suffixsvc_client.protocol.bulk import ExportedFileSummary, ExportSummary
from suffixsvc_client.protocol.config import ClientConfig
from suffixsvc_client.protocol.counters import ClientStats, EmptyReason
from suffixsvc_client.protocol.replies import FollowerStats, ServerInfo, ServiceStats
from suffixsvc_client.transport.interface import AsyncTransport, Transport

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
    "FollowerStats",
    "ServerInfo",
    "ServiceStats",
    "SuffixClient",
    "Transport",
]
