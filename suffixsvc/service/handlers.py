"""Request handlers of all service methods, without gRPC: a message and its caller in, a message out.

Stream messages, unary calls and the client's fake transport use the same functions. Each checks the rights of
its caller before it looks at anything else (docs/security.md has the table).
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import uuid
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from suffixsvc import __version__
from suffixsvc.access.caller import Caller
from suffixsvc.access.principals import Right
from suffixsvc.access.refusals import Refusals
from suffixsvc.config import Limits, is_at_or_above, validate_namespace
from suffixsvc.core import Refusal
from suffixsvc.errors import InvalidInputError, LimitExceededError, StoreError, unknown_namespace
from suffixsvc.runtime.background import PeriodicTask
from suffixsvc.runtime.log_output import dropped_lines
from suffixsvc.service.calls.call_counts import CallCounts
from suffixsvc.service.calls.large_messages import LargeMessages
from suffixsvc.service.exports import Exports
from suffixsvc.service.followers.service import LEASE_SECONDS, FollowerService
from suffixsvc.service.messages import converters
from suffixsvc.service.messages.converters import shared_fields
from suffixsvc.service.messages.elements import read_message_id, too_many_error
from suffixsvc.service.messages.errors import error_detail, shutting_down_error
from suffixsvc.service.messages.requests import MIN_STEP_LIMIT, STEPS_REMEDY, request_readers
from suffixsvc.service.sessions.registry import SessionRegistry
from suffixsvc.service.writes import Writes
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import watch_pb2

if TYPE_CHECKING:
    from suffixsvc.engine import CacheStats, ExportJob, Namespace, NamespaceStats, SuffixCache

FEATURES = ("stream", "step-batch", "resume", "export-ngrams", "watch", "backup")
#: bytes of token ids from which a prompt or context is a large message: 16,384 tokens
_HUGE_BYTES: Final = 64 << 10
#: of the statistics of a namespace, those in which the rates of other namespaces show
_OF_THE_SERVICE: Final = ("last_lsn", "store_bytes")
#: of the statistics of a namespace with ``min_principals``, those that readers without a full grant get
_PUBLISHED: Final = ("min_principals", "published_runs", "published_tokens", "last_published")


class Handlers:
    """The methods of suffixsvc.v1.SuffixCache over one embedded engine. Thread-safe; raises SuffixError."""

    def __init__(
        self,
        cache: SuffixCache,
        limits: Limits,
        *,
        durable: bool,
        lease_seconds: float = LEASE_SECONDS,
        refusals: Refusals | None = None,
    ) -> None:
        self._cache = cache
        self._limits = limits
        self._durable = durable
        self.instance_id = str(uuid.uuid4())
        self.sessions = SessionRegistry(cache, limits)
        self.followers = FollowerService(cache, self.sessions.table, limits, self.instance_id, lease_seconds)
        #: readers of the requests, by the name of a method
        self.readers = request_readers(limits)
        #: the server's tasks, for the statistics
        self.background_tasks: Sequence[PeriodicTask] = ()
        #: of the server's access control, for the statistics
        self.refusals = Refusals() if refusals is None else refusals
        #: ended calls of the server, for the metrics
        self.calls = CallCounts()
        self._draining = False
        self._exports = Exports()
        self._large_messages = LargeMessages()
        self._writes = Writes(cache, self.followers, limits, self._large_messages)

    def of(self, method: str) -> Any:
        """The handler of a method by its name in the protocol, as in "OpenSession"."""
        return getattr(self, re.sub(r"\B(?=[A-Z])", "_", method).lower())

    def start_draining(self) -> None:
        """Refuse stream messages from now on."""
        self._draining = True
        self.followers.drain()
        self.sessions.table.dispatcher.close()

    def refuse_while_draining(self) -> None:
        """Raise ServiceUnavailableError after :meth:`start_draining`."""
        if self._draining:
            raise shutting_down_error("Connect again; sessions can be resumed.")

    # ----------------------------------------------------------------------------------------- sessions

    def open_session(self, request: pb.OpenSessionRequest, caller: Caller) -> pb.OpenSessionReply:
        """Open a session, or find the live one of the same id, namespace and prompt."""
        if len(request.prompt_token_ids) + len(request.output_token_ids) < _HUGE_BYTES:
            return self.sessions.open(request, caller)
        with self._large_messages.in_progress(caller.principal, request.ByteSize()):
            return self.sessions.open(request, caller)

    def step(self, request: pb.StepRequest, caller: Caller) -> pb.StepReply:
        """Append tokens to a session and draft."""
        [answer] = self.sessions.steps.take([request], caller)
        if isinstance(answer, Exception):
            raise answer
        return pb.StepBatchReply.FromString(answer).items[0].reply

    def append_context(self, request: pb.AppendContextRequest, caller: Caller) -> pb.AppendContextReply:
        """Append tokens that the model did not write to a session."""
        if len(request.token_ids) < _HUGE_BYTES:
            return self.sessions.append_context(request, caller)
        with self._large_messages.in_progress(caller.principal, request.ByteSize()):
            return self.sessions.append_context(request, caller)

    def close_session(self, request: pb.CloseSessionRequest, caller: Caller) -> pb.CloseSessionReply:
        """End a session; commit or discard its output."""
        output_id = self.sessions.close(
            caller.session(converters.checked_session_id(request.session_id)),
            commit=not request.discard,
            incomplete=request.incomplete,
            wait=not request.no_wait,
        )
        return pb.CloseSessionReply(session_id=request.session_id, output_id=output_id)

    # --------------------------------------------------------------------------------------- the stream

    def message(self, request: pb.StreamRequest, caller: Caller) -> pb.StreamReply:
        """Answer one stream message. Errors are part of the reply: they must not end the stream."""
        return pb.StreamReply.FromString(self.message_bytes(request.SerializeToString(), caller))

    def message_bytes(self, data: bytes, caller: Caller) -> bytes:
        """Answer a serialised stream message; the core answers plain steps without protobuf objects.

        Returns:
            The serialised reply; empty for a message that wants none.

        Raises:
            What :meth:`answer_remaining` raises.
        """
        try:
            caller.admit(data)
        except LimitExceededError as error:
            return _refused_message(data, error)
        answered = self.sessions.table.dispatcher.answer(data, time.monotonic(), caller.scope)
        return answered if isinstance(answered, bytes) else self.answer_remaining(data, answered, caller)

    def answer_remaining(
        self, data: bytes, answered: Sequence[bytes | Refusal] | None, caller: Caller
    ) -> bytes:
        """Answer a message that the dispatcher did not answer, or a batch of which it refused steps.

        Args:
            answered: for each step the dispatcher's answer or refusal; None if it left the whole message.

        Raises:
            InvalidInputError: ``data`` is not a StreamRequest.
            ServiceUnavailableError: the service is draining, and refuses whole messages.
        """
        if answered is None:
            self.refuse_while_draining()
        try:
            request = self.readers["Stream"](data)
        except LimitExceededError as error:
            return _refused_message(data, error)
        if answered is None:
            reply = self._reply(request, caller)
        else:
            steps = request.steps.items
            taken = zip(steps, answered, strict=True)
            reply = _batch_reply(steps, (self.sessions.steps.answer(*each, caller) for each in taken))
        if request.no_reply:
            return b""
        reply.id = request.id
        return reply.SerializeToString()

    def _reply(self, request: pb.StreamRequest, caller: Caller) -> pb.StreamReply:
        try:
            return self._handle(request, caller)
        except Exception as error:
            return pb.StreamReply(error=error_detail(error, "stream message"))

    def _handle(self, request: pb.StreamRequest, caller: Caller) -> pb.StreamReply:
        match request.WhichOneof("request"):
            case "open":
                return pb.StreamReply(open=self.open_session(request.open, caller))
            case "append_context":
                return pb.StreamReply(append_context=self.append_context(request.append_context, caller))
            case "close":
                return pb.StreamReply(close=self.close_session(request.close, caller))
            case "steps":
                steps = request.steps.items
                # one for each possible session; up to MIN_STEP_LIMIT steps fail one by one
                most = max(self._limits.max_sessions, MIN_STEP_LIMIT)
                if len(steps) > most:
                    raise too_many_error("steps", most, len(steps), STEPS_REMEDY)
                return _batch_reply(steps, self.sessions.steps.take(steps, caller))
        raise InvalidInputError(
            "a stream message must hold a request",
            expected="open, steps, append_context or close",
            got="none",
        )

    # --------------------------------------------------------------------------------------------- bulk

    def add_outputs(self, requests: Iterable[pb.AddOutputsRequest], caller: Caller) -> pb.AddOutputsReply:
        """Store outputs, each message as a whole or not at all; an error says how many were stored."""
        return self._writes.add_outputs(requests, caller)

    def export_ngrams(
        self, request: pb.ExportNgramsRequest, caller: Caller, job: ExportJob | None = None
    ) -> Generator[pb.ExportNgramsReply, None, None]:
        """Count n-grams of a namespace; yields a summary, then the files in pieces.

        Raises:
            UnknownNamespaceError, TokenizerMismatchError, InvalidInputError.
            LimitExceededError: another export is counting, or MAX_EXPORTS are being read.
            PermissionDeniedError: the caller may not copy the namespace.
            ServiceUnavailableError: ``job`` was cancelled.
            StoreError: the log or the temporary folder failed.
        """
        caller.require(Right.FOLLOW, request.namespace)
        self._require_namespace(request.namespace)
        namespace = self._cache.namespace(request.namespace, request.tokenizer, bind=False)
        yield from self._exports.export(namespace, request, job)

    def delete(self, request: pb.DeleteRequest, caller: Caller) -> pb.DeleteReply:
        """Delete what a selection takes; the reply says which followers have applied the deletion."""
        return self._writes.delete(request, caller)

    def delete_namespace(self, request: pb.DeleteNamespaceRequest, caller: Caller) -> pb.DeleteNamespaceReply:
        """Delete a namespace with its outputs; the reply has their number, and a receipt as of Delete."""
        return self._writes.delete_namespace(request, caller)

    def fetch_segment(
        self, request: watch_pb2.FetchSegmentRequest, caller: Caller
    ) -> Generator[watch_pb2.FetchSegmentReply, None, None]:
        """A segment file of a namespace's manifest, in pieces; without a full grant, of what it publishes."""
        publishes = self._cache.feed.publishes(request.namespace) and not caller.sees_all(request.namespace)
        if publishes and caller.may(Right.READ, request.namespace):
            validate_namespace(request.namespace)
            return self.followers.fetch_published(request)
        caller.require(Right.FOLLOW, request.namespace)
        self._require_namespace(request.namespace)
        return self.followers.fetch_segment(request)

    def backup(self, request: pb.BackupRequest, caller: Caller) -> Generator[pb.BackupReply, None, None]:
        """Write a backup of the data folder; yields its progress, then a summary.

        Raises:
            InvalidInputError: the path is not absolute, or the folder has content.
            InvalidConfigError: the cache is in memory.
            PermissionDeniedError: the caller may not administer every namespace.
            ServiceUnavailableError: the service drains.
            StoreError: nothing was written.
        """
        caller.require_everywhere(Right.ADMIN, "a backup of the service")
        folder = os.fsdecode(request.folder)
        if not os.path.isabs(folder) or "\0" in folder:
            raise InvalidInputError("folder must be an absolute path", got=ascii(folder)[:200])
        writer = self._cache.begin_backup(folder, copy_segments=request.copy_segments)
        with contextlib.closing(writer.run()) as steps:
            for step in steps:
                self.refuse_while_draining()
                yield pb.BackupReply(progress=pb.BackupProgress(outputs=step.outputs, total=step.total))
        if writer.manifest is not None:
            yield pb.BackupReply(summary=converters.backup_to_proto(writer.manifest))

    # ------------------------------------------------------------------------------------------- queries

    def list_namespaces(self, request: pb.ListNamespacesRequest, caller: Caller) -> pb.ListNamespacesReply:
        """The namespaces at or below a path that the caller has a right on.

        Paths are compared by components: a/bc is not below a/b.
        """
        prefix = request.prefix.rstrip("/")
        reply = pb.ListNamespacesReply()
        for record in self._cache.namespaces():
            if is_at_or_above(prefix, record.path) and caller.may_see(record.path):
                namespace = self._cache.find_namespace(record.path)
                if namespace is None:  # deleted since, or its deletion has begun
                    continue
                may_count = caller.may(Right.READ, record.path) and not namespace.restricts(caller.sees_all)
                counts = shared_fields(pb.NamespaceInfo, namespace.stats()) if may_count else {}
                reply.namespaces.add(path=record.path, tokenizer=record.tokenizer, **counts)
        return reply

    def get_stats(
        self,
        request: pb.GetStatsRequest,
        caller: Caller,
        namespaces: Mapping[str, NamespaceStats] | None = None,
    ) -> pb.GetStatsReply:
        """Statistics of one namespace, or of the whole service if none is named.

        Args:
            namespaces: see ``SuffixCache.stats``.
        """
        if request.namespace:
            caller.require(Right.READ, request.namespace)
            namespace = self._require_namespace(request.namespace)
            reply = _stats_reply(namespace.stats())
            if namespace.restricts(caller.sees_all):
                return pb.GetStatsReply(**{name: getattr(reply, name) for name in _PUBLISHED})
            reply.followers.extend(self.followers.stats(request.namespace, caller))
            if not caller.may_everywhere(Right.ADMIN):
                for shared in _OF_THE_SERVICE:
                    reply.ClearField(shared)
            return reply
        caller.require_everywhere(
            Right.ADMIN, "statistics of the whole service", instead="Ask for those of one namespace."
        )
        reply = _stats_reply(self._cache.stats(namespaces))
        reply.followers.extend(self.followers.stats("", caller))
        with contextlib.suppress(StoreError):  # their first count reads the log; store_failing tells the rest
            for name, held in sorted(self._cache.principal_stats().items()):
                reply.principals.add(principal=name, **shared_fields(pb.PrincipalStats, held))
        for probes in self.sessions.probes.stats():
            reply.probes.add(**shared_fields(pb.ProbeStats, probes))
        for refused in self.refusals.stats():
            reply.refusals.add(**refused._asdict())
        reply.unkept_sessions = len(self.sessions.failed_closes)
        reply.lost_sessions = self.sessions.failed_closes.lost
        reply.store_failing = self._cache.durability() is not None
        reply.live_lost = self.followers.registry.live_lost
        reply.dropped_log_lines = dropped_lines()
        tasks = {task.name: task.stats() for task in self.background_tasks} | self._cache.background_tasks()
        reply.background_tasks.extend(converters.task_to_proto(*task) for task in tasks.items())
        return reply

    def get_server_info(self, _request: pb.GetServerInfoRequest, _caller: Caller) -> pb.GetServerInfoReply:
        """Version, limits and instance id, and why the store is failing if it is."""
        failure = self._cache.durability()
        return pb.GetServerInfoReply(
            store_failure=None if failure is None else error_detail(failure, "the store"),
            version=__version__,
            instance_id=self.instance_id,
            durable=self._durable,
            features=FEATURES,
            **shared_fields(pb.GetServerInfoReply, self._limits),
        )

    def _require_namespace(self, path: str) -> Namespace:
        """Raise UnknownNamespaceError instead of creating a namespace that is only queried."""
        namespace = self._cache.find_namespace(path)
        if namespace is None:
            raise unknown_namespace(path)
        return namespace


def _refused_message(data: bytes, error: LimitExceededError) -> bytes:
    """The reply to a message that is not parsed, because it is too large or comes too soon."""
    reply = pb.StreamReply(id=read_message_id(data), error=error_detail(error, "stream message"))
    return reply.SerializeToString()


def _batch_reply(steps: Sequence[pb.StepRequest], answers: Iterable[bytes | Exception]) -> pb.StreamReply:
    """The reply to a batch, in which an answer is a serialised StepBatchReply of one item."""
    reply = pb.StreamReply()
    reply.steps.SetInParent()
    for step, answer in zip(steps, answers, strict=True):
        if isinstance(answer, bytes):
            reply.steps.MergeFromString(answer)
        else:
            detail = error_detail(answer, "batch step")
            reply.steps.items.add(error=pb.StepError(session_id=step.session_id, seq=step.seq, error=detail))
    return reply


def _stats_reply(stats: CacheStats | NamespaceStats) -> pb.GetStatsReply:
    """The fields that reply and engine record share; the others stay 0."""
    shared = shared_fields(pb.GetStatsReply, stats)
    shared["expiry_grace_seconds"] = int(shared.get("expiry_grace_seconds", 0))
    return pb.GetStatsReply(**shared)
