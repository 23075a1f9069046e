"""Speculative decoding from memory.

The public names are imported on first use (PEP 562): ``import suffixsvc_client`` imports this package and
must load neither the native core nor lmdb.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from suffixsvc.config import Limits
    from suffixsvc.engine import CacheStats, Namespace, NamespaceStats, Session, SuffixCache
    from suffixsvc.errors import SuffixError
    from suffixsvc.policies import Policies, Policy
    from suffixsvc.types import Draft, DraftSource, NewOutput, Verified

__all__ = [
    "CacheStats",
    "Draft",
    "DraftSource",
    "Limits",
    "Namespace",
    "NamespaceStats",
    "NewOutput",
    "Policies",
    "Policy",
    "Session",
    "SuffixCache",
    "SuffixError",
    "Verified",
    "__version__",
]

_MODULE_OF = {
    "CacheStats": "suffixsvc.engine",
    "Draft": "suffixsvc.types",
    "DraftSource": "suffixsvc.types",
    "Limits": "suffixsvc.config",
    "Namespace": "suffixsvc.engine",
    "NamespaceStats": "suffixsvc.engine",
    "NewOutput": "suffixsvc.types",
    "Policies": "suffixsvc.policies",
    "Policy": "suffixsvc.policies",
    "Session": "suffixsvc.engine",
    "SuffixCache": "suffixsvc.engine",
    "SuffixError": "suffixsvc.errors",
    "Verified": "suffixsvc.types",
}


def __getattr__(name: str) -> Any:
    import importlib  # noqa: PLC0415 - lazy by design

    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'suffixsvc' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)
