from suffixsvc.v1 import types_pb2 as _types_pb2
from suffixsvc.v1 import watch_pb2 as _watch_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TreeMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TREE_MODE_CHAIN: _ClassVar[TreeMode]
    TREE_MODE_TREE: _ClassVar[TreeMode]
    TREE_MODE_AUTO: _ClassVar[TreeMode]
TREE_MODE_CHAIN: TreeMode
TREE_MODE_TREE: TreeMode
TREE_MODE_AUTO: TreeMode

class OpenSessionRequest(_message.Message):
    __slots__ = ("namespace", "tokenizer", "prompt_token_ids", "output_token_ids", "labels", "reads", "verify_cost", "session_id", "follower_id", "private")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_COST_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    FOLLOWER_ID_FIELD_NUMBER: _ClassVar[int]
    PRIVATE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    tokenizer: str
    prompt_token_ids: bytes
    output_token_ids: bytes
    labels: _containers.ScalarMap[str, str]
    reads: _containers.RepeatedScalarFieldContainer[str]
    verify_cost: _types_pb2.VerifyCost
    session_id: str
    follower_id: str
    private: bool
    def __init__(self, namespace: _Optional[str] = ..., tokenizer: _Optional[str] = ..., prompt_token_ids: _Optional[bytes] = ..., output_token_ids: _Optional[bytes] = ..., labels: _Optional[_Mapping[str, str]] = ..., reads: _Optional[_Iterable[str]] = ..., verify_cost: _Optional[_Union[_types_pb2.VerifyCost, _Mapping]] = ..., session_id: _Optional[str] = ..., follower_id: _Optional[str] = ..., private: bool = ...) -> None: ...

class OpenSessionReply(_message.Message):
    __slots__ = ("session_id", "length", "follow_denied", "no_store")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_DENIED_FIELD_NUMBER: _ClassVar[int]
    NO_STORE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    length: int
    follow_denied: bool
    no_store: bool
    def __init__(self, session_id: _Optional[str] = ..., length: _Optional[int] = ..., follow_denied: bool = ..., no_store: bool = ...) -> None: ...

class StepRequest(_message.Message):
    __slots__ = ("session_id", "seq", "new_token_ids", "at", "max_draft_tokens", "verify_cost", "tree", "verified")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    NEW_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_COST_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    seq: int
    new_token_ids: bytes
    at: int
    max_draft_tokens: int
    verify_cost: _types_pb2.VerifyCost
    tree: TreeMode
    verified: Verified
    def __init__(self, session_id: _Optional[str] = ..., seq: _Optional[int] = ..., new_token_ids: _Optional[bytes] = ..., at: _Optional[int] = ..., max_draft_tokens: _Optional[int] = ..., verify_cost: _Optional[_Union[_types_pb2.VerifyCost, _Mapping]] = ..., tree: _Optional[_Union[TreeMode, str]] = ..., verified: _Optional[_Union[Verified, _Mapping]] = ...) -> None: ...

class Verified(_message.Message):
    __slots__ = ("width", "accepted", "source")
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    width: int
    accepted: int
    source: _types_pb2.DraftSource
    def __init__(self, width: _Optional[int] = ..., accepted: _Optional[int] = ..., source: _Optional[_Union[_types_pb2.DraftSource, str]] = ...) -> None: ...

class StepReply(_message.Message):
    __slots__ = ("session_id", "seq", "draft", "length")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    seq: int
    draft: _types_pb2.Draft
    length: int
    def __init__(self, session_id: _Optional[str] = ..., seq: _Optional[int] = ..., draft: _Optional[_Union[_types_pb2.Draft, _Mapping]] = ..., length: _Optional[int] = ...) -> None: ...

class AppendContextRequest(_message.Message):
    __slots__ = ("session_id", "seq", "token_ids", "at")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    seq: int
    token_ids: bytes
    at: int
    def __init__(self, session_id: _Optional[str] = ..., seq: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., at: _Optional[int] = ...) -> None: ...

