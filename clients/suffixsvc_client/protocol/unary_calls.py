"""Unary calls that concern no session: their requests, checks and replies. Shared by both clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf.message import Message

from suffixsvc import wire
from suffixsvc.config import PROMPT_TAIL_TOKENS, validate_labels, validate_namespace, validate_uuid
from suffixsvc.errors import InvalidInputError, InvalidTokensError, SuffixError, UnknownNamespaceError
from suffixsvc.types import Labels, NamespaceRecord, NewOutput, OutputId, TokenIds
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.values import as_outputs, as_segment_lens, as_token_array
from suffixsvc_client.protocol.effects import DELETE_NAMESPACE, FORGET, NAMESPACES, SERVER_INFO, STATS, Method

__all__ = ["ServerInfo", "ServiceStats", "UnaryCall"]

UnaryCall = tuple[Method[Any, Any], Message]


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


def list_namespaces(prefix: str) -> UnaryCall:
    """Call for the namespaces at or below a path."""
    return NAMESPACES, pb.ListNamespacesRequest(prefix=prefix)


def get_stats(namespace: str) -> UnaryCall:
    """Call for the statistics of a namespace, or of the service if it is ""."""
    return STATS, pb.GetStatsRequest(namespace=namespace)


def get_server_info() -> UnaryCall:
    """Call for version and limits of the service."""
    return SERVER_INFO, pb.GetServerInfoRequest()


def forget(namespace: str, output_id: OutputId) -> UnaryCall:
    """Call that deletes an output. Raises InvalidInputError if ``output_id`` cannot be an id."""
    if isinstance(output_id, bool) or not isinstance(output_id, int) or not 0 <= output_id < 1 << 64:
        raise InvalidInputError("output_id must be an int of 64 bits >= 0", got=repr(output_id)[:80])
    return FORGET, pb.ForgetRequest(namespace=namespace, output_id=output_id)


def delete_namespace(path: str, force: bool) -> UnaryCall:
    """Call that deletes a namespace. Raises InvalidNamespaceError."""
    request = pb.DeleteNamespaceRequest(namespace=validate_namespace(path), force=force)
    return DELETE_NAMESPACE, request


def namespaces(reply: pb.ListNamespacesReply) -> list[NamespaceRecord]:
    """The namespaces of a reply."""
    return [NamespaceRecord(info.path, info.tokenizer) for info in reply.namespaces]


def stats(reply: pb.GetStatsReply) -> ServiceStats:
    """The statistics of a reply."""
    values = {name: getattr(reply, name) for name in ServiceStats.__dataclass_fields__}
    values["background_tasks"] = tuple(map(_background_task, reply.background_tasks))
    return ServiceStats(**values)


def _background_task(task: pb.BackgroundTask) -> BackgroundTask:
    return BackgroundTask(**{name: getattr(task, name) for name in BackgroundTask.__dataclass_fields__})


def server_info(reply: pb.GetServerInfoReply) -> ServerInfo:
    """The service information of a reply."""
    return ServerInfo(
        version=reply.version,
        instance_id=reply.instance_id,
        max_message_bytes=reply.max_message_bytes,
        max_session_tokens=reply.max_session_tokens,
        max_draft_tokens=reply.max_draft_tokens,
        durable=reply.durable,
        features=tuple(reply.features),
        max_outputs_per_message=reply.max_outputs_per_message,
        max_segments_per_message=reply.max_segments_per_message,
        store_failure=wire.error_from_detail(reply.store_failure)
        if reply.HasField("store_failure")
        else None,
    )


def checked_tokenizer(fingerprint: str | None) -> str | None:
    """A tokenizer fingerprint. Raises InvalidInputError if it is not a string or None."""
    if fingerprint is not None and not isinstance(fingerprint, str):
        raise InvalidInputError(
            "tokenizer must be a fingerprint or None", expected="a string", got=type(fingerprint).__name__
        )
    return fingerprint


def new_output(
    namespace: str,
    token_ids: TokenIds,
    prompt_token_ids: TokenIds | None,
    labels: Labels | None,
    ttl_seconds: int,
) -> NewOutput:
    """One finished output as a record. Raises InvalidInputError."""
    tokens = as_token_array(token_ids)
    prompt = as_token_array([] if prompt_token_ids is None else prompt_token_ids, "prompt_token_ids")
    return NewOutput(
        namespace=namespace,
        token_ids=tokens,
        segment_lens=(len(tokens),),
        prompt_tail=prompt[-PROMPT_TAIL_TOKENS:],
        labels=validate_labels(labels),
        ttl_seconds=ttl_seconds,
    )


def checked_outputs(namespace: str, outputs: Sequence[NewOutput]) -> Sequence[NewOutput]:
    """Check outputs before anything is sent, with the errors of the embedded engine."""
    return [_checked_output(namespace, output) for output in as_outputs(outputs)]


def _checked_output(namespace: str, output: NewOutput) -> NewOutput:
    if output.namespace != namespace:
        raise UnknownNamespaceError(
            "namespace of an output must be this one", expected=namespace, got=output.namespace
        )
    tokens = as_token_array(output.token_ids)
    if len(tokens) == 0:
        raise InvalidTokensError("token_ids must not be empty", expected="at least one token", got=0)
    ttl = output.ttl_seconds
    if isinstance(ttl, bool) or not isinstance(ttl, int) or not 0 <= ttl < 1 << 63:
        raise InvalidInputError("ttl_seconds must be an int >= 0", got=repr(ttl)[:80])
    return replace(
        output,
        token_ids=tokens,
        segment_lens=as_segment_lens(output.segment_lens),
        prompt_tail=as_token_array(output.prompt_tail, "prompt_tail"),
        labels=validate_labels(output.labels),
        uuid=validate_uuid(output.uuid) if output.uuid else b"",
    )
