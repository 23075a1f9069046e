"""Batches of decode steps in protobuf form: checked, admitted, then taken by the core's StepDispatcher."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from suffixsvc.config import Limits
from suffixsvc.core import Curve, Refusal, StepStatus
from suffixsvc.errors import InvalidInputError
from suffixsvc.index.draft_params import native_curve
from suffixsvc.index.session_arguments import MAX_POSITION
from suffixsvc.index.session_errors import refusal_error
from suffixsvc.service.messages import converters
from suffixsvc.service.messages.converters import StepArgs
from suffixsvc.service.sessions.entries import stale_sequence_error
from suffixsvc.service.sessions.table import SessionTable
from suffixsvc.v1 import suffix_cache_pb2 as pb

__all__ = ["step_batch", "step_error"]

_NOT_ANSWERED: Final = RuntimeError("a step was not answered")
#: numbers of TreeMode in csrc/wire/step_parser.h
_TREE_MODES: Final[dict[bool | str, int]] = {False: 0, True: 1, "auto": 2}
#: arguments of ``StepDispatcher.step``
_NativeRequest = tuple[str, int, bytes, int, int, int, int, int, Curve | None]


def step_batch(
    table: SessionTable, limits: Limits, requests: Sequence[pb.StepRequest]
) -> list[bytes | Exception]:
    """Step several sessions side by side on all cores.

    Returns:
        For each request its answer, a serialised StepBatchReply of one item, or the error of this item alone.
    """
    answers: list[bytes | Exception] = [_NOT_ANSWERED] * len(requests)
    accepted: list[int] = []
    native: list[_NativeRequest] = []
    seen: set[str] = set()
    with ExitStack() as admitted:
        for index, request in enumerate(requests):
            try:
                _require_new(request.session_id, seen)
                args = converters.step_args(request, limits)
                converted = _native_request(args, limits)
                release = _admit(table, args, limits)
            except Exception as error:  # a defect, too, fails this item only
                answers[index] = error
                continue
            if release is not None:
                admitted.callback(release)
            accepted.append(index)
            native.append(converted)
        taken = table.dispatcher.step(native, time.monotonic())
    for index, answer in zip(accepted, taken, strict=True):
        answers[index] = (
            answer if isinstance(answer, bytes) else step_error(table, limits, requests[index], answer)
        )
    return answers


def step_error(table: SessionTable, limits: Limits, request: pb.StepRequest, refusal: Refusal) -> Exception:
    """The error for a step that the dispatcher refused."""
    session_id = request.session_id
    try:
        match refusal.status:
            case StepStatus.UNKNOWN_SESSION:
                if (entry := table.get(session_id)) is not None:
                    with entry.lock:  # a session that ends is recorded before its lock is released
                        pass
                return table.missing(session_id)
            case StepStatus.DUPLICATE_SESSION:
                return _duplicate_error(session_id)
            case StepStatus.STALE_SEQUENCE:
                return stale_sequence_error(session_id, request.seq, refusal.last_seq)
        at = request.at if request.HasField("at") else None
        return refusal_error(refusal, at, request.new_token_ids, limits.max_session_tokens)
    except Exception as error:  # the service is draining, or the core failed
        return error


def _require_new(session_id: str, seen: set[str]) -> None:
    """Add an id to those of the batch. Raises InvalidInputError if it is there."""
    if session_id in seen:
        raise _duplicate_error(session_id)
    seen.add(session_id)


def _duplicate_error(session_id: str) -> InvalidInputError:
    return InvalidInputError(
        "session_id must be unique within a batch", expected="at most one item per session", got=session_id
    )


def _native_request(args: StepArgs, limits: Limits) -> _NativeRequest:
    curve = None
    if args.verify_cost is not None:
        curve = native_curve(args.verify_cost, limits.max_draft_tokens)
    width, accepted = args.verified or (0, 0)
    at = -1 if args.at is None else min(args.at, MAX_POSITION)
    tree = _TREE_MODES[args.tree]
    return (
        args.session_id, args.seq, args.token_bytes, at, args.max_draft_tokens, tree, width, accepted, curve
    )  # fmt: skip


def _admit(table: SessionTable, args: StepArgs, limits: Limits) -> Callable[[], object] | None:
    """Wait for an open or a close in progress; admit a new step that is larger than a decode step.

    Returns:
        What to call after the step, if anything.

    Raises:
        LimitExceededError: the tokens do not fit.
    """
    entry = table.get(args.session_id)
    if entry is None:
        return None
    with entry.lock:
        session = entry.session
        repeated = 0 < args.seq <= entry.slot.seq
    tokens = len(args.token_bytes) // 4
    if session is None or repeated or tokens <= limits.max_draft_tokens + 1:
        return None
    return session.admit_step(tokens)