class AppendContextReply(_message.Message):
    __slots__ = ("session_id", "seq", "length")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    seq: int
    length: int
    def __init__(self, session_id: _Optional[str] = ..., seq: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ("session_id", "discard", "no_wait", "incomplete")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    DISCARD_FIELD_NUMBER: _ClassVar[int]
    NO_WAIT_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    discard: bool
    no_wait: bool
    incomplete: bool
    def __init__(self, session_id: _Optional[str] = ..., discard: bool = ..., no_wait: bool = ..., incomplete: bool = ...) -> None: ...

class CloseSessionReply(_message.Message):
    __slots__ = ("session_id", "output_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    output_id: int
    def __init__(self, session_id: _Optional[str] = ..., output_id: _Optional[int] = ...) -> None: ...

class StreamRequest(_message.Message):
    __slots__ = ("id", "open", "steps", "append_context", "close", "no_reply")
    ID_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    APPEND_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    NO_REPLY_FIELD_NUMBER: _ClassVar[int]
    id: int
    open: OpenSessionRequest
    steps: StepBatch
    append_context: AppendContextRequest
    close: CloseSessionRequest
    no_reply: bool
    def __init__(self, id: _Optional[int] = ..., open: _Optional[_Union[OpenSessionRequest, _Mapping]] = ..., steps: _Optional[_Union[StepBatch, _Mapping]] = ..., append_context: _Optional[_Union[AppendContextRequest, _Mapping]] = ..., close: _Optional[_Union[CloseSessionRequest, _Mapping]] = ..., no_reply: bool = ...) -> None: ...

class StepBatch(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[StepRequest]
    def __init__(self, items: _Optional[_Iterable[_Union[StepRequest, _Mapping]]] = ...) -> None: ...

class StreamReply(_message.Message):
    __slots__ = ("id", "open", "steps", "append_context", "close", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    APPEND_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: int
    open: OpenSessionReply
    steps: StepBatchReply
    append_context: AppendContextReply
    close: CloseSessionReply
    error: _types_pb2.ErrorDetail
    def __init__(self, id: _Optional[int] = ..., open: _Optional[_Union[OpenSessionReply, _Mapping]] = ..., steps: _Optional[_Union[StepBatchReply, _Mapping]] = ..., append_context: _Optional[_Union[AppendContextReply, _Mapping]] = ..., close: _Optional[_Union[CloseSessionReply, _Mapping]] = ..., error: _Optional[_Union[_types_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class StepBatchReply(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[StepItem]
    def __init__(self, items: _Optional[_Iterable[_Union[StepItem, _Mapping]]] = ...) -> None: ...

class StepItem(_message.Message):
    __slots__ = ("reply", "error")
    REPLY_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    reply: StepReply
    error: StepError
    def __init__(self, reply: _Optional[_Union[StepReply, _Mapping]] = ..., error: _Optional[_Union[StepError, _Mapping]] = ...) -> None: ...

class StepError(_message.Message):
    __slots__ = ("session_id", "seq", "error")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    seq: int
    error: _types_pb2.ErrorDetail
    def __init__(self, session_id: _Optional[str] = ..., seq: _Optional[int] = ..., error: _Optional[_Union[_types_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class AddOutputsRequest(_message.Message):
    __slots__ = ("namespace", "tokenizer", "outputs")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    tokenizer: str
    outputs: _containers.RepeatedCompositeFieldContainer[OutputItem]
    def __init__(self, namespace: _Optional[str] = ..., tokenizer: _Optional[str] = ..., outputs: _Optional[_Iterable[_Union[OutputItem, _Mapping]]] = ...) -> None: ...

class OutputItem(_message.Message):
    __slots__ = ("token_ids", "prompt_token_ids", "labels", "ttl_seconds", "segment_lens", "incomplete", "corpus", "uuid")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_LENS_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    CORPUS_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    prompt_token_ids: bytes
    labels: _containers.ScalarMap[str, str]
    ttl_seconds: int
    segment_lens: _containers.RepeatedScalarFieldContainer[int]
    incomplete: bool
    corpus: bool
    uuid: bytes
    def __init__(self, token_ids: _Optional[bytes] = ..., prompt_token_ids: _Optional[bytes] = ..., labels: _Optional[_Mapping[str, str]] = ..., ttl_seconds: _Optional[int] = ..., segment_lens: _Optional[_Iterable[int]] = ..., incomplete: bool = ..., corpus: bool = ..., uuid: _Optional[bytes] = ...) -> None: ...

class AddOutputsReply(_message.Message):
    __slots__ = ("outputs", "tokens", "output_ids")
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_IDS_FIELD_NUMBER: _ClassVar[int]
    outputs: int
    tokens: int
    output_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, outputs: _Optional[int] = ..., tokens: _Optional[int] = ..., output_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ExportNgramsRequest(_message.Message):
    __slots__ = ("namespace", "tokenizer", "files", "context_tokens")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    tokenizer: str
    files: _containers.RepeatedCompositeFieldContainer[NgramFile]
    context_tokens: int
    def __init__(self, namespace: _Optional[str] = ..., tokenizer: _Optional[str] = ..., files: _Optional[_Iterable[_Union[NgramFile, _Mapping]]] = ..., context_tokens: _Optional[int] = ...) -> None: ...

class NgramFile(_message.Message):
    __slots__ = ("order", "slots", "min_count", "top", "max_count", "least", "percent", "firing", "unique", "totals")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    MIN_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    PERCENT_FIELD_NUMBER: _ClassVar[int]
    FIRING_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    order: int
    slots: int
    min_count: int
    top: int
    max_count: int
    least: int
    percent: int
    firing: bool
    unique: bool
    totals: bool
    def __init__(self, order: _Optional[int] = ..., slots: _Optional[int] = ..., min_count: _Optional[int] = ..., top: _Optional[int] = ..., max_count: _Optional[int] = ..., least: _Optional[int] = ..., percent: _Optional[int] = ..., firing: bool = ..., unique: bool = ..., totals: bool = ...) -> None: ...

class ExportNgramsReply(_message.Message):
    __slots__ = ("summary", "piece")
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    summary: ExportNgramsSummary
    piece: ExportNgramsPiece
    def __init__(self, summary: _Optional[_Union[ExportNgramsSummary, _Mapping]] = ..., piece: _Optional[_Union[ExportNgramsPiece, _Mapping]] = ...) -> None: ...

class ExportNgramsSummary(_message.Message):
    __slots__ = ("tokenizer", "outputs", "tokens", "files")
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    tokenizer: str
    outputs: int
    tokens: int
    files: _containers.RepeatedCompositeFieldContainer[NgramFileSummary]
    def __init__(self, tokenizer: _Optional[str] = ..., outputs: _Optional[int] = ..., tokens: _Optional[int] = ..., files: _Optional[_Iterable[_Union[NgramFileSummary, _Mapping]]] = ...) -> None: ...

class NgramFileSummary(_message.Message):
    __slots__ = ("records", "pairs", "bytes", "occurrences", "count_sum")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    OCCURRENCES_FIELD_NUMBER: _ClassVar[int]
    COUNT_SUM_FIELD_NUMBER: _ClassVar[int]
    records: int
    pairs: int
    bytes: int
    occurrences: int
    count_sum: int
    def __init__(self, records: _Optional[int] = ..., pairs: _Optional[int] = ..., bytes: _Optional[int] = ..., occurrences: _Optional[int] = ..., count_sum: _Optional[int] = ...) -> None: ...

class ExportNgramsPiece(_message.Message):
    __slots__ = ("file", "data")
    FILE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    file: int
    data: bytes
    def __init__(self, file: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Selection(_message.Message):
    __slots__ = ("namespace", "output_ids", "session_id", "labels", "principal", "older_than_seconds")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_IDS_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    OLDER_THAN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    output_ids: _containers.RepeatedScalarFieldContainer[int]
    session_id: str
    labels: _containers.ScalarMap[str, str]
    principal: str
    older_than_seconds: float
    def __init__(self, namespace: _Optional[str] = ..., output_ids: _Optional[_Iterable[int]] = ..., session_id: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., principal: _Optional[str] = ..., older_than_seconds: _Optional[float] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("selection", "superseded", "from_disk")
    SELECTION_FIELD_NUMBER: _ClassVar[int]
    SUPERSEDED_FIELD_NUMBER: _ClassVar[int]
    FROM_DISK_FIELD_NUMBER: _ClassVar[int]
    selection: Selection
    superseded: bool
    from_disk: bool
    def __init__(self, selection: _Optional[_Union[Selection, _Mapping]] = ..., superseded: bool = ..., from_disk: bool = ...) -> None: ...

class DeleteReply(_message.Message):
    __slots__ = ("outputs", "sessions", "namespaces", "receipt", "from_disk")
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    FROM_DISK_FIELD_NUMBER: _ClassVar[int]
    outputs: int
    sessions: int
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    receipt: _watch_pb2.DeletionReceipt
    from_disk: bool
    def __init__(self, outputs: _Optional[int] = ..., sessions: _Optional[int] = ..., namespaces: _Optional[_Iterable[str]] = ..., receipt: _Optional[_Union[_watch_pb2.DeletionReceipt, _Mapping]] = ..., from_disk: bool = ...) -> None: ...

class DeleteNamespaceRequest(_message.Message):
    __slots__ = ("namespace", "force")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    force: bool
    def __init__(self, namespace: _Optional[str] = ..., force: bool = ...) -> None: ...

class DeleteNamespaceReply(_message.Message):
    __slots__ = ("outputs", "receipt")
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    outputs: int
    receipt: _watch_pb2.DeletionReceipt
    def __init__(self, outputs: _Optional[int] = ..., receipt: _Optional[_Union[_watch_pb2.DeletionReceipt, _Mapping]] = ...) -> None: ...

class ListNamespacesRequest(_message.Message):
    __slots__ = ("prefix",)
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    def __init__(self, prefix: _Optional[str] = ...) -> None: ...

class ListNamespacesReply(_message.Message):
    __slots__ = ("namespaces",)
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    namespaces: _containers.RepeatedCompositeFieldContainer[NamespaceInfo]
    def __init__(self, namespaces: _Optional[_Iterable[_Union[NamespaceInfo, _Mapping]]] = ...) -> None: ...

class NamespaceInfo(_message.Message):
    __slots__ = ("path", "tokenizer", "outputs", "tokens", "sessions", "held_bytes", "num_steps", "num_drafts", "num_draft_tokens", "num_accepted_tokens", "drafting_off")
    PATH_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFTING_OFF_FIELD_NUMBER: _ClassVar[int]
    path: str
    tokenizer: str
    outputs: int
    tokens: int
    sessions: int
    held_bytes: int
    num_steps: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    drafting_off: int
    def __init__(self, path: _Optional[str] = ..., tokenizer: _Optional[str] = ..., outputs: _Optional[int] = ..., tokens: _Optional[int] = ..., sessions: _Optional[int] = ..., held_bytes: _Optional[int] = ..., num_steps: _Optional[int] = ..., num_drafts: _Optional[int] = ..., num_draft_tokens: _Optional[int] = ..., num_accepted_tokens: _Optional[int] = ..., drafting_off: _Optional[int] = ...) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    def __init__(self, namespace: _Optional[str] = ...) -> None: ...

class GetStatsReply(_message.Message):
    __slots__ = ("outputs", "tokens", "sessions", "index_bytes", "index_nodes", "num_drafts", "num_steps", "num_draft_tokens", "num_accepted_tokens", "store_bytes", "last_lsn", "held_bytes", "limit_bytes", "evicted_outputs", "refused_outputs", "segments", "segment_bytes", "hot_tokens", "session_bytes", "num_session_drafts", "num_namespace_drafts", "num_session_draft_tokens", "num_namespace_draft_tokens", "num_session_accepted_tokens", "num_namespace_accepted_tokens", "num_no_context", "num_not_worth_cost", "num_over_limit", "expected_tokens", "verify_steps", "avoided_seconds", "verify_seconds", "min_principals", "published_runs", "published_tokens", "last_published", "num_off", "drafting_off", "expiry_grace_seconds", "unkept_sessions", "lost_sessions", "store_failing", "background_tasks", "store_reopened", "store_defects", "erasure_due", "followers", "store_queue", "live_lost", "dropped_log_lines", "principals", "probes", "refusals")
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    INDEX_BYTES_FIELD_NUMBER: _ClassVar[int]
    INDEX_NODES_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STORE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAST_LSN_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    EVICTED_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SESSION_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_SESSION_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    NUM_NAMESPACE_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    NUM_SESSION_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_NAMESPACE_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_SESSION_ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_NAMESPACE_ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_NO_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    NUM_NOT_WORTH_COST_FIELD_NUMBER: _ClassVar[int]
    NUM_OVER_LIMIT_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_STEPS_FIELD_NUMBER: _ClassVar[int]
    AVOIDED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MIN_PRINCIPALS_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_RUNS_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LAST_PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    NUM_OFF_FIELD_NUMBER: _ClassVar[int]
    DRAFTING_OFF_FIELD_NUMBER: _ClassVar[int]
    EXPIRY_GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UNKEPT_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    LOST_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    STORE_FAILING_FIELD_NUMBER: _ClassVar[int]
    BACKGROUND_TASKS_FIELD_NUMBER: _ClassVar[int]
    STORE_REOPENED_FIELD_NUMBER: _ClassVar[int]
    STORE_DEFECTS_FIELD_NUMBER: _ClassVar[int]
    ERASURE_DUE_FIELD_NUMBER: _ClassVar[int]
    FOLLOWERS_FIELD_NUMBER: _ClassVar[int]
    STORE_QUEUE_FIELD_NUMBER: _ClassVar[int]
    LIVE_LOST_FIELD_NUMBER: _ClassVar[int]
    DROPPED_LOG_LINES_FIELD_NUMBER: _ClassVar[int]
    PRINCIPALS_FIELD_NUMBER: _ClassVar[int]
    PROBES_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    outputs: int
    tokens: int
    sessions: int
    index_bytes: int
    index_nodes: int
    num_drafts: int
    num_steps: int
    num_draft_tokens: int
    num_accepted_tokens: int
    store_bytes: int
    last_lsn: int
    held_bytes: int
    limit_bytes: int
    evicted_outputs: int
    refused_outputs: int
    segments: int
    segment_bytes: int
    hot_tokens: int
    session_bytes: int
    num_session_drafts: int
    num_namespace_drafts: int
    num_session_draft_tokens: int
    num_namespace_draft_tokens: int
    num_session_accepted_tokens: int
    num_namespace_accepted_tokens: int
    num_no_context: int
    num_not_worth_cost: int
    num_over_limit: int
    expected_tokens: float
    verify_steps: float
    avoided_seconds: float
    verify_seconds: float
    min_principals: int
    published_runs: int
    published_tokens: int
    last_published: float
    num_off: int
    drafting_off: int
    expiry_grace_seconds: int
    unkept_sessions: int
    lost_sessions: int
    store_failing: bool
    background_tasks: _containers.RepeatedCompositeFieldContainer[BackgroundTask]
    store_reopened: int
    store_defects: int
    erasure_due: bool
    followers: _containers.RepeatedCompositeFieldContainer[_watch_pb2.FollowerStats]
    store_queue: int
    live_lost: int
    dropped_log_lines: int
    principals: _containers.RepeatedCompositeFieldContainer[PrincipalStats]
    probes: _containers.RepeatedCompositeFieldContainer[ProbeStats]
    refusals: _containers.RepeatedCompositeFieldContainer[RefusalStats]
    def __init__(self, outputs: _Optional[int] = ..., tokens: _Optional[int] = ..., sessions: _Optional[int] = ..., index_bytes: _Optional[int] = ..., index_nodes: _Optional[int] = ..., num_drafts: _Optional[int] = ..., num_steps: _Optional[int] = ..., num_draft_tokens: _Optional[int] = ..., num_accepted_tokens: _Optional[int] = ..., store_bytes: _Optional[int] = ..., last_lsn: _Optional[int] = ..., held_bytes: _Optional[int] = ..., limit_bytes: _Optional[int] = ..., evicted_outputs: _Optional[int] = ..., refused_outputs: _Optional[int] = ..., segments: _Optional[int] = ..., segment_bytes: _Optional[int] = ..., hot_tokens: _Optional[int] = ..., session_bytes: _Optional[int] = ..., num_session_drafts: _Optional[int] = ..., num_namespace_drafts: _Optional[int] = ..., num_session_draft_tokens: _Optional[int] = ..., num_namespace_draft_tokens: _Optional[int] = ..., num_session_accepted_tokens: _Optional[int] = ..., num_namespace_accepted_tokens: _Optional[int] = ..., num_no_context: _Optional[int] = ..., num_not_worth_cost: _Optional[int] = ..., num_over_limit: _Optional[int] = ..., expected_tokens: _Optional[float] = ..., verify_steps: _Optional[float] = ..., avoided_seconds: _Optional[float] = ..., verify_seconds: _Optional[float] = ..., min_principals: _Optional[int] = ..., published_runs: _Optional[int] = ..., published_tokens: _Optional[int] = ..., last_published: _Optional[float] = ..., num_off: _Optional[int] = ..., drafting_off: _Optional[int] = ..., expiry_grace_seconds: _Optional[int] = ..., unkept_sessions: _Optional[int] = ..., lost_sessions: _Optional[int] = ..., store_failing: bool = ..., background_tasks: _Optional[_Iterable[_Union[BackgroundTask, _Mapping]]] = ..., store_reopened: _Optional[int] = ..., store_defects: _Optional[int] = ..., erasure_due: bool = ..., followers: _Optional[_Iterable[_Union[_watch_pb2.FollowerStats, _Mapping]]] = ..., store_queue: _Optional[int] = ..., live_lost: _Optional[int] = ..., dropped_log_lines: _Optional[int] = ..., principals: _Optional[_Iterable[_Union[PrincipalStats, _Mapping]]] = ..., probes: _Optional[_Iterable[_Union[ProbeStats, _Mapping]]] = ..., refusals: _Optional[_Iterable[_Union[RefusalStats, _Mapping]]] = ...) -> None: ...

class RefusalStats(_message.Message):
    __slots__ = ("principal", "limit", "refused")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    principal: str
    limit: str
    refused: int
    def __init__(self, principal: _Optional[str] = ..., limit: _Optional[str] = ..., refused: _Optional[int] = ...) -> None: ...

class ProbeStats(_message.Message):
    __slots__ = ("principal", "drafts", "expected_matches", "matched_tokens", "refused_steps", "excess", "drafted_tokens", "unanswered_tokens", "open_tokens")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_MATCHES_FIELD_NUMBER: _ClassVar[int]
    MATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_STEPS_FIELD_NUMBER: _ClassVar[int]
    EXCESS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    UNANSWERED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OPEN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    principal: str
    drafts: int
    expected_matches: float
    matched_tokens: int
    refused_steps: int
    excess: float
    drafted_tokens: int
    unanswered_tokens: int
    open_tokens: int
    def __init__(self, principal: _Optional[str] = ..., drafts: _Optional[int] = ..., expected_matches: _Optional[float] = ..., matched_tokens: _Optional[int] = ..., refused_steps: _Optional[int] = ..., excess: _Optional[float] = ..., drafted_tokens: _Optional[int] = ..., unanswered_tokens: _Optional[int] = ..., open_tokens: _Optional[int] = ...) -> None: ...

class PrincipalStats(_message.Message):
    __slots__ = ("principal", "outputs", "held_bytes", "sessions", "session_bytes", "limit_bytes", "limit_outputs", "evicted_outputs", "refused")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    SESSION_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    EVICTED_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    principal: str
    outputs: int
    held_bytes: int
    sessions: int
    session_bytes: int
    limit_bytes: int
    limit_outputs: int
    evicted_outputs: int
    refused: int
    def __init__(self, principal: _Optional[str] = ..., outputs: _Optional[int] = ..., held_bytes: _Optional[int] = ..., sessions: _Optional[int] = ..., session_bytes: _Optional[int] = ..., limit_bytes: _Optional[int] = ..., limit_outputs: _Optional[int] = ..., evicted_outputs: _Optional[int] = ..., refused: _Optional[int] = ...) -> None: ...

class BackgroundTask(_message.Message):
    __slots__ = ("name", "runs", "failures", "failures_in_a_row", "last_success", "last_error", "alive")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    FAILURES_IN_A_ROW_FIELD_NUMBER: _ClassVar[int]
    LAST_SUCCESS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    name: str
    runs: int
    failures: int
    failures_in_a_row: int
    last_success: float
    last_error: str
    alive: bool
    def __init__(self, name: _Optional[str] = ..., runs: _Optional[int] = ..., failures: _Optional[int] = ..., failures_in_a_row: _Optional[int] = ..., last_success: _Optional[float] = ..., last_error: _Optional[str] = ..., alive: bool = ...) -> None: ...

class GetServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BackupRequest(_message.Message):
    __slots__ = ("folder", "copy_segments")
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    COPY_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    folder: bytes
    copy_segments: bool
    def __init__(self, folder: _Optional[bytes] = ..., copy_segments: bool = ...) -> None: ...

class BackupReply(_message.Message):
    __slots__ = ("progress", "summary")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    progress: BackupProgress
    summary: BackupSummary
    def __init__(self, progress: _Optional[_Union[BackupProgress, _Mapping]] = ..., summary: _Optional[_Union[BackupSummary, _Mapping]] = ...) -> None: ...

class BackupProgress(_message.Message):
    __slots__ = ("outputs", "total")
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    outputs: int
    total: int
    def __init__(self, outputs: _Optional[int] = ..., total: _Optional[int] = ...) -> None: ...

class BackupSummary(_message.Message):
    __slots__ = ("lsn", "namespaces", "outputs", "tokens", "segments", "bytes")
    LSN_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    lsn: int
    namespaces: int
    outputs: int
    tokens: int
    segments: int
    bytes: int
    def __init__(self, lsn: _Optional[int] = ..., namespaces: _Optional[int] = ..., outputs: _Optional[int] = ..., tokens: _Optional[int] = ..., segments: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class GetServerInfoReply(_message.Message):
    __slots__ = ("version", "instance_id", "max_message_bytes", "max_session_tokens", "max_draft_tokens", "durable", "features", "max_outputs_per_message", "max_segments_per_message", "store_failure")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUTS_PER_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    MAX_SEGMENTS_PER_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STORE_FAILURE_FIELD_NUMBER: _ClassVar[int]
    version: str
    instance_id: str
    max_message_bytes: int
    max_session_tokens: int
    max_draft_tokens: int
    durable: bool
    features: _containers.RepeatedScalarFieldContainer[str]
    max_outputs_per_message: int
    max_segments_per_message: int
    store_failure: _types_pb2.ErrorDetail
    def __init__(self, version: _Optional[str] = ..., instance_id: _Optional[str] = ..., max_message_bytes: _Optional[int] = ..., max_session_tokens: _Optional[int] = ..., max_draft_tokens: _Optional[int] = ..., durable: bool = ..., features: _Optional[_Iterable[str]] = ..., max_outputs_per_message: _Optional[int] = ..., max_segments_per_message: _Optional[int] = ..., store_failure: _Optional[_Union[_types_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...
