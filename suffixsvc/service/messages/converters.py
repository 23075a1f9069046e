"""Converters: request messages -> checked arguments of the engine, engine records -> reply messages.

Requests are untrusted: each function either returns valid arguments or raises a typed error, and has no side
effects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from suffixsvc import wire
from suffixsvc.config import MAX_READS, PROMPT_TAIL_TOKENS, Limits, validate_labels, validate_namespace
from suffixsvc.errors import InvalidInputError, InvalidTokensError, LimitExceededError
from suffixsvc.lookup_records import RecordFile
from suffixsvc.runtime.background import TaskStats
from suffixsvc.service.messages.elements import too_many_error
from suffixsvc.types import DraftSource, FloatArray, NamespaceRecord, NewOutput, TokenArray
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import types_pb2

if TYPE_CHECKING:
    from suffixsvc.engine import CacheStats, NamespaceStats
    from suffixsvc.engine.export import ExportedNgrams

__all__ = [
    "AppendArgs",
    "OpenArgs",
    "StepArgs",
    "append_args",
    "checked_session_id",
    "export_to_proto",
    "namespace_to_proto",
    "new_outputs",
    "open_args",
    "record_files",
    "stats_to_proto",
    "step_args",
    "task_to_proto",
]

EXPORT_PIECE_BYTES = 1 << 20
MAX_SESSION_ID_BYTES = 128
MAX_FINGERPRINT_CHARS = 128
MAX_ERROR_CHARS = 1000
SPLIT_REMEDY = "Send the outputs in several messages; GetServerInfo returns the limits."
_SOURCES = frozenset(map(int, DraftSource))


@dataclass(frozen=True, slots=True)
class OpenArgs:
    """A checked OpenSessionRequest. ``session_id`` and ``tokenizer`` are None if the request has none."""

    session_id: str | None
    namespace: str
    tokenizer: str | None
    prompt: TokenArray
    output: TokenArray
    labels: dict[str, str]
    reads: list[str] | None
    verify_cost: float | FloatArray | None


class StepArgs(NamedTuple):
    """A checked StepRequest; its tokens are checked by the core.

    Attributes:
        seq: 0 if the step is not numbered.
        verify_cost: None if unchanged since the last step.
        verified: (width, accepted) of the last verification.
    """

    session_id: str
    seq: int
    token_bytes: bytes
    at: int | None
    max_draft_tokens: int
    verify_cost: float | FloatArray | None
    tree: bool | str
    verified: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class AppendArgs:
    """A checked AppendContextRequest."""

    session_id: str
    seq: int
    tokens: TokenArray
    at: int | None


def open_args(request: pb.OpenSessionRequest, limits: Limits) -> OpenArgs:
    """Check a request to open a session.

    Raises:
        InvalidInputError: a field is malformed.
        LimitExceededError: too many tokens of prompt and output, or too many ``reads``.
    """
    prompt = wire.unpack_tokens(request.prompt_token_ids, "prompt_token_ids")
    output = wire.unpack_tokens(request.output_token_ids, "output_token_ids")
    if len(prompt) + len(output) > limits.max_session_tokens:
        raise LimitExceededError(
            "prompt and output must fit a session",
            expected=f"at most {limits.max_session_tokens} tokens of prompt and output",
            got=len(prompt) + len(output),
            remedy="Shorten the prompt, or start the service with a larger --max-session-tokens.",
        )
    _check_reads(len(request.reads))
    return OpenArgs(
        session_id=checked_session_id(request.session_id) if request.session_id else None,
        namespace=validate_namespace(request.namespace),
        tokenizer=_fingerprint(request.tokenizer),
        prompt=prompt,
        output=output,
        labels=validate_labels(_mapping(request.labels)),
        reads=[validate_namespace(path) for path in request.reads] or None,
        verify_cost=_cost(request.verify_cost, limits),
    )


def _check_reads(reads: int) -> None:
    """Limit the number of paths before any is parsed: a message can hold millions."""
    if reads > MAX_READS:
        raise LimitExceededError(
            f"reads must be at most {MAX_READS} namespaces",
            expected=f"at most {MAX_READS}",
            got=reads,
            remedy="Name the most important ones; a session always drafts from its own namespace as well.",
        )


def step_args(request: pb.StepRequest, limits: Limits) -> StepArgs:
    """Check a step; on the latency-critical path, so that each field is read once.

    Raises:
        InvalidInputError, InvalidCostError: a field is malformed.
    """
    width = request.max_draft_tokens
    if width < 0:
        raise InvalidInputError("max_draft_tokens must not be negative", expected=">= 0", got=width)
    return StepArgs(
        checked_session_id(request.session_id),
        request.seq,
        request.new_token_ids,
        _position(request),
        min(width, limits.max_draft_tokens),
        _cost(request.verify_cost, limits) if request.HasField("verify_cost") else None,
        wire.tree_from_proto(request.tree),
        _verified(request.verified) if request.HasField("verified") else None,
    )


def _verified(message: pb.Verified) -> tuple[int, int]:
    width, accepted = message.width, message.accepted
    if not (0 <= accepted < width and message.source in _SOURCES):
        wire.verified_from_proto(message)  # raises the error for the wrong field
    return width, accepted


def append_args(request: pb.AppendContextRequest) -> AppendArgs:
    """Check an append of context. Raises InvalidInputError."""
    return AppendArgs(
        session_id=checked_session_id(request.session_id),
        seq=request.seq,
        tokens=wire.unpack_tokens(request.token_ids),
        at=_position(request),
    )


def new_outputs(request: pb.AddOutputsRequest, limits: Limits) -> list[NewOutput]:
    """The outputs of one bulk message. Raises an error for the whole message if one output is invalid."""
    _check_output_counts(request, limits)
    namespace = validate_namespace(request.namespace)
    return [_new_output(namespace, item, limits) for item in request.outputs]


def _check_output_counts(request: pb.AddOutputsRequest, limits: Limits) -> None:
    """Check counts again: small messages, and those of in-process callers, are not counted before parsing."""
    outputs = len(request.outputs)
    if outputs > limits.max_outputs_per_message:
        raise too_many_error("outputs", limits.max_outputs_per_message, outputs, SPLIT_REMEDY)
    segments = sum(len(item.segment_lens) for item in request.outputs)
    if segments > limits.max_segments_per_message:
        raise too_many_error("outputs.segment_lens", limits.max_segments_per_message, segments, SPLIT_REMEDY)


def _new_output(namespace: str, item: pb.OutputItem, limits: Limits) -> NewOutput:
    tokens = wire.unpack_tokens(item.token_ids)
    if not len(tokens):
        raise InvalidTokensError("token_ids must not be empty", expected="at least one token", got="none")
    if len(tokens) > limits.max_output_tokens:
        raise LimitExceededError(
            "token_ids must not be too long",
            expected=f"at most {limits.max_output_tokens} tokens",
            got=len(tokens),
        )
    if item.ttl_seconds < 0:
        raise InvalidInputError("ttl_seconds must not be negative", expected=">= 0", got=item.ttl_seconds)
    prompt = wire.unpack_tokens(item.prompt_token_ids, "prompt_token_ids")
    return NewOutput(
        namespace=namespace,
        token_ids=tokens,
        segment_lens=_segment_lens(item, len(tokens)),
        prompt_tail=prompt[-PROMPT_TAIL_TOKENS:],
        labels=validate_labels(_mapping(item.labels)),
        incomplete=item.incomplete,
        ttl_seconds=item.ttl_seconds,
        corpus=item.corpus,
        uuid=item.uuid,
    )


def _segment_lens(item: pb.OutputItem, tokens: int) -> tuple[int, ...]:
    lens = tuple(item.segment_lens) or (tokens,)
    if min(lens) < 1 or sum(lens) != tokens:
        raise InvalidInputError(
            "segment_lens must divide the output",
            expected=f"positive lengths that sum to {tokens}",
            got=str(lens)[:80],
        )
    return lens


def namespace_to_proto(record: NamespaceRecord, outputs: int, tokens: int) -> pb.NamespaceInfo:
    """A namespace with the number of its outputs and tokens."""
    return pb.NamespaceInfo(path=record.path, tokenizer=record.tokenizer, outputs=outputs, tokens=tokens)


def _fingerprint(value: str) -> str | None:
    if len(value) > MAX_FINGERPRINT_CHARS:
        raise InvalidInputError(
            "tokenizer must be a fingerprint",
            expected=f"at most {MAX_FINGERPRINT_CHARS} characters",
            got=len(value),
        )
    return value or None


def checked_session_id(value: str) -> str:
    """A valid session id. Raises InvalidInputError."""
    # a character takes at most four bytes
    size = len(value.encode()) if len(value) > MAX_SESSION_ID_BYTES // 4 else len(value)
    if not 0 < size <= MAX_SESSION_ID_BYTES:
        raise InvalidInputError(
            "session_id must be of a valid length",
            expected=f"1 to {MAX_SESSION_ID_BYTES} bytes",
            got=f"{size} bytes",
        )
    if not value.isprintable():
        raise InvalidInputError(
            "session_id must be printable characters",
            expected="no control characters, line ends or separators other than the space",
            got=ascii(value)[:200],
            remedy="Use a UUID.",
        )
    return value


def _cost(message: types_pb2.VerifyCost, limits: Limits) -> float | FloatArray | None:
    """The part of a cost that a session stores: drafts are bounded, so later entries are never read."""
    cost = wire.cost_from_proto(message)
    if isinstance(cost, np.ndarray):
        return cost[: limits.max_draft_tokens + 2].copy()  # a view would keep the whole message alive
    return cost


def _position(request: pb.StepRequest | pb.AppendContextRequest) -> int | None:
    if not request.HasField("at"):
        return None
    if request.at < 0:
        raise InvalidInputError("at must be a position", expected=">= 0", got=request.at)
    return request.at


def _mapping(labels: Mapping[str, str]) -> dict[str, str]:
    return dict(labels)


def stats_to_proto(stats: CacheStats | NamespaceStats) -> pb.GetStatsReply:
    """Copy the fields that reply and engine record share; the others stay 0."""
    fields = pb.GetStatsReply.DESCRIPTOR.fields_by_name
    values: dict[str, Any] = {name: int(getattr(stats, name)) for name in fields if hasattr(stats, name)}
    return pb.GetStatsReply(**values)


def task_to_proto(name: str, stats: TaskStats) -> pb.BackgroundTask:
    """Statistics of one background task."""
    return pb.BackgroundTask(
        name=name,
        runs=stats.runs,
        failures=stats.failures,
        failures_in_a_row=stats.failures_in_a_row,
        last_success=stats.last_success,
        last_error=stats.last_error[:MAX_ERROR_CHARS],
        alive=stats.alive,
    )


def record_files(request: pb.ExportNgramsRequest) -> list[RecordFile]:
    """The n-grams that an export requests; the engine checks them."""
    return [
        RecordFile(**{field.name: getattr(each, field.name) for field in each.DESCRIPTOR.fields})
        for each in request.files
    ]


def export_to_proto(
    exported: ExportedNgrams, files: Sequence[IO[bytes]], tokenizer: str
) -> Iterator[pb.ExportNgramsReply]:
    """A summary, then the files in pieces; the caller opens and closes them."""
    yield pb.ExportNgramsReply(
        summary=pb.ExportNgramsSummary(
            tokenizer=tokenizer,
            outputs=exported.outputs,
            tokens=exported.tokens,
            files=[
                pb.NgramFileSummary(
                    records=each.records,
                    pairs=each.pairs,
                    bytes=each.size_bytes,
                    count_sum=each.count_sum,
                    occurrences=each.occurrences,
                )
                for each in exported.files
            ],
        )
    )
    for number, file in enumerate(files):
        while data := file.read(EXPORT_PIECE_BYTES):
            yield pb.ExportNgramsReply(piece=pb.ExportNgramsPiece(file=number, data=data))
