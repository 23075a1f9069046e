"""What an export asks for, and what is made of its answer. Shared by both clients."""

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
    """One file of records.

    Attributes:
        records, pairs, size_bytes: n-grams, their followers, the file.
        count_sum: of the counts as written.
        occurrences: of n-grams with a follower, before any cut.
    """

    records: int
    pairs: int
    size_bytes: int
    count_sum: int
    occurrences: int


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """What was counted: the namespace's tokenizer fingerprint ("" = none), outputs, tokens, and the files."""

    tokenizer: str
    outputs: int
    tokens: int
    files: tuple[ExportedFileSummary, ...]


def export_request(
    namespace: str, tokenizer: str | None, wanted: Sequence[RecordFile], context_tokens: int
) -> pb.ExportNgramsRequest:
    """The request. InvalidInputError: a number that no message can hold."""
    try:
        files = [pb.NgramFile(**asdict(each)) for each in wanted]
        return pb.ExportNgramsRequest(
            namespace=namespace, tokenizer=tokenizer or "", files=files, context_tokens=context_tokens
        )
    except (ValueError, TypeError) as error:
        raise InvalidInputError("no such n-grams", expected="numbers of 0 or more", got=error) from None


class ExportSink:
    """Writes the pieces of an answer where they belong.

    Args:
        sinks: a file opened for writing bytes, for each that is wanted.
    """

    def __init__(self, sinks: Sequence[IO[bytes]]) -> None:
        self._sinks = sinks
        self._written = [0] * len(sinks)
        self._summary: ExportSummary | None = None

    def take(self, reply: pb.ExportNgramsReply) -> None:
        """One message of the answer. ProtocolError: it makes no sense."""
        if reply.WhichOneof("part") == "summary":
            self._summary = _summary(reply.summary)
            return
        piece = reply.piece
        if self._summary is None or piece.file >= len(self._sinks):
            raise ProtocolError("a piece of an export belongs to no file", got=piece.file)
        self._sinks[piece.file].write(piece.data)
        self._written[piece.file] += len(piece.data)

    def summary(self) -> ExportSummary:
        """The summary, once all has come. ProtocolError: not all has."""
        expected = [each.size_bytes for each in self._summary.files] if self._summary else None
        if self._summary is None or expected != self._written:
            raise ProtocolError("an export is not whole", expected=f"{expected} bytes", got=self._written)
        return self._summary


def _summary(message: pb.ExportNgramsSummary) -> ExportSummary:
    files = (
        ExportedFileSummary(each.records, each.pairs, each.bytes, each.count_sum, each.occurrences)
        for each in message.files
    )
    return ExportSummary(message.tokenizer, message.outputs, message.tokens, tuple(files))
