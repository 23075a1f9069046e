"""Steps in protobuf form: checked, taken by the core's StepDispatcher, admitted where it refuses that."""

from __future__ import annotations

import time
from collections.abc import Sequence

from suffixsvc.access.caller import Caller, SessionName
from suffixsvc.config import Limits
from suffixsvc.core import Refusal, StepStatus
from suffixsvc.errors import InvalidInputError
from suffixsvc.index.session_calls import refusal_error
from suffixsvc.service.messages.converters import NativeStep, native_step
from suffixsvc.service.sessions.entries import stale_sequence_error
from suffixsvc.service.sessions.table import SessionTable
from suffixsvc.v1 import suffix_cache_pb2 as pb


class SessionSteps:
    """Takes the steps of a service's sessions. Thread-safe.

    Args:
        table: the sessions.
        limits: of the service.
    """

    def __init__(self, table: SessionTable, limits: Limits) -> None:
        self._table = table
        self._limits = limits

    def take(self, requests: Sequence[pb.StepRequest], caller: Caller) -> list[bytes | Exception]:
        """Step several sessions of a caller's principal side by side on all cores.

        Returns:
            For each request its answer, a serialised StepBatchReply of one item, or the error of this item
            alone.
        """
        errors: list[Exception | None] = []
        accepted: list[NativeStep] = []
        seen: set[str] = set()
        for request in requests:
            try:
                accepted.append(self._checked(request, caller.session(request.session_id), seen))
                errors.append(None)
            except Exception as error:  # a defect, too, fails this item only
                errors.append(error)
        answers = self._table.dispatcher.step(accepted, time.monotonic(), caller.scope)
        taken = (answer for _, answer in zip(accepted, answers, strict=True))
        return [
            self._answer(request, next(taken), caller) if error is None else error
            for request, error in zip(requests, errors, strict=True)
        ]

    def answer(self, request: pb.StepRequest, answer: bytes | Refusal, caller: Caller) -> bytes | Exception:
        """The dispatcher's answer to a step of a stream message, or what follows from its refusal."""
        if not isinstance(answer, bytes) and answer.status == StepStatus.UNKNOWN_SESSION:
            return self.take([request], caller)[0]  # the session may be opening
        return self._answer(request, answer, caller)

    def _answer(self, request: pb.StepRequest, answer: bytes | Refusal, caller: Caller) -> bytes | Exception:
        if isinstance(answer, bytes):
            return answer
        try:
            if answer.status == StepStatus.NOT_ADMITTED:
                return self._admit(request, answer, caller)
            return self._error(request, answer, caller)
        except Exception as error:  # the service is draining, or the core failed
            return error

    def _error(self, request: pb.StepRequest, refusal: Refusal, caller: Caller) -> Exception:
        session_id = request.session_id
        match refusal.status:
            case StepStatus.UNKNOWN_SESSION:
                name = caller.session(session_id)
                self._wait_for(name)
                return self._table.missing(name)
            case StepStatus.DUPLICATE_SESSION:
                return _duplicate_error(session_id)
            case StepStatus.STALE_SEQUENCE:
                return stale_sequence_error(session_id, request.seq, refusal.last_seq)
        at = request.at if request.HasField("at") else None
        return refusal_error(refusal, at, request.new_token_ids, self._limits.max_session_tokens)

    def _admit(self, request: pb.StepRequest, refusal: Refusal, caller: Caller) -> bytes | Exception:
        """Take a step again, for whose tokens the limits of memory must have room.

        Raises:
            LimitExceededError: they have not.
        """
        name = caller.session(request.session_id)
        entry = self._table.get(name)
        session = None if entry is None else entry.session
        if session is None:  # it ended meanwhile
            return self._table.missing(name)
        with session.admit_step(refusal):
            return self.take([request], caller)[0]

    def _checked(self, request: pb.StepRequest, name: SessionName, seen: set[str]) -> NativeStep:
        """Check a step, and wait for an open or a close in progress.

        Args:
            name: of the session.
            seen: the session ids of the batch so far, malformed steps included.

        Raises:
            InvalidInputError: a field is malformed, or the id of an earlier step is repeated.
        """
        if request.session_id in seen:
            raise _duplicate_error(request.session_id)
        seen.add(request.session_id)
        step = native_step(request, self._limits)
        self._wait_for(name)
        return step

    def _wait_for(self, name: SessionName) -> None:
        """Wait for an open or a close in progress: one that ends is recorded before its lock is released."""
        if (entry := self._table.get(name)) is not None:
            with entry.lock:
                pass


def _duplicate_error(session_id: str) -> InvalidInputError:
    return InvalidInputError(
        "session_id must be unique within a batch", expected="at most one item per session", got=session_id
    )
