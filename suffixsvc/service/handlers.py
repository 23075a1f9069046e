"""Request handlers of all service methods, without gRPC: a message in, a message out.

Stream messages, unary calls and the client's fake transport use the same functions.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
import uuid
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from suffixsvc.config import Limits, validate_namespace
from suffixsvc.core import Refusal
from suffixsvc.errors import InvalidInputError, LimitExceededError, SuffixError, unknown_namespace
from suffixsvc.runtime.background import PeriodicTask
from suffixsvc.service.messages import converters
from suffixsvc.service.messages.elements import read_message_id
from suffixsvc.service.messages.errors import error_detail
from suffixsvc.service.messages.requests import MIN_STEP_LIMIT, RequestReaders
from suffixsvc.service.messages.stream_reply import stream_reply
from suffixsvc.service.sessions.registry import SessionRegistry
from suffixsvc.v1 import suffix_cache_pb2 as pb

if TYPE_CHECKING:
    from suffixsvc.engine import ExportJob, SuffixCache

__all__ = ["Handlers"]

FEATURES = ("stream", "step-batch", "resume", "export-ngrams")
#: exports that are counted or read: each holds a thread, files and disk space while its client reads
MAX_EXPORTS = 4


class Handlers:
    """The methods of suffixsvc.v1.SuffixCache over one embedded engine. Thread-safe; raises SuffixError."""

    def __init__(self, cache: SuffixCache, limits: Limits, *, durable: bool, version: str) -> None:
        self._cache = cache
        self._limits = limits
        self._durable = durable
        self._version = version
        self.instance_id = str(uuid.uuid4())
        self.sessions = SessionRegistry(cache, limits)
        self.readers = RequestReaders(limits)
        #: the server's tasks, for the statistics
        self.background_tasks: Sequence[PeriodicTask] = ()
        #: counting takes memory and a core: one export at a time
        self._counting = threading.Semaphore(1)
        self._exporting = threading.Semaphore(MAX_EXPORTS)

    # ----------------------------------------------------------------------------------------- sessions

    def open_session(self, request: pb.OpenSessionRequest) -> pb.OpenSessionReply:
        """Open a session, or find the live one of the same id, namespace and prompt."""
        session_id, length = self.sessions.open(converters.open_args(request, self._limits))
        return pb.OpenSessionReply(session_id=session_id, length=length)

    def step(self, request: pb.StepRequest) -> pb.StepReply:
        """Append tokens to a session and draft."""
        return self.sessions.step(request)

    def append_context(self, request: pb.AppendContextRequest) -> pb.AppendContextReply:
        """Append tokens that the model did not write to a session."""
        return self.sessions.append_context(converters.append_args(request))

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

        Raises:
            InvalidInputError: ``data`` is not a StreamRequest.
        """
        answered = self.sessions.dispatcher.answer(data, time.monotonic())
        return answered if isinstance(answered, bytes) else self.answer_remaining(data, answered)

    def answer_remaining(self, data: bytes, answered: Sequence[bytes | Refusal] | None) -> bytes:
        """Answer a message that the dispatcher did not answer, or a batch of which it refused steps.

        Args:
            answered: for each step the dispatcher's answer or refusal; None if it left the whole message.

        Raises:
            InvalidInputError: ``data`` is not a StreamRequest.
        """
        try:
            request = self.readers.stream(data)
        except LimitExceededError as error:
            refused = pb.StreamReply(id=read_message_id(data), error=error_detail(error, "stream message"))
            return refused.SerializeToString()
        if answered is None:
            return self._message(request)
        items = b"".join(
            reply if isinstance(reply, bytes) else _item(step, self.sessions.after_refusal(step, reply))
            for step, reply in zip(request.steps.items, answered, strict=True)
        )
        return stream_reply(request.id, items)

    def _message(self, request: pb.StreamRequest) -> bytes:
        reply = pb.StreamReply(id=request.id)
        try:
            match request.WhichOneof("request"):
                case "steps":
                    self._check_step_count(request.steps.items)
                    return stream_reply(request.id, self._items(request.steps.items))
                case "open":
                    reply.open.CopyFrom(self.open_session(request.open))
                case "append_context":
                    reply.append_context.CopyFrom(self.append_context(request.append_context))
                case "close":
                    reply.close.CopyFrom(self.close_session(request.close))
                case _:
                    _refuse_empty_message()
        except Exception as error:
            reply.error.CopyFrom(error_detail(error, "stream message"))
        return reply.SerializeToString()

    def _check_step_count(self, requests: Sequence[pb.StepRequest]) -> None:
        """Limit a batch to one step per possible session; up to MIN_STEP_LIMIT steps fail one by one."""
        most = max(self._limits.max_sessions, MIN_STEP_LIMIT)
        if len(requests) > most:
            raise LimitExceededError(
                "steps must not be too many for one message",
                expected=f"at most {most}, one for each possible session",
                got=len(requests),
                remedy="Send them in several messages, or serve with a larger --max-sessions.",
            )

    def _items(self, requests: Sequence[pb.StepRequest]) -> bytes:
        """A serialised StepBatchReply: concatenated messages with repeated fields are one message."""
        answers = self.sessions.step_batch(requests)
        return b"".join(_item(request, answer) for request, answer in zip(requests, answers, strict=True))

    # --------------------------------------------------------------------------------------------- bulk

    def add_outputs(self, requests: Iterable[pb.AddOutputsRequest]) -> pb.AddOutputsReply:
        """Store outputs, each message as a whole or not at all; an error says how many were stored."""
        reply = pb.AddOutputsReply()
        try:
            for index, request in enumerate(requests):  # a message that is too large or late raises here
                if index and not request.outputs:
                    _refuse_message_without_outputs()
                self._add(request, reply)
        except SuffixError as error:
            error.message += f" ({reply.outputs} outputs of this call were stored)"
            raise
        return reply

    def _add(self, request: pb.AddOutputsRequest, reply: pb.AddOutputsReply) -> None:
        outputs = converters.new_outputs(request, self._limits)
        if not outputs:
            return
        ids = self._cache.namespace(request.namespace, request.tokenizer or None).add_outputs(outputs)
        reply.output_ids.extend(ids)
        reply.outputs += len(outputs)
        reply.tokens += sum(len(output.token_ids) for output in outputs)

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
        namespace = self._cache.namespace(request.namespace, request.tokenizer or None)
        with contextlib.ExitStack() as held:
            held.enter_context(_acquired(self._exporting, "too many exports are being read", MAX_EXPORTS))
            with (
                _acquired(self._counting, "another export is counting", 1),
                tempfile.TemporaryDirectory(prefix="suffixsvc-export-") as folder,
            ):
                exported = namespace.export_ngrams(
                    converters.record_files(request),
                    Path(folder),
                    context_tokens=request.context_tokens,
                    job=job,
                )
                # The files are unlinked before clients read them, so that a slow client cannot leak them.
                files = [held.enter_context(each.path.open("rb")) for each in exported.files]
            yield from converters.export_to_proto(exported, files, namespace.tokenizer)

    def forget(self, request: pb.ForgetRequest) -> pb.ForgetReply:
        """Delete one output."""
        self._require_namespace(request.namespace)
        self._cache.namespace(request.namespace).forget(request.output_id)
        return pb.ForgetReply()

    def delete_namespace(self, request: pb.DeleteNamespaceRequest) -> pb.DeleteNamespaceReply:
        """Delete a namespace with its outputs; the reply has their number."""
        outputs = self._cache.delete_namespace(request.namespace, force=request.force)
        return pb.DeleteNamespaceReply(outputs=outputs)

    # ------------------------------------------------------------------------------------------- queries

    def list_namespaces(self, request: pb.ListNamespacesRequest) -> pb.ListNamespacesReply:
        """The namespaces at or below a path."""
        prefix = request.prefix.rstrip("/")
        records = [record for record in self._cache.namespaces() if _is_at_or_below(record.path, prefix)]
        reply = pb.ListNamespacesReply()
        for record in records:
            stats = self._cache.namespace(record.path).stats()
            reply.namespaces.append(converters.namespace_to_proto(record, stats.outputs, stats.tokens))
        return reply

    def get_stats(self, request: pb.GetStatsRequest) -> pb.GetStatsReply:
        """Statistics of one namespace, or of the whole service if none is named."""
        if not request.namespace:
            return self._server_stats()
        self._require_namespace(request.namespace)
        return converters.stats_to_proto(self._cache.namespace(request.namespace).stats())

    def _server_stats(self) -> pb.GetStatsReply:
        reply = converters.stats_to_proto(self._cache.stats())
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
            version=self._version,
            instance_id=self.instance_id,
            max_message_bytes=self._limits.max_message_bytes,
            max_session_tokens=self._limits.max_session_tokens,
            max_draft_tokens=self._limits.max_draft_tokens,
            durable=self._durable,
            max_outputs_per_message=self._limits.max_outputs_per_message,
            max_segments_per_message=self._limits.max_segments_per_message,
            features=FEATURES,
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


def _is_at_or_below(path: str, prefix: str) -> bool:
    """Compare paths by segments: a/bc is not below a/b."""
    return not prefix or path == prefix or path.startswith(prefix + "/")


def _refuse_empty_message() -> NoReturn:
    raise InvalidInputError(
        "a stream message must hold a request", expected="open, steps, append_context or close", got="none"
    )


def _refuse_message_without_outputs() -> NoReturn:
    """Empty messages would extend a call's deadline without end. The first one may be empty: a client
    without outputs to add sends one."""
    raise InvalidInputError(
        "outputs must hold at least one output in every message after the first",
        expected="1 or more",
        got=0,
        remedy="End the call after the last output.",
    )


def _item(request: pb.StepRequest, answer: bytes | Exception) -> bytes:
    if isinstance(answer, bytes):
        return answer
    detail = error_detail(answer, "batch step")
    item = pb.StepItem(error=pb.StepError(session_id=request.session_id, seq=request.seq, error=detail))
    return pb.StepBatchReply(items=[item]).SerializeToString()
