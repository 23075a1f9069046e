"""Request messages -> checked arguments of the engine; the engine's records -> reply messages.

Whatever arrives is hostile: each function here either returns arguments the engine can take or raises
a typed error, and touches nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from suffixsvc import wire
from suffixsvc.background import TaskStats
from suffixsvc.config import MAX_READS, PROMPT_TAIL_TOKENS, Limits, validate_labels, validate_namespace
from suffixsvc.errors import InvalidInputError, InvalidTokensError, LimitExceededError
from suffixsvc.lookup_records import RecordFile
from suffixsvc.service.elements import too_many
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
SPLIT_REMEDY = "Send the outputs in several messages; GetServerInfo tells the limits."
_SOURCES = frozenset(map(int, DraftSource))


@dataclass(frozen=True, slots=True)
class OpenArgs:
    """A checked OpenSessionRequest. ``session_id`` and ``tokenizer`` are None where the client named none."""

    session_id: str | None
    namespace: str
    tokenizer: str | None
    prompt: TokenArray
    output: TokenArray
    labels: dict[str, str]
    reads: list[str] | None
    verify_cost: float | FloatArray | None


class StepArgs(NamedTuple):
    """A StepRequest, checked but for its tokens: the core does that. ``seq`` 0 is not numbered;
    ``verify_cost`` None means as before; ``verified`` is (width, accepted)."""

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
    prompt = wire.unpack_tokens(request.prompt_token_ids, "prompt_token_ids")
    output = wire.unpack_tokens(request.output_token_ids, "output_token_ids")
    if len(prompt) + len(output) > limits.max_session_tokens:
        raise LimitExceededError(
            "the session would hold too many tokens",
            expected=f"at most {limits.max_session_tokens} tokens of prompt and output",
            got=len(prompt) + len(output),
            remedy="Shorten the prompt, or start the service with a larger --max-session-tokens.",
        )
    _refuse_more_reads_than_a_session_can_use(len(request.reads))
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


def _refuse_more_reads_than_a_session_can_use(reads: int) -> None:
    """Counted before any path is looked at: a message holds millions of them."""
    if reads > MAX_READS:
        raise LimitExceededError(
            f"reads must be at most {MAX_READS} namespaces",
            expected=f"at most {MAX_READS}",
            got=reads,
            remedy="Name those that matter most; a session always drafts from its own as well.",
        )


def step_args(request: pb.StepRequest, limits: Limits) -> StepArgs:
    """On every step's path: each field is looked at once."""
    width = request.max_draft_tokens
    if width < 0:
        raise InvalidInputError("max_draft_tokens is negative", expected=">= 0", got=width)
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
        wire.verified_from_proto(message)  # says what is wrong
    return width, accepted


def append_args(request: pb.AppendContextRequest) -> AppendArgs:
    return AppendArgs(
        session_id=checked_session_id(request.session_id),
        seq=request.seq,
        tokens=wire.unpack_tokens(request.token_ids),
        at=_position(request),
    )


def new_outputs(request: pb.AddOutputsRequest, limits: Limits) -> list[NewOutput]:
    """The outputs of one bulk message; the whole message is refused when one of them is wrong."""
    _refuse_more_than_fit(request, limits)
    namespace = validate_namespace(request.namespace)
    return [_new_output(namespace, item, limits) for item in request.outputs]


def _refuse_more_than_fit(request: pb.AddOutputsRequest, limits: Limits) -> None:
    """As the count before parsing does: small messages and callers without a wire have not passed that."""
    outputs = len(request.outputs)
    if outputs > limits.max_outputs_per_message:
        raise too_many("outputs", limits.max_outputs_per_message, outputs, SPLIT_REMEDY)
    segments = sum(len(item.segment_lens) for item in request.outputs)
    if segments > limits.max_segments_per_message:
        raise too_many("outputs.segment_lens", limits.max_segments_per_message, segments, SPLIT_REMEDY)


def _new_output(namespace: str, item: pb.OutputItem, limits: Limits) -> NewOutput:
    tokens = wire.unpack_tokens(item.token_ids)
    if not len(tokens):
        raise InvalidTokensError("an output is empty", expected="at least one token", got="none")
    if len(tokens) > limits.max_output_tokens:
        raise LimitExceededError(
            "an output is too long", expected=f"at most {limits.max_output_tokens} tokens", got=len(tokens)
        )
    if item.ttl_seconds < 0:
        raise InvalidInputError("ttl_seconds is negative", expected=">= 0", got=item.ttl_seconds)
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
            "segment_lens do not divide the output",
            expected=f"positive lengths that sum to {tokens}",
            got=str(lens)[:80],
        )
    return lens


def namespace_to_proto(record: NamespaceRecord, outputs: int, tokens: int) -> pb.NamespaceInfo:
    return pb.NamespaceInfo(path=record.path, tokenizer=record.tokenizer, outputs=outputs, tokens=tokens)


def _fingerprint(value: str) -> str | None:
    if len(value) > MAX_FINGERPRINT_CHARS:
        raise InvalidInputError(
            "tokenizer is no fingerprint",
            expected=f"at most {MAX_FINGERPRINT_CHARS} characters",
            got=len(value),
        )
    return value or None


def checked_session_id(value: str) -> str:
    # no character takes more than four bytes
    size = len(value.encode()) if len(value) > MAX_SESSION_ID_BYTES // 4 else len(value)
    if not 0 < size <= MAX_SESSION_ID_BYTES:
        raise InvalidInputError(
            "session_id has a wrong length",
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
    """What a session keeps of a cost: no draft is longer than the limit, so no later entry is read."""
    cost = wire.cost_from_proto(message)
    if isinstance(cost, np.ndarray):
        return cost[: limits.max_draft_tokens + 2].copy()  # a view would keep the whole message
    return cost


def _position(request: pb.StepRequest | pb.AppendContextRequest) -> int | None:
    if not request.HasField("at"):
        return None
    if request.at < 0:
        raise InvalidInputError("at is no position", expected=">= 0", got=request.at)
    return request.at


def _mapping(labels: Mapping[str, str]) -> dict[str, str]:
    return dict(labels)


def stats_to_proto(stats: CacheStats | NamespaceStats) -> pb.GetStatsReply:
    """Every field of the reply that the engine's record has; the rest stays 0."""
    fields = pb.GetStatsReply.DESCRIPTOR.fields_by_name
    values: dict[str, Any] = {name: int(getattr(stats, name)) for name in fields if hasattr(stats, name)}
    return pb.GetStatsReply(**values)


def task_to_proto(name: str, stats: TaskStats) -> pb.BackgroundTask:
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
    """Which n-grams an export asks for; the engine says whether there are such."""
    return [
        RecordFile(**{field.name: getattr(each, field.name) for field in each.DESCRIPTOR.fields})
        for each in request.files
    ]


def export_to_proto(
    exported: ExportedNgrams, files: Sequence[IO[bytes]], tokenizer: str
) -> Iterator[pb.ExportNgramsReply]:
    """A summary, then the files, opened by whoever closes them, in pieces."""
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
