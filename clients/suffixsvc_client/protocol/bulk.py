"""Bulk calls: messages of a bulk load, split by the service's limits; requests and replies of an export."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import IO, Final, NamedTuple

from suffixsvc import wire
from suffixsvc.errors import InvalidInputError, ProtocolError
from suffixsvc.lookup_records import RecordFile
from suffixsvc.types import NewOutput
from suffixsvc.v1 import suffix_cache_pb2 as pb

#: approximate size of one AddOutputs message
UPLOAD_BYTES = 1 << 20
#: the namespace and the tokenizer of such a message
_HEAD_BYTES: Final = 1024
#: the tag and the length of an output
_ITEM_HEAD_BYTES: Final = 6


class MessageLimits(NamedTuple):
    """Limits on one message of a bulk load: outputs, runs of output, bytes."""

    outputs: int = 1 << 62
    segments: int = 1 << 62
    size: int = UPLOAD_BYTES


def message_limits(info: pb.GetServerInfoReply) -> MessageLimits:
    """The limits of a service; a service that reports none has none."""
    none = MessageLimits()
    # names and framing take some bytes as well
    size = max(1, info.max_message_bytes - _HEAD_BYTES) if info.max_message_bytes else none.size
    return MessageLimits(
        info.max_outputs_per_message or none.outputs,
        info.max_segments_per_message or none.segments,
        min(none.size, size),
    )


def upload_messages(
    namespace: str, tokenizer: str, outputs: Iterable[NewOutput], limits: MessageLimits
) -> Iterator[pb.AddOutputsRequest]:
    """The outputs as messages within the limits; one message without outputs if there are none."""
    message = pb.AddOutputsRequest(namespace=namespace, tokenizer=tokenizer)
    size = segments = 0
    for output in outputs:
        item = pb.OutputItem(
            token_ids=wire.pack_tokens(output.token_ids),
            prompt_token_ids=wire.pack_tokens(output.prompt_tail),
            labels=dict(output.labels),
            ttl_seconds=output.ttl_seconds,
            segment_lens=output.segment_lens,
            incomplete=output.incomplete,
            corpus=output.corpus,
            uuid=output.uuid,
        )
        item_size = item.ByteSize() + _ITEM_HEAD_BYTES
        full = (
            size + item_size > limits.size
            or segments + len(item.segment_lens) > limits.segments
            or len(message.outputs) >= limits.outputs
        )
        if message.outputs and full:
            yield message
            message, size, segments = pb.AddOutputsRequest(namespace=namespace, tokenizer=tokenizer), 0, 0
        message.outputs.append(item)
        size += item_size
        segments += len(item.segment_lens)
    yield message


@dataclass(frozen=True, slots=True)
class ExportedFileSummary:
    """Summary of one file of records.

    Attributes:
        records: number of n-grams.
        pairs: number of (n-gram, follower) pairs.
        size_bytes: size of the file.
        count_sum: sum of the counts as written.
        occurrences: number of n-grams with a follower, before any cut.
    """

    records: int
    pairs: int
    size_bytes: int
    count_sum: int
    occurrences: int


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """Summary of an export: the namespace's tokenizer fingerprint ("" = none), outputs, tokens, files."""

    tokenizer: str
    outputs: int
    tokens: int
    files: tuple[ExportedFileSummary, ...]


def export_request(
    namespace: str, tokenizer: str | None, wanted: Sequence[RecordFile], context_tokens: int
) -> pb.ExportNgramsRequest:
    """The request of an export. Raises InvalidInputError if a number does not fit its field."""
    try:
        files = [pb.NgramFile(**asdict(each)) for each in wanted]
        return pb.ExportNgramsRequest(
            namespace=namespace, tokenizer=tokenizer or "", files=files, context_tokens=context_tokens
        )
    except (ValueError, TypeError) as error:
        raise InvalidInputError("n-gram files must have numbers of 0 or more", got=error) from None


class ExportSink:
    """Writes the pieces of an export to its files.

    Args:
        sinks: one file, opened for writing bytes, for each requested one.
    """

    def __init__(self, sinks: Sequence[IO[bytes]]) -> None:
        self._sinks = sinks
        self._written = [0] * len(sinks)
        self._summary: ExportSummary | None = None

    def take(self, reply: pb.ExportNgramsReply) -> None:
        """Process one reply. Raises ProtocolError if it belongs to no requested file."""
        if reply.WhichOneof("part") == "summary":
            summary = reply.summary
            files = tuple(
                ExportedFileSummary(each.records, each.pairs, each.bytes, each.count_sum, each.occurrences)
                for each in summary.files
            )
            self._summary = ExportSummary(summary.tokenizer, summary.outputs, summary.tokens, files)
            return
        piece = reply.piece
        if self._summary is None or piece.file >= len(self._sinks):
            raise ProtocolError(
                "a piece of an export must follow the summary and name a requested file", got=piece.file
            )
        self._sinks[piece.file].write(piece.data)
        self._written[piece.file] += len(piece.data)

    def summary(self) -> ExportSummary:
        """The summary, after the last reply. Raises ProtocolError if pieces are missing."""
        expected = [each.size_bytes for each in self._summary.files] if self._summary else None
        if self._summary is None or expected != self._written:
            raise ProtocolError("an export is incomplete", expected=f"{expected} bytes", got=self._written)
        return self._summary
