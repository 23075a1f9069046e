"""Every error suffixsvc raises, each carrying what was expected, what came and what to do about it.

    SuffixError
    ├── InvalidInputError (also ValueError)   the caller's arguments
    │   ├── InvalidTokensError                dtype, rank, negative id, id above int32
    │   ├── InvalidCostError                  NaN, infinite, negative, empty curve
    │   ├── InvalidNamespaceError             empty, over 200 bytes, malformed path
    │   ├── InvalidLabelsError
    │   └── InvalidConfigError                settings, environment variables
    │       └── GrammarError                  malformed, or nothing it permits can be written
    ├── AppendError                           absolute offsets of appends
    │   ├── AppendConflict                    overlap that differs
    │   └── AppendGap                         tokens missing in between
    ├── SessionError
    │   ├── UnknownSessionError
    │   ├── SessionClosedError
    │   └── StepSequenceError                 a step's sequence number went backwards
    ├── UnknownNamespaceError
    ├── NamespaceInUseError                   it has live sessions and cannot be deleted
    ├── UnknownOutputError
    ├── TokenizerMismatchError
    ├── LimitExceededError                    sessions, prompt length, message size
    ├── StoreError
    │   ├── StoreLockedError                  another process has the data folder open
    │   ├── StoreFullError                    disk or map full
    │   ├── StoreCorruptError                 torn or damaged file
    │   │   └── SegmentCorruptError           of a sealed segment: rebuilt from the log
    │   ├── SegmentCancelledError             building or merging was stopped by its caller
    │   ├── ManifestError                     a segment and the log do not fit together
    │   ├── StoreForeignError                 not one of our files, or another schema version
    │   └── StoreClosedError
    ├── IndexCorruptError                     check() found a broken invariant
    ├── ServiceError                          transport, server life cycle
    │   ├── ServiceUnavailableError
    │   ├── ServiceTimeoutError
    │   ├── ProtocolError                     the other side does not speak our protocol
    │   └── ListenError                       busy port, stale socket, refused address
    ├── ModelError
    │   ├── ModelNotFoundError
    │   ├── ModelCorruptError                 truncated file, wrong checksum
    │   └── VocabularyMismatchError           a draft model that cannot draft for the target
    └── MissingExtraError (also ImportError)  an optional part is not installed

One table, :data:`STATUS`, maps each class to its wire code and gRPC status; the servicer's
interceptor reads it in one direction, the client in the other.
"""

from __future__ import annotations

import enum
from typing import Final

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


class ErrorCode(enum.IntEnum):
    """Wire code of an error; the numbers are those of ``suffixsvc.v1.ErrorCode`` and never change."""

    UNSPECIFIED = 0
    INVALID_INPUT = 1
    INVALID_TOKENS = 2
    INVALID_COST = 3
    INVALID_NAMESPACE = 4
    INVALID_LABELS = 5
    INVALID_CONFIG = 6
    APPEND_CONFLICT = 7
    APPEND_GAP = 8
    UNKNOWN_SESSION = 9
    SESSION_CLOSED = 10
    STEP_SEQUENCE = 11
    UNKNOWN_NAMESPACE = 12
    UNKNOWN_OUTPUT = 13
    TOKENIZER_MISMATCH = 14
    LIMIT_EXCEEDED = 15
    STORE = 16
    STORE_LOCKED = 17
    STORE_FULL = 18
    STORE_CORRUPT = 19
    STORE_FOREIGN = 20
    STORE_CLOSED = 21
    INDEX_CORRUPT = 22
    UNAVAILABLE = 23
    TIMEOUT = 24
    PROTOCOL = 25
    LISTEN = 26
    MODEL = 27
    MODEL_NOT_FOUND = 28
    MODEL_CORRUPT = 29
    VOCABULARY_MISMATCH = 30
    MISSING_EXTRA = 31
    INTERNAL = 32
    NAMESPACE_IN_USE = 33


