"""Replies of queries as the client returns them. Shared by both clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import Message

from suffixsvc import wire
from suffixsvc.errors import SuffixError
from suffixsvc.types import Deletion, DeletionReceipt, FollowerName
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1.watch_pb2 import DeletionReceipt as DeletionReceiptMessage
from suffixsvc.v1.watch_pb2 import FollowerName as FollowerNameMessage

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Version, limits and state of a service. ``instance_id`` changes at every start."""

    version: str
    instance_id: str
    max_message_bytes: int
    max_session_tokens: int
    max_draft_tokens: int
    durable: bool
    features: tuple[str, ...]
    #: limit of one message of a bulk load, by which the client splits it; 0: not reported
    max_outputs_per_message: int = 0
    #: limit on the runs of output of one such message; 0: not reported
    max_segments_per_message: int = 0
    #: why the store is failing, if it is; the service drafts in either state
    store_failure: SuffixError | None = None


@dataclass(frozen=True, slots=True)
class BackgroundTask:
    """Results of one background task since the service started."""

    name: str
    #: successful runs
    runs: int
    failures: int
    #: 0: the last run succeeded
    failures_in_a_row: int
    #: seconds since the epoch; 0: no run has succeeded
    last_success: float
    last_error: str
    alive: bool


@dataclass(frozen=True, slots=True)
class FollowerStats:
    """A process that keeps a copy of namespaces of the service and drafts by itself."""

    follower_id: str
    description: str
    #: paths that it follows, at most 100; in the statistics of one namespace only that
    namespaces: tuple[str, ...]
    #: False: it may still draft from what it holds, until its lease is over
    connected: bool
    #: last LSN that it has applied; 0: none
    applied_lsn: int
    #: microseconds from there to the last LSN of the log
    lag: int
    #: time since its last report
    silent_seconds: float
    #: memory of the namespaces, without mapped segments, and bytes of these
    held_bytes: int
    mapped_bytes: int
    #: times that its live text was dropped because it did not keep up
    live_lost: int
    #: bytes of live text that wait to be sent to it
    live_queued_bytes: int
    #: tokens of its sessions that the service had not acknowledged when it reported
    unacknowledged_tokens: int


@dataclass(frozen=True, slots=True)
class PrincipalStats:
    """What a principal with a quota holds, in all namespaces together."""

    principal: str
    outputs: int
    #: bytes of the outputs, as the quota charges them
    held_bytes: int
    #: live sessions, and their memory
    sessions: int
    session_bytes: int
    #: limit of held_bytes and session_bytes together, and limit of outputs; 0: none
    limit_bytes: int
    limit_outputs: int
    #: since the service started: outputs evicted, and writes and sessions refused, because of the quota
    evicted_outputs: int
    refused: int


@dataclass(frozen=True, slots=True)
class ProbeStats:
    """How drafts of shared text are answered by what sessions of a principal append; since the start.

    Tokens are those of shared text (docs/security.md#probing).
    """

    principal: str
    #: drafts with such tokens, and the tokens
    drafts: int
    drafted_tokens: int
    #: of those that were answered, matches as their probabilities predicted, and matches
    expected_matches: float
    matched_tokens: int
    #: drafted tokens that nothing was appended after, and those that may be answered yet
    unanswered_tokens: int
    open_tokens: int
    #: because of the excess or of open tokens
    refused_steps: int
    #: tokens charged at present; above the limit of the principal steps are refused
    excess: float


@dataclass(frozen=True, slots=True)
class RefusalStats:
    """Messages and sessions of a principal that one of its limits refused since the service started."""

    principal: str
    #: its name in the policy file, such as "requests_per_second"; quotas are in :class:`PrincipalStats`
    limit: str
    refused: int


