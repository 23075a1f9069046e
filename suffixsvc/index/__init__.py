"""Namespaces, sessions and drafting over the native core. Knows neither gRPC nor LMDB."""

from suffixsvc.index.commitment import Decided
from suffixsvc.index.namespace import NamespaceIndex, NamespaceStats
from suffixsvc.index.sealed import Sealed
from suffixsvc.index.session import Abandoned, Session, step_together

__all__ = [
    "Abandoned",
    "Decided",
    "NamespaceIndex",
    "NamespaceStats",
    "Sealed",
    "Session",
    "step_together",
]