class SuffixError(Exception):
    """Base of every error here.

    Args:
        message: what went wrong, one sentence.
        expected: what would have been right, or ``None`` where nothing can be named.
        got: what came instead.
        remedy: what the reader can do about it.
    """

    def __init__(
        self,
        message: str,
        *,
        expected: object = None,
        got: object = None,
        remedy: str | None = None,
    ) -> None:
        self.message = message
        self.expected = expected
        self.got = got
        self.remedy = remedy
        text = message
        if expected is not None:
            text += f"; expected {expected}"
        if got is not None:
            text += f"; got {got}"
        if remedy:
            text += f". {remedy}"
        super().__init__(text)


class InvalidInputError(SuffixError, ValueError):
    """An argument is not what the call takes; nothing was applied."""


class InvalidTokensError(InvalidInputError):
    """Token ids are not a 1-D sequence of integers in 0 .. 2**31 - 1."""


class InvalidCostError(InvalidInputError):
    """A verify cost is NaN, infinite or negative, or a cost curve is empty."""


class InvalidNamespaceError(InvalidInputError):
    """A namespace path is empty, malformed or longer than 200 bytes."""


class InvalidLabelsError(InvalidInputError):
    """Labels are not a small mapping of short strings."""


class InvalidConfigError(InvalidInputError):
    """A setting or environment variable makes no sense; defaults are never silently used instead."""


class GrammarError(InvalidConfigError):
    """A grammar is malformed, or permits nothing that the model could write."""


class AppendError(SuffixError):
    """Base of what can be wrong with the position of an append."""


class AppendConflict(AppendError):
    """An append overlaps what is there and differs from it at ``position`` (absolute, prompt included)."""

    def __init__(self, position: int, *, expected: object = None, got: object = None) -> None:
        self.position = position
        super().__init__(
            f"append differs from the session's own tokens at position {position}",
            expected=expected,
            got=got,
            remedy="Append only what the model really wrote; open a new session for another continuation.",
        )


class AppendGap(AppendError):
    """An append starts behind the session's end; tokens in between are missing."""

    def __init__(self, *, expected: int, got: int) -> None:
        super().__init__(
            "append leaves a gap",
            expected=f"a start at or before position {expected}",
            got=f"position {got}",
            remedy="Send the missing tokens first.",
        )
        self.expected_position = expected
        self.got_position = got


class SessionError(SuffixError):
    """Base of session life-cycle errors."""


class UnknownSessionError(SessionError):
    """No such session: never opened, closed or expired."""


class SessionClosedError(SessionError):
    """The session was closed."""


class StepSequenceError(SessionError):
    """A step's sequence number is older than one already answered."""


class UnknownNamespaceError(SuffixError):
    """No such namespace."""


class NamespaceInUseError(SuffixError):
    """The namespace has live sessions."""


class UnknownOutputError(SuffixError):
    """No such output in this namespace."""


class TokenizerMismatchError(SuffixError):
    """The namespace holds tokens of another tokenizer."""


class LimitExceededError(SuffixError):
    """A configured limit (sessions, prompt tokens, message bytes, draft width) would be passed."""


class StoreError(SuffixError):
    """Base of what can go wrong with the durable store."""


class StoreLockedError(StoreError):
    """Another process has this data folder open."""


class StoreFullError(StoreError):
    """The disk or the map is full; nothing of the failed write was kept."""


class StoreCorruptError(StoreError):
    """A file is torn or damaged."""


class SegmentCorruptError(StoreCorruptError):
    """A segment file is damaged or cut short; what it holds is in the log and can be built again."""


class SegmentCancelledError(StoreError):
    """Building or merging a segment was cancelled; nothing of it is left."""


class ManifestError(StoreError):
    """A segment cannot enter the manifest: it and the log, or its neighbours, do not fit together."""


class StoreForeignError(StoreError):
    """A file is not ours, or has another schema version."""


