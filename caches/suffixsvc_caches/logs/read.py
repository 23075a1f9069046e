"""Reading of a log: records, calls, filtering and assignment of sessions.

    file -> bytes -> lines | documents | rows -> records -> parser -> calls -> filter -> sessions -> LogCall

Reading is streaming: memory has a piece of the file, one record, and the current call.

Measured on 392 MB of recorded agent calls in .jsonl.gz, one thread of a busy two-core machine: 97 MB/s of
JSON, 48,000 calls a second, where bare gzip and orjson reach 216 MB/s. Omitting prompts saves nothing
measurable with JSON, since the line is parsed anyway; with Parquet their columns are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.errors import at_place
from suffixsvc_caches.logs.base.options import ReadOptions
from suffixsvc_caches.logs.base.sources import READ_ERRORS, open_pieces
from suffixsvc_caches.logs.calls.call import LogCall
from suffixsvc_caches.logs.files import LogFile
from suffixsvc_caches.logs.formats.values import Storage, read_values
from suffixsvc_caches.logs.parquet.row_groups import SkippedRows
from suffixsvc_caches.logs.parsers import Labels, RawCall, RecordParser, open_parser
from suffixsvc_caches.logs.report import LogFault, ReadReport
from suffixsvc_caches.logs.sessions import SessionAssigner
from suffixsvc_caches.logs.texts import BinaryFile, read_text

#: records after which a field that the user named must have occurred
_FIELD_CHECK_RECORDS: Final = 1000
_PLACE: Final = {
    Storage.LINES: "line",
    Storage.CSV: "line",
    Storage.DOCUMENT: "record",
    Storage.PARQUET: "row",
}


def read_calls(
    file: LogFile,
    options: ReadOptions,
    report: ReadReport,
    on_bytes: Callable[[int], None] | None = None,
) -> Iterator[LogCall]:
    """Yield the calls of a log that have a response and pass the filter, in the log's order.

    Unreadable records are skipped and reported; a truncated file is read up to the fault.

    Args:
        file: the log.
        options: how to read it.
        report: receives the counts and faults.
        on_bytes: progress callback: bytes of the file consumed.

    Raises:
        InvalidInputError: no record has a field that the options name; or, if ``options.strict``, the first
            fault, with file and line.
        MissingExtraError: a library for this format is not installed.
    """
    yield from _Reading(file, options, report, on_bytes).calls()


class _Reading:
    """One pass over one file."""

    def __init__(
        self, file: LogFile, options: ReadOptions, report: ReadReport, on_bytes: Callable[[int], None] | None
    ) -> None:
        self._file = file
        self._options = options
        self._report = report
        self._on_bytes = on_bytes
        self._counts = report.counts
        self._counts.files += 1
        self._consumed = 0
        self._place = 0
        self._sessions = SessionAssigner(options.split, file.name)

    def calls(self) -> Iterator[LogCall]:
        """Yield the calls and count them."""
        try:
            yield from self._from_text() if self._file.storage is Storage.TEXT else self._from_records()
        except READ_ERRORS as damage:
            self._counts.damaged += 1
            where = " from here on" if self._place else ""
            self._note(InvalidInputError(f"cannot be read{where}: {damage}"))

    def _from_text(self) -> Iterator[LogCall]:
        try:
            pieces = open_pieces(self._file.path, self._options.encoding, self._add_bytes)
            text = read_text(pieces, self._options.max_line_bytes)
        except BinaryFile:
            self._counts.binary += 1
            return
        except InvalidInputError as error:
            self._malformed(error)
            return
        labels = Labels("", self._file.name, "", self._file.path.suffix.lstrip("."), None, "")
        yield from self._accept(RawCall(labels, lambda: text, str))

    def _from_records(self) -> Iterator[LogCall]:
        parser = open_parser(self._file.format, self._options)
        count, example = 0, {}
        given = [finder for finder in parser.finders if finder.given]
        for record in self._records(parser):
            count += 1
            yield from self._calls_of(record, parser)
            if count == _FIELD_CHECK_RECORDS:
                self._require_fields(parser, record)
            # retained only for the error message about a missing field
            example = {} if all(finder.seen for finder in given) else record
            del record
        if 0 < count < _FIELD_CHECK_RECORDS:
            self._require_fields(parser, example)

    def _calls_of(self, record: dict[str, Any], parser: RecordParser) -> Iterator[LogCall]:
        try:
            for raw in parser.calls(record):
                yield from self._accept(raw)
        except InvalidInputError as error:
            self._malformed(error)
        except RecursionError:
            self._malformed(InvalidInputError("nested too deeply"))

    def _accept(self, raw: RawCall) -> Iterator[LogCall]:
        """Yield the call if it passes the filter and has a response."""
        labels, options = raw.labels, self._options
        # before the filter, so that sessions do not depend on it
        session = self._sessions.assign(labels.session, labels.time, self._place, raw.in_conversation)
        if not options.filter.admits(labels.agent, labels.model, labels.kind, labels.time):
            self._counts.filtered += 1
            return
        response = raw.response()
        if not len(response):
            self._counts.without_response += 1
        elif not options.filter.admits_length(len(response)):
            self._counts.filtered += 1
        else:
            prompt = raw.prompt() if options.want_prompt else ""
            self._counts.calls += 1
            yield LogCall(response, prompt, *labels._replace(session=session))

    def _records(self, parser: RecordParser) -> Iterator[dict[str, Any]]:
        without = frozenset[str]() if self._options.want_prompt else parser.unneeded
        file = self._file
        for place, value in read_values(
            file.path, file.storage, self._options, without=without, on_bytes=self._add_bytes
        ):
            self._place = place
            if isinstance(value, dict):
                yield value
            elif isinstance(value, InvalidInputError):
                self._malformed(value)
            else:
                self._malformed(InvalidInputError("a record must be an object", got=type(value).__name__))
            del value

    def _add_bytes(self, consumed: int) -> None:
        self._counts.bytes += consumed - self._consumed
        self._consumed = consumed
        if self._on_bytes is not None:
            self._on_bytes(consumed)

    def _malformed(self, error: InvalidInputError) -> None:
        self._counts.malformed += error.rows if isinstance(error, SkippedRows) else 1
        self._note(error)

    def _note(self, error: InvalidInputError) -> None:
        unit = _PLACE.get(self._file.storage, "")
        place = f"{unit} {self._place}" if unit and self._place else ""
        if self._options.strict:
            raise at_place(f"{self._file.path}:{self._place}" if place else self._file.path, error) from None
        self._report.add_fault(LogFault(self._file.path, place, str(error)))

    def _require_fields(self, parser: RecordParser, record: dict[str, Any]) -> None:
        """Check that each field that the user named has occurred in a record."""
        for finder in parser.finders:
            if finder.given and not finder.seen:
                raise at_place(self._file.path, finder.missing(record))
