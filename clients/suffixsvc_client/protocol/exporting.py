"""Requests of exports, and the writer of their replies. Shared by both clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import IO

from suffixsvc.errors import InvalidInputError, ProtocolError
from suffixsvc.lookup_records import RecordFile
from suffixsvc.v1 import suffix_cache_pb2 as pb

__all__ = ["ExportSink", "ExportSummary", "ExportedFileSummary", "export_request"]


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
            self._summary = _summary(reply.summary)
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


def _summary(message: pb.ExportNgramsSummary) -> ExportSummary:
    files = (
        ExportedFileSummary(each.records, each.pairs, each.bytes, each.count_sum, each.occurrences)
        for each in message.files
    )
    return ExportSummary(message.tokenizer, message.outputs, message.tokens, tuple(files))
