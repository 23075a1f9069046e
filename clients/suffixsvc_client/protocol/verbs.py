"""Verbs: the calls of client, namespace and session as procedures, written once for both clients.

A verb checks its arguments and returns a procedure. The blocking client runs it in the calling thread, the
asyncio client awaits it; :mod:`suffixsvc_client.handles` binds the verbs to their classes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import IO, Any, Final, Generic, Protocol, TypeVar

from suffixsvc.config import PROMPT_TAIL_TOKENS, validate_labels, validate_namespace, validate_uuid
from suffixsvc.errors import InvalidInputError, InvalidTokensError, UnknownNamespaceError
from suffixsvc.lookup_records import RecordFile
from suffixsvc.selection import Selection
from suffixsvc.types import (
    DeletedOutputs,
    Deletion,
    Draft,
    Labels,
    NamespaceRecord,
    NewOutput,
    OutputId,
    TokenIds,
)
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.values import as_int, as_outputs, as_segment_lens, as_token_array
from suffixsvc.wire import selection_to_proto
from suffixsvc_client.protocol import bulk
from suffixsvc_client.protocol.effects import Call, Procedure
from suffixsvc_client.protocol.procedures import Procedures
from suffixsvc_client.protocol.replies import (
    BackupSummary,
    NamespaceSummary,
    ServerInfo,
    ServiceStats,
    backup_summary,
    deletion,
    deletion_receipt,
    namespace_summaries,
    server_info,
    service_stats,
)
from suffixsvc_client.protocol.session_state import SessionState
from suffixsvc_client.protocol.session_values import mismatch
from suffixsvc_client.protocol.session_verbs import SessionVerbs

S = TypeVar("S")

#: longest wait for an erasure from the disk
ERASE_TIMEOUT_S: Final = 3600.0


class NamespaceVerbs(Generic[S]):
    """The verbs of one namespace.

    Args:
        new_session: makes the client's session of its verbs.
    """

    def __init__(
        self,
        procedures: Procedures,
        path: str,
        tokenizer: str | None,
        new_session: Callable[[SessionVerbs], S],
    ) -> None:
        if tokenizer is not None and not isinstance(tokenizer, str):
            raise InvalidInputError(
                "tokenizer must be a fingerprint or None", expected="a string", got=type(tokenizer).__name__
            )
        self._procedures = procedures
        self.path = validate_namespace(path)
        self._tokenizer = tokenizer or ""
        self._new_session = new_session

    def open_session(
        self,
        prompt_token_ids: TokenIds,
        output_token_ids: TokenIds | None = None,
        labels: Labels | None = None,
        reads: Sequence[str] | None = None,
        session_id: str = "",
        *,
        follower_id: str = "",
        private: bool = False,
    ) -> Procedure[S]:
        """Begin a generation. If the service cannot be reached, the session is opened later, and its drafts
        are empty until then.

        Args:
            prompt_token_ids: int32[n] or a sequence of ints.
            output_token_ids: tokens that the model has already written, in the same shape; they resume a
                generation without becoming prompt.
            labels: stored with the output, e.g. {"agent": .., "session": .., "principal": ..}.
            reads: paths of other namespaces to draft from; output is stored in this one only.
            session_id: id at the service, unused so far, such as a UUID; "" = one is chosen.
            follower_id: of the follower that drafts for the session (``suffixsvc_follower``): the service
                learns nothing from its tokens, and does not send them back to it.
            private: the service drafts for the session, but no other session drafts from what it writes, and
                closing it stores nothing. Its text is sent to the service all the same: only a follower
                (``suffixsvc_follower``) drafts without that.

        Raises:
            InvalidTokensError, InvalidLabelsError, InvalidNamespaceError: nothing was sent.
            LimitExceededError, TokenizerMismatchError, UnknownNamespaceError (in ``reads``): the service
            refuses. ServiceUnavailableError: the client is closed.
        """
        state = SessionState(
            self.path,
            self._tokenizer,
            prompt_token_ids,
            output_token_ids,
            labels,
            reads,
            session_id,
            follower_id=follower_id,
            private=private,
        )
        yield from self._procedures.open(state)
        return self._new_session(SessionVerbs(self._procedures, state))

    def add_output(
        self,
        token_ids: TokenIds,
        prompt_token_ids: TokenIds | None = None,
        labels: Labels | None = None,
        ttl_seconds: int = 0,
    ) -> Procedure[OutputId]:
        """Store one finished output; returns once it is durable.

        Args:
            token_ids: what the model wrote, int32[n] or a sequence of ints, n >= 1.
            prompt_token_ids: the tokens before it, in the same shape; only their end is stored, as context.
            labels: stored with the output.
            ttl_seconds: time to live; 0 = unlimited.

        Returns:
            The output's id, for :meth:`delete`.

        Raises:
            InvalidInputError: an argument is wrong; nothing was sent.
            What :meth:`add_outputs` raises.
        """
        tokens = as_token_array(token_ids)
        prompt = as_token_array([] if prompt_token_ids is None else prompt_token_ids, "prompt_token_ids")
        tail = prompt[-PROMPT_TAIL_TOKENS:]
        output = NewOutput(self.path, tokens, (len(tokens),), tail, labels or {}, ttl_seconds=ttl_seconds)
        [output_id] = yield from self.add_outputs([output])
        return output_id

    def add_outputs(self, outputs: Sequence[NewOutput]) -> Procedure[list[OutputId]]:
        """Store finished outputs; returns once they are durable.

        They are sent in messages of about 1 MiB that respect the service's limits on outputs and runs
        (:meth:`SuffixClient.server_info`). Each message is stored as a whole or not at all; an error of the
        service says how many outputs were stored.

        Args:
            outputs: of this namespace, each a ``suffixsvc.NewOutput`` with at least one token (example:
                docs/protocol.md). An output with a ``uuid`` can be sent again if the answer was lost: it is
                stored once.

        Returns:
            An id per output, in order.

        Raises:
            InvalidInputError (an element is not a NewOutput, or has a wrong field),
            UnknownNamespaceError (an output of another namespace): nothing was sent. InvalidInputError also
            if a ``uuid`` names other tokens already: nothing of its message was stored.
            LimitExceededError, TokenizerMismatchError, StoreError: the service refuses the rest.
            ServiceError: no answer within ``ClientConfig.call_timeout_s``; any number may have been stored.
            They can be sent again if each has a ``uuid``.
        """
        checked = [self._checked_output(output) for output in as_outputs(outputs)]
        limits = bulk.MessageLimits()
        if len(checked) > 1:  # a single output is a single message, whatever the limits
            limits = bulk.message_limits((yield self._procedures.call(pb.GetServerInfoRequest())))
        requests = list(bulk.upload_messages(self.path, self._tokenizer, checked, limits))
        reply = yield self._procedures.call(requests)
        if len(reply.output_ids) != len(checked):
            raise mismatch(f"{len(checked)} output ids", len(reply.output_ids))
        return list(reply.output_ids)

    def _checked_output(self, output: NewOutput) -> NewOutput:
        """Check an output before anything is sent, with the errors of the embedded engine."""
        if output.namespace != self.path:
            raise UnknownNamespaceError(
                "namespace of an output must be this one", expected=self.path, got=output.namespace
            )
        tokens = as_token_array(output.token_ids)
        if len(tokens) == 0:
            raise InvalidTokensError("token_ids must not be empty", expected="at least one token", got=0)
        return replace(
            output,
            token_ids=tokens,
            segment_lens=as_segment_lens(output.segment_lens),
            prompt_tail=as_token_array(output.prompt_tail, "prompt_tail"),
            labels=validate_labels(output.labels),
            ttl_seconds=as_int("ttl_seconds", output.ttl_seconds, 0, (1 << 63) - 1),
            uuid=validate_uuid(output.uuid) if output.uuid else b"",
        )

    def export_ngrams(
        self,
        wanted: Sequence[RecordFile],
        sinks: Sequence[IO[bytes]],
        *,
        context_tokens: int = 0,
        timeout_s: float = 3600.0,
    ) -> Procedure[bulk.ExportSummary]:
        """Count the namespace's n-grams on the service and write records of llama.cpp's lookup caches.

        Args:
            wanted: which n-grams to count, one file each.
            sinks: files opened for writing bytes, one for each of ``wanted``.
            context_tokens: tokens of each stored prompt tail in which n-grams may begin, at most 64.
            timeout_s: for counting and sending.

        Raises:
            UnknownNamespaceError, TokenizerMismatchError, InvalidInputError: nothing was written.
            LimitExceededError: the service is busy with another export.
            StoreError, ServiceError: the files are incomplete.
        """
        request = bulk.export_request(self.path, self._tokenizer, wanted, context_tokens)
        sink = bulk.ExportSink(sinks)
        yield Call(request, timeout_s, sink.take)
        return sink.summary()

    def delete(
        self,
        *,
        output_ids: Sequence[OutputId] | None = None,
        session_id: str = "",
        labels: Labels | None = None,
        principal: str | None = None,
        older_than_seconds: float | None = None,
        superseded: bool = False,
    ) -> Procedure[Deletion]:
        """Delete what meets every given criterion; without one, every output and the text of live sessions.

        See :meth:`ClientVerbs.delete`; the criteria are those of ``suffixsvc.Selection``. Ids of outputs that
        do not exist are ignored.

        Raises:
            UnknownNamespaceError: this namespace does not exist.
            InvalidInputError: a criterion is malformed; nothing was sent.
            StoreError: a part may be deleted; repeat the call. ServiceError: no answer within
            ``ClientConfig.call_timeout_s``; it may be deleted.
        """
        selection = Selection(self.path, output_ids, session_id, labels or {}, principal, older_than_seconds)
        request = pb.DeleteRequest(selection=selection_to_proto(selection), superseded=superseded)
        return deletion((yield self._procedures.call(request)))

    def stats(self) -> Procedure[ServiceStats]:
        """Contents and counters of this namespace since the service started.

        Raises:
            UnknownNamespaceError: it does not exist on the service yet.
            ServiceError: no answer within ``ClientConfig.call_timeout_s``.
        """
        reply = yield self._procedures.call(pb.GetStatsRequest(namespace=self.path))
        return service_stats(reply)


class HasSessionVerbs(Protocol):
    """A session of either client."""

    @property
    def verbs(self) -> SessionVerbs:
        """Its verbs."""


class ClientVerbs:
    """The verbs of one client."""

    def __init__(self, procedures: Procedures) -> None:
        self.procedures = procedures

    def step_many(self, steps: Sequence[tuple[HasSessionVerbs, dict[str, Any]]]) -> Procedure[list[Draft]]:
        """A step of many sessions in one message, for engines with continuous batching.

        Args:
            steps: (session, keyword arguments of its ``step``), each session at most once.

        Returns:
            A draft per step, in order. An error of one session empties its own draft only.

        Raises:
            What :meth:`ClientSession.step` raises for wrong arguments; nothing is then sent, but the tokens
            of the steps before the wrong one are recorded and sent with the next message.
        """
        states = [(session.verbs.state, arguments) for session, arguments in steps]
        return self.procedures.steps([(state, state.record_step(**given)) for state, given in states])

    def post_many(self, sessions: Sequence[HasSessionVerbs]) -> Procedure[None]:
        """Send the tokens that the sessions have recorded without waiting for an answer, in one message."""
        return self.procedures.post([session.verbs.state for session in sessions])

    def flush_many(self, sessions: Sequence[HasSessionVerbs], timeout_s: float) -> Procedure[None]:
        """Send what the sessions have recorded in one message, and wait until the service has it.

        Args:
            timeout_s: longest time. Errors of the service are not raised; what it does not have is sent again
                with the next message.
        """
        states = [session.verbs.state for session in sessions]
        yield from self.procedures.steps([(state, state.record_step((), 0)) for state in states], timeout_s)

    def namespaces(self, prefix: str = "") -> Procedure[list[NamespaceRecord]]:
        """The service's namespaces at or below the path ``prefix``, ordered by path; all if it is "".

        Raises:
            ServiceError: no answer within ``ClientConfig.call_timeout_s``.
        """
        reply = yield self.procedures.call(pb.ListNamespacesRequest(prefix=prefix))
        return [NamespaceRecord(info.path, info.tokenizer) for info in reply.namespaces]

    def namespace_summaries(self, prefix: str = "") -> Procedure[list[NamespaceSummary]]:
        """As :meth:`namespaces`, with contents and counters of each.

        Raises:
            ServiceError: no answer within ``ClientConfig.call_timeout_s``.
        """
        return namespace_summaries((yield self.procedures.call(pb.ListNamespacesRequest(prefix=prefix))))

    def delete(
        self,
        selection: Selection,
        *,
        superseded: bool = False,
        from_disk: bool = False,
        timeout_s: float | None = None,
    ) -> Procedure[Deletion]:
        """Delete the outputs, and retract the text of the live sessions, that a selection takes.

        See ``suffixsvc.SuffixCache.delete`` for its two stages.

        Args:
            superseded: the text is part of other outputs: nothing is unlearned or erased from the disk.
            from_disk: return when no file of the service's data folder holds what was deleted.
            timeout_s: None: an hour with ``from_disk``, else ``ClientConfig.call_timeout_s``.

        Returns:
            The numbers of outputs and sessions, and which followers of their namespaces draft from them no
            longer, and which did not answer within a second.

        Raises:
            UnknownNamespaceError: the namespace of the selection does not exist.
            StoreError: a part may be deleted; repeat the call. ServiceError: no answer in time; it may be
            deleted.
        """
        request = pb.DeleteRequest(
            selection=selection_to_proto(selection), superseded=superseded, from_disk=from_disk
        )
        default = ERASE_TIMEOUT_S if from_disk else self.procedures.config.call_timeout_s
        reply = yield Call(request, default if timeout_s is None else timeout_s)
        return deletion(reply)

    def delete_namespace(self, path: str, *, force: bool = False) -> Procedure[DeletedOutputs]:
        """Delete a namespace with everything in it.

        Args:
            force: delete it even with live sessions, whose output is discarded.

        Returns:
            The number of its outputs, an int. Its attribute ``receipt`` says which followers of the namespace
            draft from it no longer, as the result of :meth:`delete` does.

        Raises:
            UnknownNamespaceError: it does not exist. NamespaceInUseError: it has live sessions.
            InvalidInputError: ``path`` is malformed, or every session reads it by default.
            StoreError: a part may be left, which cannot be read; repeat the call. ServiceError: no answer
            within ``ClientConfig.call_timeout_s``; it may be deleted.
        """
        request = pb.DeleteNamespaceRequest(namespace=validate_namespace(path), force=force)
        reply = yield self.procedures.call(request)
        return DeletedOutputs(reply.outputs, deletion_receipt(reply.receipt))

    def stats(self) -> Procedure[ServiceStats]:
        """Contents and counters of the service since it started, summed over all namespaces.

        Raises:
            ServiceError: no answer within ``ClientConfig.call_timeout_s``.
        """
        return service_stats((yield self.procedures.call(pb.GetStatsRequest())))

    def backup(
        self,
        folder: str | os.PathLike[str],
        *,
        copy_segments: bool = False,
        progress: Callable[[int, int], None] = lambda outputs, total: None,
        timeout_s: float = 86_400.0,
    ) -> Procedure[BackupSummary]:
        """Write a backup of the service's data folder, on its host and as its user, while it goes on.

        Args:
            folder: absolute path on the service's host: does not exist, or is empty; its parent exists.
            copy_segments: copy segment files instead of linking to them, which is done where the file system
                allows it.
            progress: called with (outputs so far, outputs in all).
            timeout_s: for the whole backup.

        Raises:
            InvalidInputError: the folder has content, its path is not absolute, or the service is on another
                host.
            LimitExceededError: the service is writing another backup.
            StoreError, ServiceError: there is no backup.
        """
        summary: list[pb.BackupSummary] = []

        def take(reply: pb.BackupReply) -> None:
            if reply.WhichOneof("part") == "summary":
                summary.append(reply.summary)
            else:
                progress(reply.progress.outputs, reply.progress.total)

        request = pb.BackupRequest(folder=os.fsencode(folder), copy_segments=copy_segments)
        yield Call(request, timeout_s, take)
        if not summary:
            raise mismatch("a summary of the backup", "none")
        return backup_summary(summary[-1])

    def server_info(self) -> Procedure[ServerInfo]:
        """The service's version, limits (tokens and bytes) and the id of its current run.

        Raises:
            ServiceError: no answer within ``ClientConfig.call_timeout_s``.
        """
        return server_info((yield self.procedures.call(pb.GetServerInfoRequest())))