class StoreClosedError(StoreError):
    """The store was closed."""


class IndexCorruptError(SuffixError):
    """``check()`` found a broken invariant; the message names the first one."""


class ServiceError(SuffixError):
    """Base of transport and server life-cycle errors."""


class ServiceUnavailableError(ServiceError):
    """The service cannot be reached, is draining, or failed inside."""


class ServiceTimeoutError(ServiceError):
    """No answer within the caller's own time."""


class ProtocolError(ServiceError):
    """An answer is not of our protocol."""


class ListenError(ServiceError):
    """An address cannot be listened on: busy, stale socket file, or refused for safety."""


class ModelError(SuffixError):
    """Base of errors about model files."""


class ModelNotFoundError(ModelError):
    """No such model file or registry name."""


class ModelCorruptError(ModelError):
    """A model file is truncated or has another checksum."""


class VocabularyMismatchError(ModelError):
    """A draft model's vocabulary fails one of the compatibility rules; ``rule`` names it."""

    def __init__(
        self,
        message: str,
        *,
        rule: str = "",
        expected: object = None,
        got: object = None,
        remedy: str | None = None,
    ) -> None:
        self.rule = rule
        super().__init__(message, expected=expected, got=got, remedy=remedy)


class MissingExtraError(SuffixError, ImportError):
    """An optional dependency is not installed; ``extra`` is the one to install."""

    def __init__(self, extra: str, module: str) -> None:
        self.extra = extra
        self.module = module
        super().__init__(
            f"this needs the Python module {module!r}, which is not installed",
            remedy=f"Install it with: pip install 'suffixsvc[{extra}]'",
        )


#: class -> (wire code, gRPC status name). The only place where the three meet.
STATUS: Final[dict[type[SuffixError], tuple[ErrorCode, str]]] = {
    SuffixError: (ErrorCode.INTERNAL, "INTERNAL"),
    InvalidInputError: (ErrorCode.INVALID_INPUT, "INVALID_ARGUMENT"),
    InvalidTokensError: (ErrorCode.INVALID_TOKENS, "INVALID_ARGUMENT"),
    InvalidCostError: (ErrorCode.INVALID_COST, "INVALID_ARGUMENT"),
    InvalidNamespaceError: (ErrorCode.INVALID_NAMESPACE, "INVALID_ARGUMENT"),
    InvalidLabelsError: (ErrorCode.INVALID_LABELS, "INVALID_ARGUMENT"),
    InvalidConfigError: (ErrorCode.INVALID_CONFIG, "INVALID_ARGUMENT"),
    GrammarError: (ErrorCode.INVALID_CONFIG, "INVALID_ARGUMENT"),
    AppendError: (ErrorCode.INVALID_INPUT, "OUT_OF_RANGE"),
    AppendConflict: (ErrorCode.APPEND_CONFLICT, "ABORTED"),
    AppendGap: (ErrorCode.APPEND_GAP, "OUT_OF_RANGE"),
    SessionError: (ErrorCode.UNKNOWN_SESSION, "NOT_FOUND"),
    UnknownSessionError: (ErrorCode.UNKNOWN_SESSION, "NOT_FOUND"),
    SessionClosedError: (ErrorCode.SESSION_CLOSED, "FAILED_PRECONDITION"),
    StepSequenceError: (ErrorCode.STEP_SEQUENCE, "ABORTED"),
    UnknownNamespaceError: (ErrorCode.UNKNOWN_NAMESPACE, "NOT_FOUND"),
    NamespaceInUseError: (ErrorCode.NAMESPACE_IN_USE, "FAILED_PRECONDITION"),
    UnknownOutputError: (ErrorCode.UNKNOWN_OUTPUT, "NOT_FOUND"),
    TokenizerMismatchError: (ErrorCode.TOKENIZER_MISMATCH, "FAILED_PRECONDITION"),
    LimitExceededError: (ErrorCode.LIMIT_EXCEEDED, "RESOURCE_EXHAUSTED"),
    StoreError: (ErrorCode.STORE, "INTERNAL"),
    StoreLockedError: (ErrorCode.STORE_LOCKED, "FAILED_PRECONDITION"),
    StoreFullError: (ErrorCode.STORE_FULL, "RESOURCE_EXHAUSTED"),
    StoreCorruptError: (ErrorCode.STORE_CORRUPT, "DATA_LOSS"),
    SegmentCorruptError: (ErrorCode.STORE_CORRUPT, "DATA_LOSS"),
    SegmentCancelledError: (ErrorCode.STORE, "INTERNAL"),
    ManifestError: (ErrorCode.STORE, "INTERNAL"),
    StoreForeignError: (ErrorCode.STORE_FOREIGN, "FAILED_PRECONDITION"),
    StoreClosedError: (ErrorCode.STORE_CLOSED, "UNAVAILABLE"),
    IndexCorruptError: (ErrorCode.INDEX_CORRUPT, "DATA_LOSS"),
    ServiceError: (ErrorCode.UNAVAILABLE, "UNAVAILABLE"),
    ServiceUnavailableError: (ErrorCode.UNAVAILABLE, "UNAVAILABLE"),
    ServiceTimeoutError: (ErrorCode.TIMEOUT, "DEADLINE_EXCEEDED"),
    ProtocolError: (ErrorCode.PROTOCOL, "INVALID_ARGUMENT"),
    ListenError: (ErrorCode.LISTEN, "FAILED_PRECONDITION"),
    ModelError: (ErrorCode.MODEL, "FAILED_PRECONDITION"),
    ModelNotFoundError: (ErrorCode.MODEL_NOT_FOUND, "NOT_FOUND"),
    ModelCorruptError: (ErrorCode.MODEL_CORRUPT, "DATA_LOSS"),
    VocabularyMismatchError: (ErrorCode.VOCABULARY_MISMATCH, "FAILED_PRECONDITION"),
    MissingExtraError: (ErrorCode.MISSING_EXTRA, "UNIMPLEMENTED"),
}

