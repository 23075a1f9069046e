"""Exception classes of suffixsvc: each carries the expected value, the actual value and a remedy.

    SuffixError
    ├── InvalidInputError (also ValueError)   the caller's arguments
    │   ├── InvalidTokensError                dtype, rank, negative id, id above int32
    │   ├── InvalidCostError                  NaN, infinite, negative, empty curve
    │   ├── InvalidNamespaceError             empty, over 200 bytes, malformed path
    │   ├── InvalidLabelsError
    │   └── InvalidConfigError                settings, environment variables
    │       └── GrammarError                  malformed, or it permits no token of the vocabulary
    ├── AppendError                           absolute offsets of appends
    │   ├── AppendConflict                    overlap that differs
    │   └── AppendGap                         tokens missing in between
    ├── SessionError
    │   ├── UnknownSessionError
    │   ├── SessionClosedError
    │   └── StepSequenceError                 a step's sequence number went backwards
    ├── UnknownNamespaceError
    ├── NamespaceInUseError                   has live sessions and cannot be deleted
    ├── UnknownOutputError
    ├── TokenizerMismatchError
    ├── LimitExceededError                    sessions, prompt length, message size
    ├── StoreError
    │   ├── StoreLockedError                  another process has the data folder open
    │   ├── StoreFullError                    disk or map full
    │   ├── StoreCorruptError                 torn or damaged file
    │   │   └── SegmentCorruptError           of a sealed segment: rebuilt from the log
    │   ├── SegmentCancelledError             building or merging was cancelled by the caller
    │   ├── ManifestError                     a segment contradicts the log or its neighbours
    │   ├── StoreForeignError                 not a suffixsvc file, or another schema version
    │   └── StoreClosedError
    ├── IndexCorruptError                     check() found a broken invariant
    ├── ServiceError                          transport, server life cycle
    │   ├── ServiceUnavailableError
    │   ├── ServiceTimeoutError
    │   ├── ProtocolError                     the peer does not speak this protocol
    │   └── ListenError                       busy port, stale socket, refused address
    ├── ModelError
    │   ├── ModelNotFoundError
    │   ├── ModelCorruptError                 truncated file, wrong checksum
    │   └── VocabularyMismatchError           a draft model that cannot draft for the target
    └── MissingExtraError (also ImportError)  an optional part is not installed

One table, :data:`STATUS`, maps each class to its wire code and gRPC status: the servicer's interceptor
maps errors to statuses by it, and the client maps statuses to errors.
"""

from suffixsvc.errors.exceptions import (
    AppendConflict,
    AppendError,
    AppendGap,
    GrammarError,
    IndexCorruptError,
    InvalidConfigError,
    InvalidCostError,
    InvalidInputError,
    InvalidLabelsError,
    InvalidNamespaceError,
    InvalidTokensError,
    LimitExceededError,
    ListenError,
    ManifestError,
    MissingExtraError,
    ModelCorruptError,
    ModelError,
    ModelNotFoundError,
    NamespaceInUseError,
    ProtocolError,
    SegmentCancelledError,
    SegmentCorruptError,
    ServiceError,
    ServiceTimeoutError,
    ServiceUnavailableError,
    SessionClosedError,
    SessionError,
    StepSequenceError,
    StoreClosedError,
    StoreCorruptError,
    StoreError,
    StoreForeignError,
    StoreFullError,
    StoreLockedError,
    SuffixError,
    TokenizerMismatchError,
    UnknownNamespaceError,
    UnknownOutputError,
    UnknownSessionError,
    VocabularyMismatchError,
    unknown_namespace,
)
from suffixsvc.errors.wire_codes import STATUS, ErrorCode, error_from_wire

__all__ = [
    "STATUS",
    "AppendConflict",
    "AppendError",
    "AppendGap",
    "ErrorCode",
    "GrammarError",
    "IndexCorruptError",
    "InvalidConfigError",
    "InvalidCostError",
    "InvalidInputError",
    "InvalidLabelsError",
    "InvalidNamespaceError",
    "InvalidTokensError",
    "LimitExceededError",
    "ListenError",
    "ManifestError",
    "MissingExtraError",
    "ModelCorruptError",
    "ModelError",
    "ModelNotFoundError",
    "NamespaceInUseError",
    "ProtocolError",
    "SegmentCancelledError",
    "SegmentCorruptError",
    "ServiceError",
    "ServiceTimeoutError",
    "ServiceUnavailableError",
    "SessionClosedError",
    "SessionError",
    "StepSequenceError",
    "StoreClosedError",
    "StoreCorruptError",
    "StoreError",
    "StoreForeignError",
    "StoreFullError",
    "StoreLockedError",
    "SuffixError",
    "TokenizerMismatchError",
    "UnknownNamespaceError",
    "UnknownOutputError",
    "UnknownSessionError",
    "VocabularyMismatchError",
    "error_from_wire",
    "unknown_namespace",
]
