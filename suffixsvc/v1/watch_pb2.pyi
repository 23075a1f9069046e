from suffixsvc.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LogPosition(_message.Message):
    __slots__ = ("node_id", "lsn", "run")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    LSN_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    lsn: int
    run: int
    def __init__(self, node_id: _Optional[int] = ..., lsn: _Optional[int] = ..., run: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("hello", "follow", "unfollow", "report")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    UNFOLLOW_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    hello: WatchHello
    follow: FollowNamespace
    unfollow: UnfollowNamespace
    report: FollowerReport
    def __init__(self, hello: _Optional[_Union[WatchHello, _Mapping]] = ..., follow: _Optional[_Union[FollowNamespace, _Mapping]] = ..., unfollow: _Optional[_Union[UnfollowNamespace, _Mapping]] = ..., report: _Optional[_Union[FollowerReport, _Mapping]] = ...) -> None: ...

class WatchHello(_message.Message):
    __slots__ = ("protocol", "follower_id", "description", "position")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    FOLLOWER_ID_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    follower_id: str
    description: str
    position: LogPosition
    def __init__(self, protocol: _Optional[int] = ..., follower_id: _Optional[str] = ..., description: _Optional[str] = ..., position: _Optional[_Union[LogPosition, _Mapping]] = ...) -> None: ...

class FollowNamespace(_message.Message):
    __slots__ = ("namespace", "tokenizer", "generation", "drafting_off")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DRAFTING_OFF_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    tokenizer: str
    generation: int
    drafting_off: bool
    def __init__(self, namespace: _Optional[str] = ..., tokenizer: _Optional[str] = ..., generation: _Optional[int] = ..., drafting_off: bool = ...) -> None: ...

class UnfollowNamespace(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    def __init__(self, namespace: _Optional[str] = ...) -> None: ...

class FollowerReport(_message.Message):
    __slots__ = ("applied", "held_bytes", "mapped_bytes", "used", "unacknowledged_tokens")
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAPPED_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    UNACKNOWLEDGED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    applied: LogPosition
    held_bytes: int
    mapped_bytes: int
    used: _containers.RepeatedCompositeFieldContainer[NamespaceUse]
    unacknowledged_tokens: int
    def __init__(self, applied: _Optional[_Union[LogPosition, _Mapping]] = ..., held_bytes: _Optional[int] = ..., mapped_bytes: _Optional[int] = ..., used: _Optional[_Iterable[_Union[NamespaceUse, _Mapping]]] = ..., unacknowledged_tokens: _Optional[int] = ...) -> None: ...

class NamespaceUse(_message.Message):
    __slots__ = ("namespace", "output_ids", "num_steps", "num_drafts", "num_draft_tokens", "num_accepted_tokens", "learned", "num_session_drafts", "num_namespace_drafts", "num_session_draft_tokens", "num_namespace_draft_tokens", "num_session_accepted_tokens", "num_namespace_accepted_tokens", "num_no_context", "num_not_worth_cost", "num_over_limit", "expected_tokens", "verify_steps", "avoided_seconds", "verify_seconds", "num_off")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LEARNED_FIELD_NUMBER: _ClassVar[int]
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
    NUM_OFF_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    output_ids: bytes
    num_steps: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    learned: bytes
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
    num_off: int
    def __init__(self, namespace: _Optional[str] = ..., output_ids: _Optional[bytes] = ..., num_steps: _Optional[int] = ..., num_drafts: _Optional[int] = ..., num_draft_tokens: _Optional[int] = ..., num_accepted_tokens: _Optional[int] = ..., learned: _Optional[bytes] = ..., num_session_drafts: _Optional[int] = ..., num_namespace_drafts: _Optional[int] = ..., num_session_draft_tokens: _Optional[int] = ..., num_namespace_draft_tokens: _Optional[int] = ..., num_session_accepted_tokens: _Optional[int] = ..., num_namespace_accepted_tokens: _Optional[int] = ..., num_no_context: _Optional[int] = ..., num_not_worth_cost: _Optional[int] = ..., num_over_limit: _Optional[int] = ..., expected_tokens: _Optional[float] = ..., verify_steps: _Optional[float] = ..., avoided_seconds: _Optional[float] = ..., verify_seconds: _Optional[float] = ..., num_off: _Optional[int] = ...) -> None: ...

class WatchReply(_message.Message):
    __slots__ = ("welcome", "contents", "outputs", "changes", "sealed", "live", "refused", "drafting")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    CONTENTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    DRAFTING_FIELD_NUMBER: _ClassVar[int]
    welcome: WatchWelcome
    contents: NamespaceContents
    outputs: HotOutputs
    changes: LogChanges
    sealed: SealedContents
    live: LiveText
    refused: NamespaceRefused
    drafting: NamespaceDrafting
    def __init__(self, welcome: _Optional[_Union[WatchWelcome, _Mapping]] = ..., contents: _Optional[_Union[NamespaceContents, _Mapping]] = ..., outputs: _Optional[_Union[HotOutputs, _Mapping]] = ..., changes: _Optional[_Union[LogChanges, _Mapping]] = ..., sealed: _Optional[_Union[SealedContents, _Mapping]] = ..., live: _Optional[_Union[LiveText, _Mapping]] = ..., refused: _Optional[_Union[NamespaceRefused, _Mapping]] = ..., drafting: _Optional[_Union[NamespaceDrafting, _Mapping]] = ...) -> None: ...

class WatchWelcome(_message.Message):
    __slots__ = ("protocol", "version", "instance_id", "lease_seconds", "segment_folder", "default_reads")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FOLDER_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_READS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    instance_id: str
    lease_seconds: float
    segment_folder: str
    default_reads: _containers.RepeatedCompositeFieldContainer[DefaultRead]
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., instance_id: _Optional[str] = ..., lease_seconds: _Optional[float] = ..., segment_folder: _Optional[str] = ..., default_reads: _Optional[_Iterable[_Union[DefaultRead, _Mapping]]] = ...) -> None: ...

class DefaultRead(_message.Message):
    __slots__ = ("namespace", "tokenizer")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    tokenizer: str
    def __init__(self, namespace: _Optional[str] = ..., tokenizer: _Optional[str] = ...) -> None: ...

class NamespaceContents(_message.Message):
    __slots__ = ("namespace", "tokenizer", "generation", "position", "sealed", "learned")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    LEARNED_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    tokenizer: str
    generation: int
    position: LogPosition
    sealed: SealedContents
    learned: bytes
    def __init__(self, namespace: _Optional[str] = ..., tokenizer: _Optional[str] = ..., generation: _Optional[int] = ..., position: _Optional[_Union[LogPosition, _Mapping]] = ..., sealed: _Optional[_Union[SealedContents, _Mapping]] = ..., learned: _Optional[bytes] = ...) -> None: ...

class HotOutputs(_message.Message):
    __slots__ = ("namespace", "outputs", "last")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    outputs: _containers.RepeatedCompositeFieldContainer[LoggedOutput]
    last: bool
    def __init__(self, namespace: _Optional[str] = ..., outputs: _Optional[_Iterable[_Union[LoggedOutput, _Mapping]]] = ..., last: bool = ...) -> None: ...

class LoggedOutput(_message.Message):
    __slots__ = ("output_id", "uuid", "token_ids", "prompt_tail", "segment_lens", "session_id", "incomplete")
    OUTPUT_ID_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TAIL_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_LENS_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    output_id: int
    uuid: bytes
    token_ids: bytes
    prompt_tail: bytes
    segment_lens: _containers.RepeatedScalarFieldContainer[int]
    session_id: str
    incomplete: bool
    def __init__(self, output_id: _Optional[int] = ..., uuid: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., prompt_tail: _Optional[bytes] = ..., segment_lens: _Optional[_Iterable[int]] = ..., session_id: _Optional[str] = ..., incomplete: bool = ...) -> None: ...

class LogChanges(_message.Message):
    __slots__ = ("namespaces", "position")
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    namespaces: _containers.RepeatedCompositeFieldContainer[NamespaceChanges]
    position: LogPosition
    def __init__(self, namespaces: _Optional[_Iterable[_Union[NamespaceChanges, _Mapping]]] = ..., position: _Optional[_Union[LogPosition, _Mapping]] = ...) -> None: ...

class NamespaceChanges(_message.Message):
    __slots__ = ("namespace", "outputs", "deletions")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    DELETIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    outputs: _containers.RepeatedCompositeFieldContainer[LoggedOutput]
    deletions: _containers.RepeatedCompositeFieldContainer[LoggedDeletion]
    def __init__(self, namespace: _Optional[str] = ..., outputs: _Optional[_Iterable[_Union[LoggedOutput, _Mapping]]] = ..., deletions: _Optional[_Iterable[_Union[LoggedDeletion, _Mapping]]] = ...) -> None: ...

class LoggedDeletion(_message.Message):
    __slots__ = ("output_id", "uuid")
    OUTPUT_ID_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    output_id: int
    uuid: bytes
    def __init__(self, output_id: _Optional[int] = ..., uuid: _Optional[bytes] = ...) -> None: ...

class SealedContents(_message.Message):
    __slots__ = ("namespace", "segments", "deleted")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    segments: _containers.RepeatedCompositeFieldContainer[SealedSegment]
    deleted: bytes
    def __init__(self, namespace: _Optional[str] = ..., segments: _Optional[_Iterable[_Union[SealedSegment, _Mapping]]] = ..., deleted: _Optional[bytes] = ...) -> None: ...

class SealedSegment(_message.Message):
    __slots__ = ("name", "first_lsn", "last_lsn", "outputs", "tokens", "file_bytes", "header_digest")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FIRST_LSN_FIELD_NUMBER: _ClassVar[int]
    LAST_LSN_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    HEADER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    first_lsn: int
    last_lsn: int
    outputs: int
    tokens: int
    file_bytes: int
    header_digest: bytes
    def __init__(self, name: _Optional[str] = ..., first_lsn: _Optional[int] = ..., last_lsn: _Optional[int] = ..., outputs: _Optional[int] = ..., tokens: _Optional[int] = ..., file_bytes: _Optional[int] = ..., header_digest: _Optional[bytes] = ...) -> None: ...

class LiveText(_message.Message):
    __slots__ = ("namespace", "pieces", "reset")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    pieces: _containers.RepeatedCompositeFieldContainer[LivePiece]
    reset: bool
    def __init__(self, namespace: _Optional[str] = ..., pieces: _Optional[_Iterable[_Union[LivePiece, _Mapping]]] = ..., reset: bool = ...) -> None: ...

class LivePiece(_message.Message):
    __slots__ = ("session_id", "at", "context", "output", "ended")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    at: int
    context: bytes
    output: bytes
    ended: bool
    def __init__(self, session_id: _Optional[str] = ..., at: _Optional[int] = ..., context: _Optional[bytes] = ..., output: _Optional[bytes] = ..., ended: bool = ...) -> None: ...

class NamespaceRefused(_message.Message):
    __slots__ = ("namespace", "error")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    error: _types_pb2.ErrorDetail
    def __init__(self, namespace: _Optional[str] = ..., error: _Optional[_Union[_types_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class NamespaceDrafting(_message.Message):
    __slots__ = ("namespace", "off")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    OFF_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    off: bool
    def __init__(self, namespace: _Optional[str] = ..., off: bool = ...) -> None: ...

class FetchSegmentRequest(_message.Message):
    __slots__ = ("namespace", "name", "offset")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    offset: int
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class FetchSegmentReply(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class DeletionReceipt(_message.Message):
    __slots__ = ("acknowledged", "silent")
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    acknowledged: _containers.RepeatedCompositeFieldContainer[FollowerName]
    silent: _containers.RepeatedCompositeFieldContainer[FollowerName]
    def __init__(self, acknowledged: _Optional[_Iterable[_Union[FollowerName, _Mapping]]] = ..., silent: _Optional[_Iterable[_Union[FollowerName, _Mapping]]] = ...) -> None: ...

class FollowerName(_message.Message):
    __slots__ = ("follower_id", "description")
    FOLLOWER_ID_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    follower_id: str
    description: str
    def __init__(self, follower_id: _Optional[str] = ..., description: _Optional[str] = ...) -> None: ...

class FollowerStats(_message.Message):
    __slots__ = ("follower_id", "description", "namespaces", "connected", "applied_lsn", "lag", "silent_seconds", "held_bytes", "mapped_bytes", "live_lost", "live_queued_bytes", "unacknowledged_tokens")
    FOLLOWER_ID_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    APPLIED_LSN_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    SILENT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAPPED_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIVE_LOST_FIELD_NUMBER: _ClassVar[int]
    LIVE_QUEUED_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNACKNOWLEDGED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    follower_id: str
    description: str
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    connected: bool
    applied_lsn: int
    lag: int
    silent_seconds: float
    held_bytes: int
    mapped_bytes: int
    live_lost: int
    live_queued_bytes: int
    unacknowledged_tokens: int
    def __init__(self, follower_id: _Optional[str] = ..., description: _Optional[str] = ..., namespaces: _Optional[_Iterable[str]] = ..., connected: bool = ..., applied_lsn: _Optional[int] = ..., lag: _Optional[int] = ..., silent_seconds: _Optional[float] = ..., held_bytes: _Optional[int] = ..., mapped_bytes: _Optional[int] = ..., live_lost: _Optional[int] = ..., live_queued_bytes: _Optional[int] = ..., unacknowledged_tokens: _Optional[int] = ...) -> None: ...
