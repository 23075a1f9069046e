"""Validation of the arguments of a store, before anything is queued. Shared by both stores."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from suffixsvc.config import PROMPT_TAIL_TOKENS, validate_labels, validate_namespace, validate_uuid
from suffixsvc.errors import InvalidInputError, InvalidLabelsError, InvalidTokensError, UnknownOutputError
from suffixsvc.store.records.output_records import Payload, content_hash
from suffixsvc.types import NamespaceRecord, NewOutput, OutputId, TokenArray
from suffixsvc.values import as_segment_lens

__all__ = [
    "CheckedOutput",
    "check_namespace",
    "check_now",
    "check_output",
    "check_state_name",
    "require_same_content",
    "reserved_uuid",
    "unknown_output",
]

_MAX_TTL_SECONDS: Final = 2**32 - 1
_MAX_TOKENIZER_BYTES: Final = 200
_MAX_STATE_NAME_BYTES: Final = 200
_MAX_SESSION_ID_BYTES: Final = 200
_MICROSECONDS: Final = 1_000_000


class CheckedOutput:
    """A validated copy of a NewOutput: later changes of the caller's arrays do not affect it."""

    __slots__ = (
        "content",
        "corpus",
        "digest",
        "incomplete",
        "labels",
        "namespace",
        "payload",
        "prompt_tail",
        "session_id",
        "ttl_seconds",
        "uuid",
    )

    def __init__(self, output: NewOutput) -> None:
        self.namespace = validate_namespace(output.namespace)
        tokens = _tokens(output.token_ids, "token_ids")
        if not len(tokens):
            raise InvalidTokensError("token_ids must hold at least one token", got=0)
        self.payload = Payload(tokens, _segments(output.segment_lens, len(tokens)))
        self.content = self.payload.content()
        self.digest = content_hash(self.content)
        self.prompt_tail = _tokens(output.prompt_tail, "prompt_tail")
        if len(self.prompt_tail) > PROMPT_TAIL_TOKENS:
            raise InvalidTokensError(
                f"prompt_tail must hold at most {PROMPT_TAIL_TOKENS} tokens",
                got=len(self.prompt_tail),
            )
        self.labels = validate_labels(output.labels)
        for text in (*self.labels.keys(), *self.labels.values()):
            if not text.isascii() and not _is_unicode(text):
                raise InvalidLabelsError("labels must be valid Unicode without lone surrogates")
        self.ttl_seconds = output.ttl_seconds
        if type(self.ttl_seconds) is not int or not 0 <= self.ttl_seconds <= _MAX_TTL_SECONDS:
            raise InvalidInputError(
                "ttl_seconds must be an integer in 0 .. 2**32 - 1", got=repr(self.ttl_seconds)
            )
        self.incomplete = bool(output.incomplete)
        self.corpus = bool(output.corpus)
        self.uuid = validate_uuid(output.uuid) if output.uuid else b""
        self.session_id = _session_id(output.session_id)


def _session_id(session_id: str) -> str:
    if not isinstance(session_id, str):
        raise InvalidInputError("session_id must be a string", got=type(session_id).__name__)
    if len(session_id) > _MAX_SESSION_ID_BYTES // 4:
        size = len(session_id.encode("utf-8", "surrogatepass"))
        if size > _MAX_SESSION_ID_BYTES:
            raise InvalidInputError(
                f"session_id must be at most {_MAX_SESSION_ID_BYTES} bytes",
                got=f"{size} bytes",
            )
    return session_id


def check_output(output: NewOutput) -> CheckedOutput:
    """Validate and copy an output; InvalidInputError or a subclass names the first violation."""
    return CheckedOutput(output)


def require_same_content(output: CheckedOutput, digest: bytes, lsn: OutputId) -> None:
    """Raise InvalidInputError unless a repeated output has the content of output ``lsn`` in the log."""
    if digest != output.digest:
        raise InvalidInputError(
            "uuid must name one output",
            expected=f"the tokens of output {lsn}, which has this uuid",
            got="other tokens",
            remedy="Choose another uuid for another output.",
        )


def reserved_uuid(uuid: bytes) -> InvalidInputError:
    """Return the error for a uuid that the store will generate for another output."""
    return InvalidInputError(
        "uuid must not be one that this store generates",
        expected="16 bytes that do not start with the id of the node",
        got=uuid.hex(),
    )


def check_namespace(record: NamespaceRecord) -> NamespaceRecord:
    """Return the record; InvalidInputError if path or tokenizer fingerprint is malformed."""
    validate_namespace(record.path)
    tokenizer = record.tokenizer
    if (
        not isinstance(tokenizer, str)
        or len(tokenizer.encode("utf-8", "surrogatepass")) > _MAX_TOKENIZER_BYTES
    ):
        raise InvalidInputError(
            f"tokenizer must be a string of at most {_MAX_TOKENIZER_BYTES} bytes",
            got=repr(tokenizer)[:80],
        )
    return record


def check_state_name(name: str) -> str:
    """Return the name of a state; InvalidInputError if it is empty or too long."""
    if (
        not isinstance(name, str)
        or not 0 < len(name.encode("utf-8", "surrogatepass")) <= _MAX_STATE_NAME_BYTES
    ):
        raise InvalidInputError(
            f"name of a state must be a string of 1 to {_MAX_STATE_NAME_BYTES} bytes",
            got=repr(name)[:80],
        )
    return name


def check_now(now: float) -> int:
    """Convert a time in seconds to whole microseconds, clamped to 64 bits; InvalidInputError."""
    if not isinstance(now, (int, float)) or isinstance(now, bool) or not math.isfinite(now) or now < 0:
        raise InvalidInputError("now must be a finite number of seconds >= 0", got=repr(now))
    return min(round(now * _MICROSECONDS), 2**63)


def _tokens(array: object, what: str) -> TokenArray:
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype != np.int32:
        got = f"{array.dtype}[{array.ndim}-D]" if isinstance(array, np.ndarray) else type(array).__name__
        raise InvalidTokensError(f"{what} must be a 1-D int32 array", got=got)
    copy: TokenArray = np.array(array, dtype=np.int32)
    if len(copy) and int(copy.min()) < 0:
        raise InvalidTokensError(f"{what} must hold ids in 0 .. 2**31 - 1", got=int(copy.min()))
    copy.flags.writeable = False
    return copy


def _segments(lens: tuple[int, ...], tokens: int) -> tuple[int, ...]:
    checked = as_segment_lens(lens)
    if any(n < 0 for n in checked) or sum(checked) != tokens:
        raise InvalidTokensError(f"segment_lens must be lengths with the sum {tokens}", got=str(checked)[:80])
    # empty runs are dropped, so that equal outputs have equal bytes
    return tuple(n for n in checked if n)


def unknown_output(output_id: int, namespace: str | None = None) -> UnknownOutputError:
    """Return the error for an output that is not in the log, or not in ``namespace``."""
    where = "" if namespace is None else f" in namespace {namespace}"
    return UnknownOutputError(
        f"output {output_id} must exist{where}", remedy="It was never written, was forgotten, or has expired."
    )


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
