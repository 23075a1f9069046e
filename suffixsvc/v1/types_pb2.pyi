from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_UNSPECIFIED: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_INPUT: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_TOKENS: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_COST: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_NAMESPACE: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_LABELS: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_CONFIG: _ClassVar[ErrorCode]
    ERROR_CODE_APPEND_CONFLICT: _ClassVar[ErrorCode]
    ERROR_CODE_APPEND_GAP: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_SESSION: _ClassVar[ErrorCode]
    ERROR_CODE_SESSION_CLOSED: _ClassVar[ErrorCode]
    ERROR_CODE_STEP_SEQUENCE: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_NAMESPACE: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_OUTPUT: _ClassVar[ErrorCode]
    ERROR_CODE_TOKENIZER_MISMATCH: _ClassVar[ErrorCode]
    ERROR_CODE_LIMIT_EXCEEDED: _ClassVar[ErrorCode]
    ERROR_CODE_STORE: _ClassVar[ErrorCode]
    ERROR_CODE_STORE_LOCKED: _ClassVar[ErrorCode]
    ERROR_CODE_STORE_FULL: _ClassVar[ErrorCode]
    ERROR_CODE_STORE_CORRUPT: _ClassVar[ErrorCode]
    ERROR_CODE_STORE_FOREIGN: _ClassVar[ErrorCode]
    ERROR_CODE_STORE_CLOSED: _ClassVar[ErrorCode]
    ERROR_CODE_INDEX_CORRUPT: _ClassVar[ErrorCode]
    ERROR_CODE_UNAVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_TIMEOUT: _ClassVar[ErrorCode]
    ERROR_CODE_PROTOCOL: _ClassVar[ErrorCode]
    ERROR_CODE_LISTEN: _ClassVar[ErrorCode]
    ERROR_CODE_MODEL: _ClassVar[ErrorCode]
    ERROR_CODE_MODEL_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_MODEL_CORRUPT: _ClassVar[ErrorCode]
    ERROR_CODE_VOCABULARY_MISMATCH: _ClassVar[ErrorCode]
    ERROR_CODE_MISSING_EXTRA: _ClassVar[ErrorCode]
    ERROR_CODE_INTERNAL: _ClassVar[ErrorCode]
    ERROR_CODE_NAMESPACE_IN_USE: _ClassVar[ErrorCode]
    ERROR_CODE_UNSUPPORTED_VERSION: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_SEGMENT: _ClassVar[ErrorCode]
    ERROR_CODE_NO_STORE: _ClassVar[ErrorCode]
    ERROR_CODE_UNAUTHENTICATED: _ClassVar[ErrorCode]
    ERROR_CODE_PERMISSION_DENIED: _ClassVar[ErrorCode]

class DraftSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAFT_SOURCE_NONE: _ClassVar[DraftSource]
    DRAFT_SOURCE_SESSION: _ClassVar[DraftSource]
    DRAFT_SOURCE_NAMESPACE: _ClassVar[DraftSource]
    DRAFT_SOURCE_CORPUS: _ClassVar[DraftSource]
    DRAFT_SOURCE_DRAFT_MODEL: _ClassVar[DraftSource]
    DRAFT_SOURCE_PROMPT_LOOKUP: _ClassVar[DraftSource]
    DRAFT_SOURCE_GRAMMAR: _ClassVar[DraftSource]
    DRAFT_SOURCE_PREDICTION: _ClassVar[DraftSource]