#: wire code -> the class a client raises for it (the most specific one that has the code).
_CLASS_OF: Final[dict[ErrorCode, type[SuffixError]]] = {
    **{code: cls for cls, (code, _) in reversed(STATUS.items())},
    ErrorCode.UNKNOWN_SESSION: UnknownSessionError,
    ErrorCode.UNAVAILABLE: ServiceUnavailableError,
}


def unknown_namespace(path: str, *, got: str | None = None) -> UnknownNamespaceError:
    """What every layer raises for a namespace that was never written to, or was deleted."""
    return UnknownNamespaceError(
        f"namespace {path!r} must exist",
        got=got,
        remedy="Write to it first; `suffixsvc namespaces list` shows those that are there. Ask the cache "
        "for it again if it was deleted.",
    )


def error_from_wire(
    code: int, message: str, *, expected: str = "", got: str = "", remedy: str = ""
) -> SuffixError:
    """Rebuild the typed error that a server described; an unknown code becomes a plain SuffixError."""
    try:
        cls = _CLASS_OF[ErrorCode(code)]
    except (ValueError, KeyError):
        cls = SuffixError
    err = cls.__new__(cls)
    SuffixError.__init__(err, message, expected=expected or None, got=got or None, remedy=remedy or None)
    if isinstance(err, AppendConflict):
        err.position = _last_int(message)
    if isinstance(err, AppendGap):
        err.expected_position, err.got_position = _last_int(expected), _last_int(got)
    if isinstance(err, VocabularyMismatchError):
        err.rule = ""
    if isinstance(err, MissingExtraError):
        err.extra = err.module = ""
    return err


def _last_int(text: str) -> int:
    words = text.replace(":", " ").split()
    digits = [word for word in words if word.lstrip("-").isdecimal() and len(word) <= 19]
    return int(digits[-1]) if digits else -1
