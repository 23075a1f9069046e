from suffixsvc.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("model", "vocab_type", "vocab_size", "bos_id", "eos_id", "add_bos", "add_eos", "fingerprint", "context_size", "seconds_per_token", "parameters", "instance_id", "batch_width", "seconds_per_read_token", "checks")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VOCAB_TYPE_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    BOS_ID_FIELD_NUMBER: _ClassVar[int]
    EOS_ID_FIELD_NUMBER: _ClassVar[int]
    ADD_BOS_FIELD_NUMBER: _ClassVar[int]
    ADD_EOS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_SIZE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_WIDTH_FIELD_NUMBER: _ClassVar[int]
    SECONDS_PER_READ_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    model: str
    vocab_type: str
    vocab_size: int
    bos_id: int
    eos_id: int
    add_bos: bool
    add_eos: bool
    fingerprint: str
    context_size: int
    seconds_per_token: float
    parameters: int
    instance_id: str
    batch_width: int
    seconds_per_read_token: float
    checks: int
    def __init__(self, model: _Optional[str] = ..., vocab_type: _Optional[str] = ..., vocab_size: _Optional[int] = ..., bos_id: _Optional[int] = ..., eos_id: _Optional[int] = ..., add_bos: bool = ..., add_eos: bool = ..., fingerprint: _Optional[str] = ..., context_size: _Optional[int] = ..., seconds_per_token: _Optional[float] = ..., parameters: _Optional[int] = ..., instance_id: _Optional[str] = ..., batch_width: _Optional[int] = ..., seconds_per_read_token: _Optional[float] = ..., checks: _Optional[int] = ...) -> None: ...

class GetVocabRequest(_message.Message):
    __slots__ = ("fingerprint",)
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    fingerprint: str
    def __init__(self, fingerprint: _Optional[str] = ...) -> None: ...

class GetVocabReply(_message.Message):
    __slots__ = ("first_id", "texts")
    FIRST_ID_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    first_id: int
    texts: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, first_id: _Optional[int] = ..., texts: _Optional[_Iterable[bytes]] = ...) -> None: ...

class WorkerDraftRequest(_message.Message):
    __slots__ = ("seq", "session_id", "keep", "new_token_ids", "max_draft_tokens", "p_min", "top_k", "forget", "timeout_seconds", "wait_seconds", "suggested_token_ids", "principal")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    NEW_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    P_MIN_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SUGGESTED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    seq: int
    session_id: str
    keep: int
    new_token_ids: bytes
    max_draft_tokens: int
    p_min: float
    top_k: int
    forget: bool
    timeout_seconds: float
    wait_seconds: float
    suggested_token_ids: bytes
    principal: str
    def __init__(self, seq: _Optional[int] = ..., session_id: _Optional[str] = ..., keep: _Optional[int] = ..., new_token_ids: _Optional[bytes] = ..., max_draft_tokens: _Optional[int] = ..., p_min: _Optional[float] = ..., top_k: _Optional[int] = ..., forget: bool = ..., timeout_seconds: _Optional[float] = ..., wait_seconds: _Optional[float] = ..., suggested_token_ids: _Optional[bytes] = ..., principal: _Optional[str] = ...) -> None: ...

class WorkerDraftReply(_message.Message):
    __slots__ = ("seq", "session_id", "draft", "error", "length", "compute_seconds", "busy", "instance_id")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    seq: int
    session_id: str
    draft: _types_pb2.Draft
    error: _types_pb2.ErrorDetail
    length: int
    compute_seconds: float
    busy: bool
    instance_id: str
    def __init__(self, seq: _Optional[int] = ..., session_id: _Optional[str] = ..., draft: _Optional[_Union[_types_pb2.Draft, _Mapping]] = ..., error: _Optional[_Union[_types_pb2.ErrorDetail, _Mapping]] = ..., length: _Optional[int] = ..., compute_seconds: _Optional[float] = ..., busy: bool = ..., instance_id: _Optional[str] = ...) -> None: ...
