"""Request handlers of all service methods, without gRPC: a message in, a message out.

Stream messages, unary calls and the client's fake transport use the same functions.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
import time
import uuid
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suffixsvc import __version__
from suffixsvc.config import Limits, validate_namespace
from suffixsvc.core import Refusal
from suffixsvc.errors import InvalidInputError, LimitExceededError, SuffixError, unknown_namespace
from suffixsvc.lookup_records import RecordFile
from suffixsvc.runtime.background import PeriodicTask
from suffixsvc.service.followers.service import LEASE_SECONDS, FollowerService
from suffixsvc.service.messages import converters
from suffixsvc.service.messages.converters import shared_fields
from suffixsvc.service.messages.elements import read_message_id, too_many_error
from suffixsvc.service.messages.errors import error_detail, shutting_down_error
from suffixsvc.service.messages.requests import MIN_STEP_LIMIT, STEPS_REMEDY, request_readers
from suffixsvc.service.sessions.registry import SessionRegistry
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import watch_pb2

if TYPE_CHECKING:
    from suffixsvc.engine import CacheStats, ExportJob, NamespaceStats, SuffixCache

FEATURES = ("stream", "step-batch", "resume", "export-ngrams", "watch", "backup")
#: exports that are counted or read: each holds a thread, files and disk space while its client reads
MAX_EXPORTS = 4


class Handlers:
    """The methods of suffixsvc.v1.SuffixCache over one embedded engine. Thread-safe; raises SuffixError."""

    def __init__(
        self, cache: SuffixCache, limits: Limits, *, durable: bool, lease_seconds: float = LEASE_SECONDS
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
        self._draining = False
        #: counting takes memory and a core: one export at a time
        self._counting = threading.Semaphore(1)
        self._exporting = threading.Semaphore(MAX_EXPORTS)

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

    def open_session(self, request: pb.OpenSessionRequest) -> pb.OpenSessionReply:
        """Open a session, or find the live one of the same id, namespace and prompt."""
        return self.sessions.open(request)

    def step(self, request: pb.StepRequest) -> pb.StepReply:
        """Append tokens to a session and draft."""
        [answer] = self.sessions.steps.take([request])
        if isinstance(answer, Exception):
            raise answer
        return pb.StepBatchReply.FromString(answer).items[0].reply

    def append_context(self, request: pb.AppendContextRequest) -> pb.AppendContextReply:
        """Append tokens that the model did not write to a session."""
        return self.sessions.append_context(request)

    def close_session(self, request: pb.CloseSessionRequest) -> pb.CloseSessionReply:
        """End a session; commit or discard its output."""
        output_id = self.sessions.close(
            converters.checked_session_id(request.session_id),
            commit=not request.discard,
            incomplete=request.incomplete,
            wait=not request.no_wait,
        )
        return pb.CloseSessionReply(session_id=request.session_id, output_id=output_id)

    # --------------------------------------------------------------------------------------- the stream

    def message(self, request: pb.StreamRequest) -> pb.StreamReply:
        """Answer one stream message. Errors are part of the reply: they must not end the stream."""
        return pb.StreamReply.FromString(self.message_bytes(request.SerializeToString()))

    def message_bytes(self, data: bytes) -> bytes:
        """Answer a serialised stream message; the core answers plain steps without protobuf objects.

        Returns:
            The serialised reply; empty for a message that wants none.

        Raises:
            What :meth:`answer_remaining` raises.
        """
        answered = self.sessions.table.dispatcher.answer(data, time.monotonic())
        return answered if isinstance(answered, bytes) else self.answer_remaining(data, answered)

    def answer_remaining(self, data: bytes, answered: Sequence[bytes | Refusal] | None) -> bytes:
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
            refused = pb.StreamReply(id=read_message_id(data), error=error_detail(error, "stream message"))
            return refused.SerializeToString()
        if answered is None:
            reply = self._reply(request)
        else:
            steps = request.steps.items
            reply = _batch_reply(
                steps, starmap(self.sessions.steps.answer, zip(steps, answered, strict=True))
            )
        if request.no_reply:
            return b""
        reply.id = request.id
        return reply.SerializeToString()

    def _reply(self, request: pb.StreamRequest) -> pb.StreamReply:
        try:
            return self._handle(request)
        except Exception as error:
            return pb.StreamReply(error=error_detail(error, "stream message"))

    def _handle(self, request: pb.StreamRequest) -> pb.StreamReply:
        match request.WhichOneof("request"):
            case "open":
                return pb.StreamReply(open=self.open_session(request.open))
            case "append_context":
                return pb.StreamReply(append_context=self.append_context(request.append_context))
            case "close":
                return pb.StreamReply(close=self.close_session(request.close))
            case "steps":
                steps = request.steps.items
                # one for each possible session; up to MIN_STEP_LIMIT steps fail one by one
                most = max(self._limits.max_sessions, MIN_STEP_LIMIT)
                if len(steps) > most:
                    raise too_many_error("steps", most, len(steps), STEPS_REMEDY)
                return _batch_reply(steps, self.sessions.steps.take(steps))
        raise InvalidInputError(
            "a stream message must hold a request",
            expected="open, steps, append_context or close",
            got="none",
        )

    # --------------------------------------------------------------------------------------------- bulk

    def add_outputs(self, requests: Iterable[pb.AddOutputsRequest]) -> pb.AddOutputsReply:
        """Store outputs, each message as a whole or not at all; an error says how many were stored."""
        reply = pb.AddOutputsReply()
        try:
            for index, request in enumerate(requests):  # a message that is too large or late raises here
                self._add(request, reply, first=index == 0)
        except SuffixError as error:
            error.message += f" ({reply.outputs} outputs of this call were stored)"
            raise
        return reply

    def _add(self, request: pb.AddOutputsRequest, reply: pb.AddOutputsReply, *, first: bool) -> None:
        outputs = converters.new_outputs(request, self._limits)
        if outputs:
            namespace = self._cache.namespace(request.namespace, request.tokenizer, bind=False)
            reply.output_ids.extend(namespace.add_outputs(outputs))
            reply.outputs += len(outputs)
            reply.tokens += sum(len(output.token_ids) for output in outputs)
        elif not first:
            # Empty messages would extend a call's deadline without end. The first one may be empty: a client
            # without outputs to add sends one.
            raise InvalidInputError(
                "outputs must hold at least one output in every message after the first",
                expected="1 or more",
                got=0,
                remedy="End the call after the last output.",
            )

    def export_ngrams(
        self, request: pb.ExportNgramsRequest, job: ExportJob | None = None
    ) -> Generator[pb.ExportNgramsReply, None, None]:
        """Count n-grams of a namespace; yields a summary, then the files in pieces.

        Raises:
            UnknownNamespaceError, TokenizerMismatchError, InvalidInputError.
            LimitExceededError: another export is counting, or MAX_EXPORTS are being read.
            ServiceUnavailableError: ``job`` was cancelled.
        """
        self._require_namespace(request.namespace)
        namespace = self._cache.namespace(request.namespace, request.tokenizer, bind=False)
        with contextlib.ExitStack() as held:
            held.enter_context(_acquired(self._exporting, "too many exports are being read", MAX_EXPORTS))
            with (
                _acquired(self._counting, "another export is counting", 1),
                tempfile.TemporaryDirectory(prefix="suffixsvc-export-") as folder,
            ):
                wanted = [RecordFile(**shared_fields(pb.NgramFile, each)) for each in request.files]
                exported = namespace.export_ngrams(
                    wanted, Path(folder), context_tokens=request.context_tokens, job=job
                )
                # The files are unlinked before clients read them, so that a slow client cannot leak them.
                files = [held.enter_context(each.path.open("rb")) for each in exported.files]
            yield from converters.export_to_proto(exported, files, namespace.tokenizer)

    def forget(self, request: pb.ForgetRequest) -> pb.ForgetReply:
        """Delete one output; the reply says which followers have applied the deletion."""
        self._require_namespace(request.namespace)
        self._cache.namespace(request.namespace).forget(request.output_id)
        return pb.ForgetReply(receipt=self.followers.receipt(request.namespace))

    def delete_namespace(self, request: pb.DeleteNamespaceRequest) -> pb.DeleteNamespaceReply:
        """Delete a namespace with its outputs; the reply has their number, and a receipt as of Forget."""
        outputs = self._cache.delete_namespace(request.namespace, force=request.force)
        return pb.DeleteNamespaceReply(outputs=outputs, receipt=self.followers.receipt(request.namespace))

    def fetch_segment(
        self, request: watch_pb2.FetchSegmentRequest
    ) -> Generator[watch_pb2.FetchSegmentReply, None, None]:
        """A segment file of a namespace's manifest, in pieces."""
        self._require_namespace(request.namespace)
        return self.followers.fetch_segment(request)

    def backup(self, request: pb.BackupRequest) -> Generator[pb.BackupReply, None, None]:
        """Write a backup of the data folder; yields its progress, then a summary.

        Raises:
            InvalidInputError: the path is not absolute, or the folder has content.
            InvalidConfigError: the cache is in memory.
            ServiceUnavailableError: the service drains.
            StoreError: nothing was written.
        """
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

    def list_namespaces(self, request: pb.ListNamespacesRequest) -> pb.ListNamespacesReply:
        """The namespaces at or below a path. Paths are compared by components: a/bc is not below a/b."""
        prefix = request.prefix.rstrip("/")
        reply = pb.ListNamespacesReply()
        for record in self._cache.namespaces():
            if not prefix or f"{record.path}/".startswith(f"{prefix}/"):
                stats = self._cache.namespace(record.path).stats()
                reply.namespaces.add(
                    path=record.path, tokenizer=record.tokenizer, outputs=stats.outputs, tokens=stats.tokens
                )
        return reply

    def get_stats(self, request: pb.GetStatsRequest) -> pb.GetStatsReply:
        """Statistics of one namespace, or of the whole service if none is named."""
        if request.namespace:
            self._require_namespace(request.namespace)
            reply = _stats_reply(self._cache.namespace(request.namespace).stats())
            reply.followers.extend(self.followers.stats(request.namespace))
            return reply
        reply = _stats_reply(self._cache.stats())
        reply.followers.extend(self.followers.stats())
        reply.unkept_sessions = len(self.sessions.failed_closes)
        reply.lost_sessions = self.sessions.failed_closes.lost
        reply.store_failing = self._cache.durability() is not None
        tasks = {task.name: task.stats() for task in self.background_tasks} | self._cache.background_tasks()
        reply.background_tasks.extend(converters.task_to_proto(*task) for task in tasks.items())
        return reply

    def get_server_info(self, _request: pb.GetServerInfoRequest) -> pb.GetServerInfoReply:
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

    def _require_namespace(self, path: str) -> None:
        """Raise UnknownNamespaceError instead of creating a namespace that is only queried."""
        validate_namespace(path)
        if not self._cache.has_namespace(path):
            raise unknown_namespace(path)


@contextlib.contextmanager
def _acquired(semaphore: threading.Semaphore, full: str, limit: int) -> Iterator[None]:
    """Hold a semaphore for the block. Raises LimitExceededError(``full``) if none is free."""
    if not semaphore.acquire(blocking=False):
        raise LimitExceededError(full, expected=f"{limit} at a time", remedy="Try again when one is done.")
    try:
        yield
    finally:
        semaphore.release()


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
    counts: dict[str, Any] = {name: int(value) for name, value in shared.items()}
    return pb.GetStatsReply(**counts)
