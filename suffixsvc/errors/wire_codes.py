"""Wire codes and gRPC statuses of the exception classes, in one table, and errors rebuilt from the wire."""

from __future__ import annotations

import enum
from typing import Final

from suffixsvc.errors import exceptions

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
STATUS: Final[dict[type[exceptions.SuffixError], tuple[ErrorCode, str]]] = {
    exceptions.SuffixError: (ErrorCode.INTERNAL, "INTERNAL"),
    exceptions.InvalidInputError: (ErrorCode.INVALID_INPUT, "INVALID_ARGUMENT"),
    exceptions.InvalidTokensError: (ErrorCode.INVALID_TOKENS, "INVALID_ARGUMENT"),
    exceptions.InvalidCostError: (ErrorCode.INVALID_COST, "INVALID_ARGUMENT"),
    exceptions.InvalidNamespaceError: (ErrorCode.INVALID_NAMESPACE, "INVALID_ARGUMENT"),
    exceptions.InvalidLabelsError: (ErrorCode.INVALID_LABELS, "INVALID_ARGUMENT"),
    exceptions.InvalidConfigError: (ErrorCode.INVALID_CONFIG, "INVALID_ARGUMENT"),
    exceptions.GrammarError: (ErrorCode.INVALID_CONFIG, "INVALID_ARGUMENT"),
    exceptions.AppendError: (ErrorCode.INVALID_INPUT, "OUT_OF_RANGE"),
    exceptions.AppendConflict: (ErrorCode.APPEND_CONFLICT, "ABORTED"),
    exceptions.AppendGap: (ErrorCode.APPEND_GAP, "OUT_OF_RANGE"),
    exceptions.SessionError: (ErrorCode.UNKNOWN_SESSION, "NOT_FOUND"),
    exceptions.UnknownSessionError: (ErrorCode.UNKNOWN_SESSION, "NOT_FOUND"),
    exceptions.SessionClosedError: (ErrorCode.SESSION_CLOSED, "FAILED_PRECONDITION"),
    exceptions.StepSequenceError: (ErrorCode.STEP_SEQUENCE, "ABORTED"),
    exceptions.UnknownNamespaceError: (ErrorCode.UNKNOWN_NAMESPACE, "NOT_FOUND"),
    exceptions.NamespaceInUseError: (ErrorCode.NAMESPACE_IN_USE, "FAILED_PRECONDITION"),
    exceptions.UnknownOutputError: (ErrorCode.UNKNOWN_OUTPUT, "NOT_FOUND"),
    exceptions.TokenizerMismatchError: (ErrorCode.TOKENIZER_MISMATCH, "FAILED_PRECONDITION"),
    exceptions.LimitExceededError: (ErrorCode.LIMIT_EXCEEDED, "RESOURCE_EXHAUSTED"),
    exceptions.StoreError: (ErrorCode.STORE, "INTERNAL"),
    exceptions.StoreLockedError: (ErrorCode.STORE_LOCKED, "FAILED_PRECONDITION"),
    exceptions.StoreFullError: (ErrorCode.STORE_FULL, "RESOURCE_EXHAUSTED"),
    exceptions.StoreCorruptError: (ErrorCode.STORE_CORRUPT, "DATA_LOSS"),
    exceptions.SegmentCorruptError: (ErrorCode.STORE_CORRUPT, "DATA_LOSS"),
    exceptions.SegmentCancelledError: (ErrorCode.STORE, "INTERNAL"),
    exceptions.ManifestError: (ErrorCode.STORE, "INTERNAL"),
    exceptions.StoreForeignError: (ErrorCode.STORE_FOREIGN, "FAILED_PRECONDITION"),
    exceptions.StoreClosedError: (ErrorCode.STORE_CLOSED, "UNAVAILABLE"),
    exceptions.IndexCorruptError: (ErrorCode.INDEX_CORRUPT, "DATA_LOSS"),
    exceptions.ServiceError: (ErrorCode.UNAVAILABLE, "UNAVAILABLE"),
    exceptions.ServiceUnavailableError: (ErrorCode.UNAVAILABLE, "UNAVAILABLE"),
    exceptions.ServiceTimeoutError: (ErrorCode.TIMEOUT, "DEADLINE_EXCEEDED"),
    exceptions.ProtocolError: (ErrorCode.PROTOCOL, "INVALID_ARGUMENT"),
    exceptions.ListenError: (ErrorCode.LISTEN, "FAILED_PRECONDITION"),
    exceptions.ModelError: (ErrorCode.MODEL, "FAILED_PRECONDITION"),
    exceptions.ModelNotFoundError: (ErrorCode.MODEL_NOT_FOUND, "NOT_FOUND"),
    exceptions.ModelCorruptError: (ErrorCode.MODEL_CORRUPT, "DATA_LOSS"),
    exceptions.VocabularyMismatchError: (ErrorCode.VOCABULARY_MISMATCH, "FAILED_PRECONDITION"),
    exceptions.MissingExtraError: (ErrorCode.MISSING_EXTRA, "UNIMPLEMENTED"),
}

#: wire code -> the class a client raises for it (the most specific one that has the code).
_CLASS_OF: Final[dict[ErrorCode, type[exceptions.SuffixError]]] = {
    **{code: cls for cls, (code, _) in reversed(STATUS.items())},
    ErrorCode.UNKNOWN_SESSION: exceptions.UnknownSessionError,
    ErrorCode.UNAVAILABLE: exceptions.ServiceUnavailableError,
}


def error_from_wire(
    code: int, message: str, *, expected: str = "", got: str = "", remedy: str = ""
) -> exceptions.SuffixError:
    """Rebuild the typed error that a server described; an unknown code becomes a plain SuffixError."""
    try:
        cls = _CLASS_OF[ErrorCode(code)]
    except (ValueError, KeyError):
        cls = exceptions.SuffixError
    err = cls.__new__(cls)
    exceptions.SuffixError.__init__(
        err, message, expected=expected or None, got=got or None, remedy=remedy or None
    )
    if isinstance(err, exceptions.AppendConflict):
        err.position = _last_int(message)
    if isinstance(err, exceptions.AppendGap):
        err.expected_position, err.got_position = _last_int(expected), _last_int(got)
    if isinstance(err, exceptions.VocabularyMismatchError):
        err.rule = ""
    if isinstance(err, exceptions.MissingExtraError):
        err.extra = err.module = ""
    return err


def _last_int(text: str) -> int:
    words = text.replace(":", " ").split()
    digits = [word for word in words if word.lstrip("-").isdecimal() and len(word) <= 19]
    return int(digits[-1]) if digits else -1
