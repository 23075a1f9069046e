"""The embedded engine: the index and the store wired together. The service wraps exactly this."""

from suffixsvc.engine.cache import CacheStats, SuffixCache
from suffixsvc.engine.export import ExportJob
from suffixsvc.engine.namespace import Namespace
from suffixsvc.index import NamespaceStats, Session, step_together

__all__ = [
    "CacheStats",
    "ExportJob",
    "Namespace",
    "NamespaceStats",
    "Session",
    "SuffixCache",
    "step_together",
]
