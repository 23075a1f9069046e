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
    ├── NoStoreError                          the policy of the namespace permits no outputs
    ├── UnknownSegmentError                   not in the namespace's manifest (any more)
    ├── TokenizerMismatchError
    ├── AccessError                           who the caller is, what it may do
    │   ├── UnauthenticatedError              no valid token or certificate
    │   └── PermissionDeniedError             no grant
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
    │   ├── UnsupportedVersionError           the peer speaks another version of it
    │   └── ListenError                       busy port, stale socket, refused address
    ├── ModelError
    │   ├── ModelNotFoundError
    │   ├── ModelCorruptError                 truncated file, wrong checksum
    │   └── VocabularyMismatchError           a draft model that cannot draft for the target
    └── MissingExtraError (also ImportError)  an optional part is not installed

One table, :data:`suffixsvc.wire.STATUS`, maps each class to its wire code and gRPC status: the servicer's
interceptor maps errors to statuses by it, and the client maps statuses to errors.
"""

from __future__ import annotations

import copy
from typing import Any, Self


class SuffixError(Exception):
    """Base class of all errors of suffixsvc.

    Args:
        message: what went wrong, one sentence; for an argument, ``<field> must be <condition>``.
        expected: a valid value, where it adds to the message; None otherwise.
        got: the actual value.
        remedy: how to avoid the error.
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

    def with_remedy(self, remedy: str) -> Self:
        """Return this error with another remedy."""
        return self._copied(self.message, remedy)

    def with_message(self, message: str) -> Self:
        """Return this error with another message; this one may be raised again, by other calls."""
        return self._copied(message, self.remedy)

    def _copied(self, message: str, remedy: str | None) -> Self:
        same = copy.copy(self)
        SuffixError.__init__(same, message, expected=self.expected, got=self.got, remedy=remedy)
        return same


class InvalidInputError(SuffixError, ValueError):
    """An argument is invalid; nothing was applied."""


class InvalidTokensError(InvalidInputError):
    """Token ids are not a 1-D sequence of integers in 0 .. 2**31 - 1."""


class InvalidCostError(InvalidInputError):
    """A verify cost is NaN, infinite or negative, or a cost curve is empty."""


class InvalidNamespaceError(InvalidInputError):
    """A namespace path is empty, malformed or longer than 200 bytes."""


class InvalidLabelsError(InvalidInputError):
    """Labels are not a small mapping of short strings."""


class InvalidConfigError(InvalidInputError):
    """A setting or environment variable is invalid; it is never silently replaced by a default."""


class GrammarError(InvalidConfigError):
    """A grammar is malformed, or permits no token of the model's vocabulary."""


class AppendError(SuffixError):
    """Base class of errors about the position of an append."""


class AppendConflict(AppendError):
    """An append overlaps the session's tokens and differs at ``position`` (absolute, prompt included)."""

    def __init__(self, position: int, *, expected: object = None, got: object = None) -> None:
        self.position = position
        super().__init__(
            f"append differs from the session's tokens at position {position}",
            expected=expected,
            got=got,
            remedy="Append only what the model wrote; open a new session for another continuation.",
        )


class AppendGap(AppendError):
    """An append starts after the session's end; the tokens in between are missing."""

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
    """Base class of session life-cycle errors."""


class UnknownSessionError(SessionError):
    """The session does not exist: never opened, closed or expired."""


class SessionClosedError(SessionError):
    """The session was closed."""


class StepSequenceError(SessionError):
    """A step's sequence number is lower than one that was answered before."""


class UnknownNamespaceError(SuffixError):
    """The namespace does not exist."""


class NamespaceInUseError(SuffixError):
    """The namespace has live sessions."""


class UnknownOutputError(SuffixError):
    """The output does not exist in this namespace."""


class NoStoreError(SuffixError):
    """The policy of the namespace permits no outputs to be stored."""


class UnknownSegmentError(SuffixError):
    """The manifest of the namespace has no segment of this name, or not any more."""


class TokenizerMismatchError(SuffixError):
    """The namespace holds tokens of another tokenizer."""