@dataclass(frozen=True, slots=True)
class ServiceStats:
    """Contents and counters of one namespace, or sums over all, since the service started."""

    outputs: int
    tokens: int
    sessions: int
    index_bytes: int
    index_nodes: int
    num_steps: int
    num_drafts: int
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
    expiry_grace_seconds: int = 0
    session_bytes: int = 0
    num_session_drafts: int = 0
    num_namespace_drafts: int = 0
    num_session_draft_tokens: int = 0
    num_namespace_draft_tokens: int = 0
    num_session_accepted_tokens: int = 0
    num_namespace_accepted_tokens: int = 0
    num_no_context: int = 0
    num_not_worth_cost: int = 0
    num_over_limit: int = 0
    num_off: int = 0
    expected_tokens: float = 0.0
    verify_steps: float = 0.0
    avoided_seconds: float = 0.0
    verify_seconds: float = 0.0
    #: principals that a published run of the namespace needs (docs/security.md); 0: none is published
    min_principals: int = 0
    published_runs: int = 0
    published_tokens: int = 0
    #: time of the last build of these runs, seconds since the epoch
    last_published: float = 0.0
    #: 1: the policy of the namespace turns drafting off; of the service: the number of such namespaces
    drafting_off: int = 0
    #: of the namespace, or of the whole service
    followers: tuple[FollowerStats, ...] = ()
    #: live sessions whose close failed; this field and all after it are of the whole service only
    unkept_sessions: int = 0
    #: sessions released without their output, because the store could not write it
    lost_sessions: int = 0
    #: whether writes are failing; the service drafts in either state
    store_failing: bool = False
    background_tasks: tuple[BackgroundTask, ...] = ()
    #: number of times the store was reopened after an I/O error
    store_reopened: int = 0
    #: unexpected exceptions in the store's thread; each is in the service's log
    store_defects: int = 0
    erasure_due: bool = False
    #: operations that wait for the store's thread
    store_queue: int = 0
    #: times that live text of a follower was dropped
    live_lost: int = 0
    #: log lines of the service that were dropped
    dropped_log_lines: int = 0
    principals: tuple[PrincipalStats, ...] = ()
    probes: tuple[ProbeStats, ...] = ()
    refusals: tuple[RefusalStats, ...] = ()


@dataclass(frozen=True, slots=True)
class NamespaceSummary:
    """A namespace in the list of all, with counters since the service started."""

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
    #: 1: the policy of the namespace turns drafting off
    drafting_off: int = 0


def namespace_summaries(reply: pb.ListNamespacesReply) -> list[NamespaceSummary]:
    """The namespaces of a reply."""
    return [_record(NamespaceSummary, info) for info in reply.namespaces]


@dataclass(frozen=True, slots=True)
class BackupSummary:
    """A complete backup: the log as of an LSN, totals, and the bytes of its files."""

    lsn: int
    namespaces: int
    outputs: int
    tokens: int
    segments: int
    bytes: int


def service_stats(reply: pb.GetStatsReply) -> ServiceStats:
    """The statistics of a reply."""
    tasks = tuple(_record(BackgroundTask, task) for task in reply.background_tasks)
    followers = tuple(
        _record(FollowerStats, each, namespaces=tuple(each.namespaces)) for each in reply.followers
    )
    principals = tuple(_record(PrincipalStats, each) for each in reply.principals)
    return _record(
        ServiceStats,
        reply,
        background_tasks=tasks,
        followers=followers,
        principals=principals,
        probes=tuple(_record(ProbeStats, each) for each in reply.probes),
        refusals=tuple(_record(RefusalStats, each) for each in reply.refusals),
    )


def deletion_receipt(receipt: DeletionReceiptMessage) -> DeletionReceipt:
    """The receipt of a deletion."""

    def names(followers: Iterable[FollowerNameMessage]) -> tuple[FollowerName, ...]:
        return tuple(FollowerName(each.follower_id, each.description) for each in followers)

    return DeletionReceipt(names(receipt.acknowledged), names(receipt.silent))


def backup_summary(reply: pb.BackupSummary) -> BackupSummary:
    """The summary of a backup."""
    return _record(BackupSummary, reply)


def deletion(reply: pb.DeleteReply) -> Deletion:
    """The result of a deletion."""
    return Deletion(
        reply.outputs,
        reply.sessions,
        tuple(reply.namespaces),
        reply.from_disk,
        deletion_receipt(reply.receipt),
    )


def server_info(reply: pb.GetServerInfoReply) -> ServerInfo:
    """The service information of a reply."""
    failure = wire.error_from_detail(reply.store_failure) if reply.HasField("store_failure") else None
    return _record(ServerInfo, reply, features=tuple(reply.features), store_failure=failure)


def _record(kind: type[T], message: Message, **converted: Any) -> T:
    """A record of a message's fields, which have its names."""
    fields: Any = kind
    return kind(**{name: getattr(message, name) for name in fields.__dataclass_fields__} | converted)
