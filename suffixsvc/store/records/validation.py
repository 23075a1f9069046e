"""Validation of the arguments of a store, before anything is queued. Shared by both stores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from suffixsvc.config import (
    PROMPT_TAIL_TOKENS,
    validate_labels,
    validate_namespace,
    validate_principal,
    validate_uuid,
)
from suffixsvc.errors import InvalidInputError, InvalidTokensError, UnknownOutputError
from suffixsvc.store.records.framing import encode_text
from suffixsvc.store.records.log_records import Payload, content_hash
from suffixsvc.types import NamespaceRecord, NewOutput, TokenArray
from suffixsvc.values import as_segment_lens

_MAX_TTL_SECONDS: Final = 2**32 - 1
#: of a tokenizer fingerprint, the name of a state, a session id
_MAX_TEXT_BYTES: Final = 200
_MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class CheckedOutput(NewOutput):
    """A validated copy of a NewOutput: later changes of the caller's arrays do not affect it."""

    content: bytes = b""  #: :meth:`Payload.content`
    digest: bytes = b""  #: its hash


def check_output(output: NewOutput) -> CheckedOutput:
    """Validate and copy an output; InvalidInputError or a subclass names the first violation."""
    namespace = validate_namespace(output.namespace)
    tokens = _tokens(output.token_ids, "token_ids")
    if not len(tokens):
        raise InvalidTokensError("token_ids must hold at least one token", got=0)
    segment_lens = _segments(output.segment_lens, len(tokens))
    tail = _tokens(output.prompt_tail, "prompt_tail")
    if len(tail) > PROMPT_TAIL_TOKENS:
        raise InvalidTokensError(f"prompt_tail must hold at most {PROMPT_TAIL_TOKENS} tokens", got=len(tail))
    labels = validate_labels(output.labels)
    ttl = output.ttl_seconds
    if type(ttl) is not int or not 0 <= ttl <= _MAX_TTL_SECONDS:
        raise InvalidInputError("ttl_seconds must be an integer in 0 .. 2**32 - 1", got=repr(ttl))
    content = Payload(tokens, segment_lens).content()
    return CheckedOutput(
        namespace=namespace,
        token_ids=tokens,
        segment_lens=segment_lens,
        prompt_tail=tail,
        labels=labels,
        incomplete=bool(output.incomplete),
        ttl_seconds=ttl,
        corpus=bool(output.corpus),
        uuid=validate_uuid(output.uuid) if output.uuid else b"",
        session_id=check_session_id(output.session_id),
        principal=validate_principal(output.principal),
        content=content,
        digest=content_hash(content),
    )


def check_namespace(record: NamespaceRecord) -> None:
    """Raise InvalidInputError if path or tokenizer fingerprint is malformed."""
    validate_namespace(record.path)
    _text(record.tokenizer, "tokenizer")


def check_state_name(name: str) -> str:
    """Return the name of a state; InvalidInputError if it is empty or too long."""
    return _text(name, "name of a state", 1)


def check_session_id(session_id: str) -> str:
    """Return the id of a session, "" for none; InvalidInputError if it is too long."""
    return _text(session_id, "session_id")


def _text(text: object, what: str, least: int = 0) -> str:
    if not isinstance(text, str) or not least <= len(encode_text(text)) <= _MAX_TEXT_BYTES:
        raise InvalidInputError(
            f"{what} must be a string of {least} to {_MAX_TEXT_BYTES} bytes", got=repr(text)[:80]
        )
    return text


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


def unknown_output(output_id: int) -> UnknownOutputError:
    """Return the error for an output that is not in the log."""
    return UnknownOutputError(
        f"output {output_id} must exist", remedy="It was never written, was forgotten, or has expired."
    )
