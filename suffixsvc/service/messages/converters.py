"""Converters: request messages -> arguments of the engine, engine records -> reply messages.

Requests are untrusted: each function either returns valid arguments or raises a typed error, and has no side
effects. What the engine checks before it changes anything is left to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from suffixsvc import wire
from suffixsvc.config import MAX_READS, PROMPT_TAIL_TOKENS, Limits, validate_labels, validate_namespace
from suffixsvc.core import Curve
from suffixsvc.errors import InvalidInputError
from suffixsvc.index.session_calls import MAX_POSITION, native_curve, too_long_error
from suffixsvc.runtime.background import TaskStats
from suffixsvc.service.messages.elements import too_many_error
from suffixsvc.types import FloatArray, NewOutput, TokenArray
from suffixsvc.v1 import suffix_cache_pb2 as pb

if TYPE_CHECKING:
    from suffixsvc.engine.backup.manifest import BackupManifest
    from suffixsvc.engine.export import ExportedNgrams

EXPORT_PIECE_BYTES = 1 << 20
#: of a session's or a follower's id
MAX_ID_BYTES = 128
MAX_ERROR_CHARS = 1000
READS_REMEDY = "Name the most important ones; a session always drafts from its own namespace as well."
SPLIT_REMEDY = "Send the outputs in several messages; GetServerInfo returns the limits."

#: arguments of one step of ``StepDispatcher.step``: session id, seq (0: not numbered), tokens, which the core
#: checks, their position (-1: next), length of the draft, tree mode, width and accepted tokens of the last
#: verification (0: unknown), and the cost (None: unchanged)
NativeStep: TypeAlias = tuple[str, int, bytes, int, int, int, int, int, Curve | None]


#: arguments of the engine's ``Namespace.open_session``: prompt, output, labels, reads
OpeningArguments: TypeAlias = tuple[TokenArray, TokenArray, dict[str, str], list[str]]
#: a verify cost; None where a request has none
Cost: TypeAlias = float | FloatArray | None


def opening_arguments(request: pb.OpenSessionRequest, limits: Limits) -> tuple[OpeningArguments, Cost]:
    """Check a request to open a session before a session with a failed close is released for it.

    Raises:
        InvalidInputError, InvalidCostError: a field is malformed.
        LimitExceededError: too many tokens of prompt and output, or too many ``reads``.
    """
    prompt = wire.unpack_tokens(request.prompt_token_ids, "prompt_token_ids")
    output = wire.unpack_tokens(request.output_token_ids, "output_token_ids")
    if len(prompt) + len(output) > limits.max_session_tokens:
        raise too_long_error(len(prompt) + len(output), limits.max_session_tokens)
    if len(request.reads) > MAX_READS:
        raise too_many_error("reads", MAX_READS, len(request.reads), READS_REMEDY)
    validate_namespace(request.namespace)
    if request.follower_id:
        checked_id("follower_id", request.follower_id)
    reads = [validate_namespace(path) for path in request.reads]
    arguments = prompt, output, validate_labels(dict(request.labels)), reads
    return arguments, wire.cost_from_proto(request.verify_cost)


def native_step(request: pb.StepRequest, limits: Limits) -> NativeStep:
    """Check a step and convert it for the core's dispatcher.

    Raises:
        InvalidInputError, InvalidCostError: a field is malformed.
    """
    draft_tokens = request.max_draft_tokens
    if draft_tokens < 0:
        raise InvalidInputError("max_draft_tokens must not be negative", expected=">= 0", got=draft_tokens)
    session_id, at = checked_session_id(request.session_id), position(request)
    cost = wire.cost_from_proto(request.verify_cost)
    curve = None if cost is None else native_curve(cost, limits.max_draft_tokens)
    wire.tree_from_proto(request.tree)  # the core has the numbers of the wire
    width = accepted = 0
    if request.HasField("verified"):
        verified = wire.verified_from_proto(request.verified)
        width, accepted = verified.width, verified.accepted
    return (
        session_id,
        request.seq,
        request.new_token_ids,
        -1 if at is None else min(at, MAX_POSITION),
        min(draft_tokens, limits.max_draft_tokens),
        request.tree,
        width,
        accepted,
        curve,
    )


def position(request: pb.StepRequest | pb.AppendContextRequest) -> int | None:
    """The position of an append; None: at the end. Raises InvalidInputError."""
    if not request.HasField("at"):
        return None
    if request.at < 0:
        raise InvalidInputError("at must be a position", expected=">= 0", got=request.at)
    return request.at


def new_outputs(request: pb.AddOutputsRequest, limits: Limits, principal: str) -> list[NewOutput]:
    """The outputs of one bulk message, which the engine checks.

    Args:
        principal: who sends them.

    Raises:
        InvalidInputError: bytes of an output are not tokens.
        LimitExceededError: too many outputs or segments. Small messages, and those of callers in this
            process, are not counted before parsing.
    """
    segments = sum(len(item.segment_lens) for item in request.outputs)
    for what, most, got in (
        ("outputs", limits.max_outputs_per_message, len(request.outputs)),
        ("outputs.segment_lens", limits.max_segments_per_message, segments),
    ):
        if got > most:
            raise too_many_error(what, most, got, SPLIT_REMEDY)
    return [_new_output(request.namespace, item, principal) for item in request.outputs]


def _new_output(namespace: str, item: pb.OutputItem, principal: str) -> NewOutput:
    tokens = wire.unpack_tokens(item.token_ids)
    prompt = wire.unpack_tokens(item.prompt_token_ids, "prompt_token_ids")
    return NewOutput(
        namespace=namespace,
        token_ids=tokens,
        segment_lens=tuple(item.segment_lens) or (len(tokens),),
        prompt_tail=prompt[-PROMPT_TAIL_TOKENS:],
        labels=dict(item.labels),
        incomplete=item.incomplete,
        ttl_seconds=item.ttl_seconds,
        corpus=item.corpus,
        uuid=item.uuid,
        principal=principal,
    )


def checked_session_id(value: str) -> str:
    """A valid session id. Raises InvalidInputError."""
    return checked_id("session_id", value)


def checked_id(name: str, value: str) -> str:
    """A valid id; ``name`` is that of its field. Raises InvalidInputError."""
    # a character takes at most four bytes
    size = len(value.encode()) if len(value) > MAX_ID_BYTES // 4 else len(value)
    if not 0 < size <= MAX_ID_BYTES:
        raise InvalidInputError(
            f"{name} must be of a valid length",
            expected=f"1 to {MAX_ID_BYTES} bytes",
            got=f"{size} bytes",
        )
    if not value.isprintable():
        raise InvalidInputError(
            f"{name} must be printable characters",
            expected="no control characters, line ends or separators other than the space",
            got=ascii(value)[:200],
            remedy="Use a UUID.",
        )
    return value


def shared_fields(message: type[Any], record: object) -> dict[str, Any]:
    """The values of a record for those fields of a message that it has under the same name."""
    names = message.DESCRIPTOR.fields_by_name
    return {name: getattr(record, name) for name in names if hasattr(record, name)}


def task_to_proto(name: str, stats: TaskStats) -> pb.BackgroundTask:
    """Statistics of one background task."""
    values = shared_fields(pb.BackgroundTask, stats)
    values["last_error"] = stats.last_error[:MAX_ERROR_CHARS]
    return pb.BackgroundTask(name=name, **values)


def export_to_proto(
    exported: ExportedNgrams, files: Sequence[IO[bytes]], tokenizer: str
) -> Iterator[pb.ExportNgramsReply]:
    """A summary, then the files in pieces; the caller opens and closes them."""
    summary = pb.ExportNgramsSummary(
        tokenizer=tokenizer,
        outputs=exported.outputs,
        tokens=exported.tokens,
        files=[
            pb.NgramFileSummary(bytes=each.size_bytes, **shared_fields(pb.NgramFileSummary, each))
            for each in exported.files
        ],
    )
    yield pb.ExportNgramsReply(summary=summary)
    for number, file in enumerate(files):
        while data := file.read(EXPORT_PIECE_BYTES):
            yield pb.ExportNgramsReply(piece=pb.ExportNgramsPiece(file=number, data=data))


def backup_to_proto(manifest: BackupManifest) -> pb.BackupSummary:
    """The summary of a backup."""
    return pb.BackupSummary(**manifest.summary())
