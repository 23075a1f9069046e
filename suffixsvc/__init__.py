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
    from suffixsvc.policies import Policies, Policy, PrincipalQuota
    from suffixsvc.selection import Selection
    from suffixsvc.types import Deletion, Draft, DraftSource, NewOutput, Verified

__all__ = [
    "CacheStats",
    "Deletion",
    "Draft",
    "DraftSource",
    "Limits",
    "Namespace",
    "NamespaceStats",
    "NewOutput",
    "Policies",
    "Policy",
    "PrincipalQuota",
    "Selection",
    "Session",
    "SuffixCache",
    "SuffixError",
    "Verified",
    "__version__",
]

#: searched in this order, so that a value does not load the engine
_MODULES = ("config", "errors", "types", "policies", "selection", "engine")


def __getattr__(name: str) -> Any:
    import importlib  # noqa: PLC0415 - lazy by design

    if name in __all__:
        for module in _MODULES:
            found = getattr(importlib.import_module(f"suffixsvc.{module}"), name, None)
            if found is not None:
                return found
    raise AttributeError(f"module 'suffixsvc' has no attribute {name!r}")
