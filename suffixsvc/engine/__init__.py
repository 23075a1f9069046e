"""The embedded engine: the index and the store wired together. The service wraps exactly this."""

from suffixsvc.engine.cache import CacheStats, SuffixCache
from suffixsvc.engine.namespace import Namespace
from suffixsvc.index import NamespaceStats, Session

__all__ = ["CacheStats", "Namespace", "NamespaceStats", "Session", "SuffixCache"]