ERROR_CODE_UNSPECIFIED: ErrorCode
ERROR_CODE_INVALID_INPUT: ErrorCode
ERROR_CODE_INVALID_TOKENS: ErrorCode
ERROR_CODE_INVALID_COST: ErrorCode
ERROR_CODE_INVALID_NAMESPACE: ErrorCode
ERROR_CODE_INVALID_LABELS: ErrorCode
ERROR_CODE_INVALID_CONFIG: ErrorCode
ERROR_CODE_APPEND_CONFLICT: ErrorCode
ERROR_CODE_APPEND_GAP: ErrorCode
ERROR_CODE_UNKNOWN_SESSION: ErrorCode
ERROR_CODE_SESSION_CLOSED: ErrorCode
ERROR_CODE_STEP_SEQUENCE: ErrorCode
ERROR_CODE_UNKNOWN_NAMESPACE: ErrorCode
ERROR_CODE_UNKNOWN_OUTPUT: ErrorCode
ERROR_CODE_TOKENIZER_MISMATCH: ErrorCode
ERROR_CODE_LIMIT_EXCEEDED: ErrorCode
ERROR_CODE_STORE: ErrorCode
ERROR_CODE_STORE_LOCKED: ErrorCode
ERROR_CODE_STORE_FULL: ErrorCode
ERROR_CODE_STORE_CORRUPT: ErrorCode
ERROR_CODE_STORE_FOREIGN: ErrorCode
ERROR_CODE_STORE_CLOSED: ErrorCode
ERROR_CODE_INDEX_CORRUPT: ErrorCode
ERROR_CODE_UNAVAILABLE: ErrorCode
ERROR_CODE_TIMEOUT: ErrorCode
ERROR_CODE_PROTOCOL: ErrorCode
ERROR_CODE_LISTEN: ErrorCode
ERROR_CODE_MODEL: ErrorCode
ERROR_CODE_MODEL_NOT_FOUND: ErrorCode
ERROR_CODE_MODEL_CORRUPT: ErrorCode
ERROR_CODE_VOCABULARY_MISMATCH: ErrorCode
ERROR_CODE_MISSING_EXTRA: ErrorCode
ERROR_CODE_INTERNAL: ErrorCode
ERROR_CODE_NAMESPACE_IN_USE: ErrorCode
ERROR_CODE_UNSUPPORTED_VERSION: ErrorCode
ERROR_CODE_UNKNOWN_SEGMENT: ErrorCode
ERROR_CODE_NO_STORE: ErrorCode
ERROR_CODE_UNAUTHENTICATED: ErrorCode
ERROR_CODE_PERMISSION_DENIED: ErrorCode
DRAFT_SOURCE_NONE: DraftSource
DRAFT_SOURCE_SESSION: DraftSource
DRAFT_SOURCE_NAMESPACE: DraftSource
DRAFT_SOURCE_CORPUS: DraftSource
DRAFT_SOURCE_DRAFT_MODEL: DraftSource
DRAFT_SOURCE_PROMPT_LOOKUP: DraftSource
DRAFT_SOURCE_GRAMMAR: DraftSource
DRAFT_SOURCE_PREDICTION: DraftSource

class ErrorDetail(_message.Message):
    __slots__ = ("code", "message", "expected", "got", "remedy", "retry_after_seconds")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    GOT_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    message: str
    expected: str
    got: str
    remedy: str
    retry_after_seconds: float
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., message: _Optional[str] = ..., expected: _Optional[str] = ..., got: _Optional[str] = ..., remedy: _Optional[str] = ..., retry_after_seconds: _Optional[float] = ...) -> None: ...

class Draft(_message.Message):
    __slots__ = ("token_ids", "parents", "probs", "sources", "match_lens")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    PROBS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    MATCH_LENS_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    parents: bytes
    probs: bytes
    sources: bytes
    match_lens: bytes
    def __init__(self, token_ids: _Optional[bytes] = ..., parents: _Optional[bytes] = ..., probs: _Optional[bytes] = ..., sources: _Optional[bytes] = ..., match_lens: _Optional[bytes] = ...) -> None: ...

class VerifyCost(_message.Message):
    __slots__ = ("per_token", "curve")
    PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CURVE_FIELD_NUMBER: _ClassVar[int]
    per_token: float
    curve: CostCurve
    def __init__(self, per_token: _Optional[float] = ..., curve: _Optional[_Union[CostCurve, _Mapping]] = ...) -> None: ...

class CostCurve(_message.Message):
    __slots__ = ("cost",)
    COST_FIELD_NUMBER: _ClassVar[int]
    cost: bytes
    def __init__(self, cost: _Optional[bytes] = ...) -> None: ...
