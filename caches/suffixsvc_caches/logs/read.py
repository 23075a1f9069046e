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
from suffixsvc_caches.logs.base.lines import read_lines
from suffixsvc_caches.logs.base.options import ReadOptions
from suffixsvc_caches.logs.base.sources import READ_ERRORS, open_pieces
from suffixsvc_caches.logs.calls.call import LogCall
from suffixsvc_caches.logs.files import LogFile, Storage
from suffixsvc_caches.logs.formats.csv_rows import read_csv
from suffixsvc_caches.logs.formats.documents import read_documents
from suffixsvc_caches.logs.parquet.tables import SkippedRows, read_rows
from suffixsvc_caches.logs.parsers import Labels, RawCall, RecordParser, open_parser
from suffixsvc_caches.logs.report import LogCounts, LogFault, ReadReport
from suffixsvc_caches.logs.sessions import SessionAssigner
from suffixsvc_caches.logs.texts import BinaryFile, read_text

__all__ = ["read_calls"]

#: records after which a field that the user named must have occurred
_FIELD_CHECK_RECORDS: Final = 1000
#: records between additions to the shared report
_FLUSH_RECORDS: Final = 256
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
        report: receives counts every few hundred records, and when the iterator ends or is closed.
        on_bytes: progress callback: bytes of the file consumed.

    Raises:
        InvalidInputError: no record has a field that the options name; or, if ``options.strict``, the first
            fault, with file and line.
        MissingExtraError: a library for this format is not installed.
    """
    reading = _Reading(file, options, report, on_bytes)
    try:
        yield from reading.calls()
    finally:
        reading.flush()


class _Reading:
    """One pass over one file."""

    def __init__(
        self, file: LogFile, options: ReadOptions, report: ReadReport, on_bytes: Callable[[int], None] | None
    ) -> None:
        self._file = file
        self._options = options
        self._report = report
        self._on_bytes = on_bytes
        self._counts = LogCounts(files=1)
        self._consumed = 0
        self._place = 0
        self._sessions = SessionAssigner(options.split, file.name)

    def flush(self) -> None:
        """Add the counts to the report."""
        counts, self._counts = self._counts, LogCounts()
        self._report.add(counts)

    def calls(self) -> Iterator[LogCall]:
        """Yield the calls and count them."""
        try:
            yield from self._from_text() if self._file.storage is Storage.TEXT else self._from_records()
        except READ_ERRORS as damage:
            self._counts.damaged += 1
            self._note(f"cannot be read{' from here on' if self._place else ''}: {damage}", None)

    def _from_text(self) -> Iterator[LogCall]:
        try:
            text = read_text(self._pieces(), self._options.max_line_bytes)
        except BinaryFile:
            self._counts.binary += 1
            return
        except InvalidInputError as error:
            self._malformed(error)
            return
        labels = Labels("", self._file.name, "", self._file.path.suffix.lstrip("."), None, "")
        call = self._accept(RawCall(labels, lambda: text, str))
        if call is not None:
            yield call

    def _from_records(self) -> Iterator[LogCall]:
        parser = open_parser(self._file.format, self._options)
        count, example = 0, {}
        given = [finder for finder in parser.finders if finder.given]
        for record in self._records(parser):
            count += 1
            yield from self._calls_of(record, parser)
            if count == _FIELD_CHECK_RECORDS:
                self._require_fields(parser, record)
            if count % _FLUSH_RECORDS == 0:
                self.flush()
            # retained only for the error message about a missing field
            example = {} if all(finder.seen for finder in given) else record
            del record
        if 0 < count < _FIELD_CHECK_RECORDS:
            self._require_fields(parser, example)

    def _calls_of(self, record: dict[str, Any], parser: RecordParser) -> Iterator[LogCall]:
        try:
            for raw in parser.calls(record):
                call = self._accept(raw)
                if call is not None:
                    yield call
        except InvalidInputError as error:
            self._malformed(error)
        except RecursionError:
            self._malformed(InvalidInputError("nested too deeply"))

    def _accept(self, raw: RawCall) -> LogCall | None:
        """Return the call if it passes the filter and has a response."""
        labels, options = raw.labels, self._options
        # before the filter, so that sessions do not depend on it
        session = self._sessions.assign(labels.session, labels.time, self._place, raw.in_conversation)
        if not options.filter.admits(labels.agent, labels.model, labels.kind, labels.time):
            self._counts.filtered += 1
            return None
        response = raw.response()
        if not len(response):
            self._counts.without_response += 1
            return None
        if not options.filter.admits_length(len(response)):
            self._counts.filtered += 1
            return None
        prompt = raw.prompt() if options.want_prompt else ""
        self._counts.calls += 1
        return LogCall(
            response, prompt, labels.agent, session, labels.model, labels.kind, labels.time, labels.tokenizer
        )

    def _records(self, parser: RecordParser) -> Iterator[dict[str, Any]]:
        for place, value in self._values(parser):
            self._place = place
            if isinstance(value, dict):
                yield value
            elif isinstance(value, InvalidInputError):
                self._malformed(value)
            else:
                self._malformed(InvalidInputError("a record must be an object", got=type(value).__name__))
            del value

    def _values(self, parser: RecordParser) -> Iterator[tuple[int, Any]]:
        file, limit, depth = self._file, self._options.max_line_bytes, self._options.max_depth
        if file.storage is Storage.PARQUET:
            yield from read_rows(
                file.path,
                without=frozenset() if self._options.want_prompt else parser.unneeded,
                max_row_bytes=limit,
                max_page_bytes=self._options.max_page_bytes,
                on_bytes=self._add_bytes,
            )
        elif file.storage is Storage.DOCUMENT:
            yield from read_documents(self._pieces(), limit, depth)
        else:
            read = read_csv if file.storage is Storage.CSV else read_lines
            yield from read(self._pieces(), limit, depth)

    def _pieces(self) -> Iterator[bytes]:
        return open_pieces(self._file.path, self._options.encoding, self._add_bytes)

    def _add_bytes(self, consumed: int) -> None:
        self._counts.bytes += consumed - self._consumed
        self._consumed = consumed
        if self._on_bytes is not None:
            self._on_bytes(consumed)

    def _malformed(self, error: InvalidInputError) -> None:
        self._counts.malformed += error.rows if isinstance(error, SkippedRows) else 1
        self._note(str(error), error)

    def _note(self, reason: str, error: InvalidInputError | None) -> None:
        unit = _PLACE.get(self._file.storage, "")
        place = f"{unit} {self._place}" if unit and self._place else ""
        if not self._options.strict:
            self._report.add_fault(LogFault(self._file.path, place, reason))
            return
        where = f"{self._file.path}:{self._place}" if place else str(self._file.path)
        raise InvalidInputError(
            f"{where}: {error.message if error else reason}",
            expected=error.expected if error else None,
            got=error.got if error else None,
            remedy=error.remedy if error else None,
        ) from None

    def _require_fields(self, parser: RecordParser, record: dict[str, Any]) -> None:
        """Check that each field that the user named has occurred in a record."""
        for finder in parser.finders:
            if finder.given and not finder.seen:
                error = finder.missing(record)
                raise InvalidInputError(
                    f"{self._file.path}: {error.message}",
                    expected=error.expected,
                    got=error.got,
                    remedy=error.remedy,
                )
