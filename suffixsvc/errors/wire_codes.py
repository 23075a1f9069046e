"""Wire codes and gRPC statuses of the exception classes, in one table, and errors rebuilt from the wire."""

from __future__ import annotations

import enum
from typing import Final

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
)

__all__ = ["STATUS", "ErrorCode", "error_from_wire"]


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


#: class -> (wire code, gRPC status name)
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