class LimitExceededError(SuffixError):
    """A configured limit (sessions, prompt tokens, message bytes, draft width, rate) would be exceeded.

    ``retry_after_s``: of a rate, the seconds after which a message is admitted; None for other limits.
    """

    retry_after_s: float | None = None


class StoreError(SuffixError):
    """Base class of errors of the durable store."""


class StoreLockedError(StoreError):
    """Another process has this data folder open."""


class StoreFullError(StoreError):
    """The disk or the map is full; nothing of the failed write was stored."""


class StoreCorruptError(StoreError):
    """A file is torn or damaged."""


class SegmentCorruptError(StoreCorruptError):
    """A segment file is damaged or truncated; it can be rebuilt from the log."""


class SegmentCancelledError(StoreError):
    """Building or merging a segment was cancelled; its file was removed."""


class ManifestError(StoreError):
    """A segment cannot be added to the manifest: it contradicts the log or its neighbours."""


class StoreForeignError(StoreError):
    """A file is not a suffixsvc file, or has another schema version."""


class StoreClosedError(StoreError):
    """The store was closed."""


class IndexCorruptError(SuffixError):
    """``check()`` found a broken invariant; the message names the first one."""


class AccessError(SuffixError):
    """Base class of errors of authentication and authorisation."""


class UnauthenticatedError(AccessError):
    """The caller must prove who it is: its token or certificate is missing, unknown, revoked or expired."""


class PermissionDeniedError(AccessError):
    """The caller has no grant for what it asks; the namespace may or may not exist."""


class ServiceError(SuffixError):
    """Base class of transport and server life-cycle errors."""


class ServiceUnavailableError(ServiceError):
    """The service is unreachable, draining, or failed internally."""


class ServiceTimeoutError(ServiceError):
    """The service did not answer within the caller's timeout."""


class ProtocolError(ServiceError):
    """A message violates the protocol."""


class UnsupportedVersionError(ServiceError):
    """The peer speaks another version of the protocol; the remedy says which side to upgrade."""


class ListenError(ServiceError):
    """An address cannot be listened on: busy, stale socket file, or refused for safety."""


class ModelError(SuffixError):
    """Base class of errors about model files."""


class ModelNotFoundError(ModelError):
    """The model file or registry name does not exist."""


class ModelCorruptError(ModelError):
    """A model file is truncated or its checksum differs."""


class VocabularyMismatchError(ModelError):
    """A draft model's vocabulary fails one of the compatibility rules; ``rule`` names it."""

    rule = ""

    def __init__(self, message: str, *, rule: str = "", **details: Any) -> None:
        self.rule = rule
        super().__init__(message, **details)


class MissingExtraError(SuffixError, ImportError):
    """An optional dependency is not installed; ``extra`` is the one to install."""

    extra = module = ""

    def __init__(self, extra: str, module: str) -> None:
        self.extra = extra
        self.module = module
        super().__init__(
            f"this needs the Python module {module!r}, which is not installed",
            remedy=f"Install it with: pip install 'suffixsvc[{extra}]'",
        )


def tokenizer_mismatch(
    path: str, expected: str, got: str, remedy: str = "Use another namespace for this model."
) -> TokenizerMismatchError:
    """The error for a namespace that has another tokenizer than its caller."""
    return TokenizerMismatchError(
        f"namespace {path} holds tokens of another tokenizer", expected=expected, got=got, remedy=remedy
    )


def namespace_being_deleted(path: str) -> StoreError:
    """The error for a namespace whose deletion has begun."""
    return StoreError(
        f"namespace {path} is being deleted",
        expected="an existing namespace, or a free path",
        remedy="Retry after the deletion; delete it again if its deletion failed.",
    )


def unknown_namespace(path: str, *, got: str | None = None) -> UnknownNamespaceError:
    """The error for a namespace that was never written to, or was deleted."""
    return UnknownNamespaceError(
        f"namespace {path!r} must exist",
        got=got,
        remedy="Write to it first; `suffixsvc namespaces list` shows those that exist and that you have a "
        "right on: others look as if they did not exist. After a deletion, get it from the cache again.",
    )
