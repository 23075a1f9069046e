"""Message in, message out: every method of the service without gRPC.

Stream items and unary calls end in the same functions; so does the client's fake transport.
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

from suffixsvc.background import PeriodicTask
from suffixsvc.config import Limits, validate_namespace
from suffixsvc.errors import InvalidInputError, LimitExceededError, SuffixError, unknown_namespace
from suffixsvc.service import converters
from suffixsvc.service.elements import first_number
from suffixsvc.service.failures import detail_of
from suffixsvc.service.packing import stream_reply
from suffixsvc.service.registry import SessionRegistry
from suffixsvc.service.requests import SOME_STEPS, RequestReaders
from suffixsvc.v1 import suffix_cache_pb2 as pb

if TYPE_CHECKING:
    from suffixsvc.engine import ExportJob, SuffixCache

__all__ = ["Handlers"]

FEATURES = ("stream", "step-batch", "resume", "export-ngrams")
#: exports that are counted or read: each has a thread, files and room on the disk while its client reads
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
        #: of the server, for the statistics
        self.background_tasks: Sequence[PeriodicTask] = ()
        #: counting takes memory and a core: one at a time
        self._counting = threading.Semaphore(1)
        self._exporting = threading.Semaphore(MAX_EXPORTS)

    # ----------------------------------------------------------------------------------------- sessions

    def open_session(self, request: pb.OpenSessionRequest) -> pb.OpenSessionReply:
        session_id, length = self.sessions.open(converters.open_args(request, self._limits))
        return pb.OpenSessionReply(session_id=session_id, length=length)

    def step(self, request: pb.StepRequest) -> pb.StepReply:
        return self.sessions.step(request)

    def append_context(self, request: pb.AppendContextRequest) -> pb.AppendContextReply:
        return self.sessions.append_context(converters.append_args(request))

    def close_session(self, request: pb.CloseSessionRequest) -> pb.CloseSessionReply:
        output_id = self.sessions.close(
            converters.checked_session_id(request.session_id),
            commit=not request.discard,
            incomplete=request.incomplete,
            wait=not request.no_wait,
        )
        return pb.CloseSessionReply(session_id=request.session_id, output_id=output_id)

    # --------------------------------------------------------------------------------------- the stream

    def message(self, request: pb.StreamRequest) -> pb.StreamReply:
        """Answer one stream message. Never raises: an error is data, or one session would end all."""
        return pb.StreamReply.FromString(self.message_bytes(request.SerializeToString()))

    def message_bytes(self, data: bytes) -> bytes:
        """The same, serialised both ways: what a decode step waits for passes the core's desk and no object
        of protobuf's.

        Raises:
            InvalidInputError: the bytes are no StreamRequest.
        """
        answered = self.sessions.desk.answer(data, time.monotonic())
        return answered if isinstance(answered, bytes) else self.unanswered(data, answered)

    def unanswered(self, data: bytes, answered: Sequence[bytes | None] | None) -> bytes:
        """The answer to a message that the desk could not answer, or of whose steps it took some.

        Args:
            answered: by step what the desk answered; None where it has not touched the message.

        Raises:
            InvalidInputError: the bytes are no StreamRequest.
        """
        try:
            request = self.readers.stream(data)
        except LimitExceededError as error:
            refused = pb.StreamReply(id=first_number(data), error=detail_of(error, "stream message"))
            return refused.SerializeToString()
        if answered is None:
            return self._message(request)
        # The desk has taken what it could; why it refused the others, the registry knows to tell.
        items = zip(request.steps.items, answered, strict=True)
        return stream_reply(request.id, b"".join(done or self._items([step]) for step, done in items))

    def _message(self, request: pb.StreamRequest) -> bytes:
        reply = pb.StreamReply(id=request.id)
        try:
            match request.WhichOneof("request"):
                case "steps":
                    self._refuse_more_than_there_are(request.steps.items)
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
            reply.error.CopyFrom(detail_of(error, "stream message"))
        return reply.SerializeToString()

    def _refuse_more_than_there_are(self, requests: Sequence[pb.StepRequest]) -> None:
        """A step each of all sessions that there may be is the most that makes sense; some too many are told
        one by one what is wrong with them."""
        most = max(self._limits.max_sessions, SOME_STEPS)
        if len(requests) > most:
            raise LimitExceededError(
                "too many steps in a message",
                expected=f"at most {most}, one for each session there may be",
                got=len(requests),
                remedy="Send them in several messages, or serve with a larger --max-sessions.",
            )

    def _items(self, requests: Sequence[pb.StepRequest]) -> bytes:
        """The answers of a batch, a serialised StepBatchReply: repeated fields laid end to end are one."""
        answers = self.sessions.step_together(requests)
        return b"".join(
            answer if isinstance(answer, bytes) else _error_item(request, answer)
            for request, answer in zip(requests, answers, strict=True)
        )

    # --------------------------------------------------------------------------------------------- bulk

    def add_outputs(self, requests: Iterable[pb.AddOutputsRequest]) -> pb.AddOutputsReply:
        """Each message is kept whole or not at all; an error says how many outputs stay from those before."""
        reply = pb.AddOutputsReply()
        try:
            for place, request in enumerate(requests):  # one that is refused unread, or late, raises here
                if place and not request.outputs:
                    _refuse_message_without_outputs()
                self._add(request, reply)
        except SuffixError as error:
            error.message += f" ({reply.outputs} outputs of this call were kept)"
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
        self._known(request.namespace)
        namespace = self._cache.namespace(request.namespace, request.tokenizer or None)
        with contextlib.ExitStack() as held:
            held.enter_context(_one_of(self._exporting, "too many exports are being read", MAX_EXPORTS))
            with (
                _one_of(self._counting, "another export is counting", 1),
                tempfile.TemporaryDirectory(prefix="suffixsvc-export-") as folder,
            ):
                exported = namespace.export_ngrams(
                    converters.record_files(request),
                    Path(folder),
                    context_tokens=request.context_tokens,
                    job=job,
                )
                # What is read, as slowly as clients like, has no name any more: nothing can leave it behind.
                files = [held.enter_context(each.path.open("rb")) for each in exported.files]
            yield from converters.export_to_proto(exported, files, namespace.tokenizer)

    def forget(self, request: pb.ForgetRequest) -> pb.ForgetReply:
        self._known(request.namespace)
        self._cache.namespace(request.namespace).forget(request.output_id)
        return pb.ForgetReply()

    def delete_namespace(self, request: pb.DeleteNamespaceRequest) -> pb.DeleteNamespaceReply:
        outputs = self._cache.delete_namespace(request.namespace, force=request.force)
        return pb.DeleteNamespaceReply(outputs=outputs)

    # ----------------------------------------------------------------------------------------- questions

    def list_namespaces(self, request: pb.ListNamespacesRequest) -> pb.ListNamespacesReply:
        prefix = request.prefix.rstrip("/")
        records = [record for record in self._cache.namespaces() if _is_at_or_below(record.path, prefix)]
        reply = pb.ListNamespacesReply()
        for record in records:
            stats = self._cache.namespace(record.path).stats()
            reply.namespaces.append(converters.namespace_to_proto(record, stats.outputs, stats.tokens))
        return reply

    def get_stats(self, request: pb.GetStatsRequest) -> pb.GetStatsReply:
        if not request.namespace:
            return self._server_stats()
        self._known(request.namespace)
        return converters.stats_to_proto(self._cache.namespace(request.namespace).stats())

    def _server_stats(self) -> pb.GetStatsReply:
        reply = converters.stats_to_proto(self._cache.stats())
        reply.unkept_sessions = len(self.sessions.unkept)
        reply.lost_sessions = self.sessions.unkept.lost
        reply.store_failing = self._cache.durability() is not None
        tasks = {task.name: task.stats() for task in self.background_tasks} | self._cache.background_tasks()
        reply.background_tasks.extend(converters.task_to_proto(*task) for task in tasks.items())
        return reply

    def get_server_info(self, _request: pb.GetServerInfoRequest) -> pb.GetServerInfoReply:
        failure = self._cache.durability()
        return pb.GetServerInfoReply(
            store_failure=None if failure is None else detail_of(failure, "the store"),
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

    def _known(self, path: str) -> None:
        """Asking about a namespace must not create it."""
        validate_namespace(path)
        if not self._cache.has_namespace(path):
            raise unknown_namespace(path)


@contextlib.contextmanager
def _one_of(places: threading.Semaphore, full: str, most: int) -> Iterator[None]:
    """A place for as long as the block takes. LimitExceededError: none is free."""
    if not places.acquire(blocking=False):
        raise LimitExceededError(full, expected=f"{most} at a time", remedy="Try again when one is done.")
    try:
        yield
    finally:
        places.release()


def _is_at_or_below(path: str, prefix: str) -> bool:
    """By segments: a/bc is not below a/b."""
    return not prefix or path == prefix or path.startswith(prefix + "/")


def _refuse_empty_message() -> NoReturn:
    raise InvalidInputError(
        "a stream message holds no request", expected="open, steps, append_context or close", got="none"
    )


def _refuse_message_without_outputs() -> NoReturn:
    """Such messages would hold a place for as long as they come, and do nothing. The first may be empty: a
    client that has no outputs to add sends one."""
    raise InvalidInputError(
        "outputs must hold at least one output in every message after the first",
        expected="1 or more",
        got=0,
        remedy="End the call when there is nothing left to send.",
    )


def _error_item(request: pb.StepRequest, error: Exception) -> bytes:
    detail = detail_of(error, "batch step")
    item = pb.StepItem(error=pb.StepError(session_id=request.session_id, seq=request.seq, error=detail))
    return pb.StepBatchReply(items=[item]).SerializeToString()
