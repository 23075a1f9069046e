"""The embedded engine: index and store combined. The service serves the same engine."""

from suffixsvc.engine.cache import SuffixCache
from suffixsvc.engine.cache_stats import CacheStats
from suffixsvc.engine.export import ExportJob
from suffixsvc.engine.namespace import Namespace
from suffixsvc.index import NamespaceStats, Session

__all__ = [
    "CacheStats",
    "ExportJob",
    "Namespace",
    "NamespaceStats",
    "Session",
    "SuffixCache",
]
