"""Namespaces, sessions and drafting over the native core, independent of gRPC and LMDB."""

from suffixsvc.index.namespace import NamespaceIndex
from suffixsvc.index.namespace_stats import NamespaceStats
from suffixsvc.index.pending_commit import Commit, OnCommitted
from suffixsvc.index.segment_map import Sealed
from suffixsvc.index.session import Abandoned, Session

__all__ = [
    "Abandoned",
    "Commit",
    "NamespaceIndex",
    "NamespaceStats",
    "OnCommitted",
    "Sealed",
    "Session",
]
