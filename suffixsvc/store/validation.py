"""What a store accepts, checked before anything is queued. Both stores refuse the same things."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from suffixsvc.config import PROMPT_TAIL_TOKENS, validate_labels, validate_namespace, validate_uuid
from suffixsvc.errors import InvalidInputError, InvalidLabelsError, InvalidTokensError
from suffixsvc.store.records import Payload, content_hash
from suffixsvc.types import NamespaceRecord, NewOutput, OutputId, TokenArray
from suffixsvc.values import as_segment_lens

__all__ = [
    "CheckedOutput",
    "check_namespace",
    "check_now",
    "check_output",
    "check_state_name",
    "own_uuid",
    "require_same_content",
]

_MAX_TTL_SECONDS: Final = 2**32 - 1
_MAX_TOKENIZER_BYTES: Final = 200
_MAX_STATE_NAME_BYTES: Final = 200
_MAX_SESSION_ID_BYTES: Final = 200
_MICROSECONDS: Final = 1_000_000


class CheckedOutput:
    """A NewOutput that was checked and copied: later changes to the caller's arrays do not reach it."""

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
            raise InvalidTokensError("an output is empty", expected="at least one token", got=0)
        self.payload = Payload(tokens, _segments(output.segment_lens, len(tokens)))
        self.content = self.payload.content()
        self.digest = content_hash(self.content)
        self.prompt_tail = _tokens(output.prompt_tail, "prompt_tail")
        if len(self.prompt_tail) > PROMPT_TAIL_TOKENS:
            raise InvalidTokensError(
                "a prompt tail is too long",
                expected=f"at most {PROMPT_TAIL_TOKENS} tokens",
                got=len(self.prompt_tail),
            )
        self.labels = validate_labels(output.labels)
        for text in (*self.labels.keys(), *self.labels.values()):
            if not text.isascii() and not _is_unicode(text):
                raise InvalidLabelsError("a label is not valid Unicode", expected="no lone surrogates")
        self.ttl_seconds = output.ttl_seconds
        if type(self.ttl_seconds) is not int or not 0 <= self.ttl_seconds <= _MAX_TTL_SECONDS:
            raise InvalidInputError(
                "a TTL makes no sense", expected="whole seconds, 0 .. 2**32 - 1", got=repr(self.ttl_seconds)
            )
        self.incomplete = bool(output.incomplete)
        self.corpus = bool(output.corpus)
        self.uuid = validate_uuid(output.uuid) if output.uuid else b""
        self.session_id = _session_id(output.session_id)


def _session_id(session_id: str) -> str:
    if not isinstance(session_id, str):
        raise InvalidInputError("session_id must be a string", expected="str", got=type(session_id).__name__)
    if len(session_id) > _MAX_SESSION_ID_BYTES // 4:
        size = len(session_id.encode("utf-8", "surrogatepass"))
        if size > _MAX_SESSION_ID_BYTES:
            raise InvalidInputError(
                f"session_id must be at most {_MAX_SESSION_ID_BYTES} bytes",
                expected=f"at most {_MAX_SESSION_ID_BYTES} bytes",
                got=f"{size} bytes",
            )
    return session_id


def check_output(output: NewOutput) -> CheckedOutput:
    """Check and copy; InvalidInputError or a subclass names the first thing wrong."""
    return CheckedOutput(output)


def require_same_content(output: CheckedOutput, digest: bytes, lsn: OutputId) -> None:
    """InvalidInputError unless a repeated output has the content that is in the log."""
    if digest != output.digest:
        raise InvalidInputError(
            "uuid must name one output",
            expected=f"the tokens of output {lsn}, which has it",
            got="other tokens",
            remedy="Choose another uuid for another output.",
        )


def own_uuid(uuid: bytes) -> InvalidInputError:
    """The error for one that the store itself is going to draw for another output."""
    return InvalidInputError(
        "uuid must not be one that this store draws by itself",
        expected="16 bytes that do not begin with the id of the node",
        got=uuid.hex(),
    )


def check_namespace(record: NamespaceRecord) -> NamespaceRecord:
    validate_namespace(record.path)
    tokenizer = record.tokenizer
    if (
        not isinstance(tokenizer, str)
        or len(tokenizer.encode("utf-8", "surrogatepass")) > _MAX_TOKENIZER_BYTES
    ):
        raise InvalidInputError(
            "a tokenizer fingerprint is malformed",
            expected=f"a string of at most {_MAX_TOKENIZER_BYTES} bytes",
            got=repr(tokenizer)[:80],
        )
    return record


def check_state_name(name: str) -> str:
    if (
        not isinstance(name, str)
        or not 0 < len(name.encode("utf-8", "surrogatepass")) <= _MAX_STATE_NAME_BYTES
    ):
        raise InvalidInputError(
            "a state name has a wrong length",
            expected=f"a string of 1 to {_MAX_STATE_NAME_BYTES} bytes",
            got=repr(name)[:80],
        )
    return name


def check_now(now: float) -> int:
    """A time in seconds as whole microseconds, clamped to what 64 bits hold."""
    if not isinstance(now, (int, float)) or isinstance(now, bool) or not math.isfinite(now) or now < 0:
        raise InvalidInputError("a time makes no sense", expected="seconds since the epoch", got=repr(now))
    return min(round(now * _MICROSECONDS), 2**63)


def _tokens(array: object, what: str) -> TokenArray:
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype != np.int32:
        got = f"{array.dtype}[{array.ndim}-D]" if isinstance(array, np.ndarray) else type(array).__name__
        raise InvalidTokensError(f"{what} has a wrong type", expected="1-D int32 array", got=got)
    copy: TokenArray = np.array(array, dtype=np.int32)
    if len(copy) and int(copy.min()) < 0:
        raise InvalidTokensError(
            f"{what} holds a negative id", expected="0 .. 2**31 - 1", got=int(copy.min())
        )
    copy.flags.writeable = False
    return copy


def _segments(lens: tuple[int, ...], tokens: int) -> tuple[int, ...]:
    checked = as_segment_lens(lens)
    if any(n < 0 for n in checked) or sum(checked) != tokens:
        raise InvalidTokensError(
            "segment lengths do not add up", expected=f"lengths with the sum {tokens}", got=str(checked)[:80]
        )
    # an empty run says nothing; without it equal outputs have equal bytes
    return tuple(n for n in checked if n)


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
