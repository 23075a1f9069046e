"""Values that cross package boundaries, and the protocols between packages.

Nothing here computes. The engine, the client, the store and the driver import this package, and it imports
none of them.
"""

from suffixsvc.types.drafts import (
    Backend,
    BackendNamespace,
    BackendSession,
    Draft,
    DraftSource,
    FloatArray,
    Verified,
    VerifyCost,
)
from suffixsvc.types.outputs import (
    AppendedIds,
    IncompleteOutput,
    Labels,
    NamespaceRecord,
    NewOutput,
    OutputId,
    OutputOutline,
    SegmentRecord,
    StoredOutput,
    StoreStats,
    TokenArray,
    TokenIds,
    repeated_in,
)
from suffixsvc.types.store import Store

__all__ = [
    "AppendedIds",
    "Backend",
    "BackendNamespace",
    "BackendSession",
    "Draft",
    "DraftSource",
    "FloatArray",
    "IncompleteOutput",
    "Labels",
    "NamespaceRecord",
    "NewOutput",
    "OutputId",
    "OutputOutline",
    "SegmentRecord",
    "Store",
    "StoreStats",
    "StoredOutput",
    "TokenArray",
    "TokenIds",
    "Verified",
    "VerifyCost",
    "repeated_in",
]
