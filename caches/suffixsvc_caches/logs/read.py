"""Reading a log: its records, the calls in them, those that are wanted, in sessions.

    file -> bytes -> lines | documents | rows -> records -> shape -> calls -> filter -> sessions -> LogCall

Everything streams: memory holds a piece of the file, one record, and the call that is handed on.

Measured on 392 MB of recorded agent calls in .jsonl.gz, one thread of a busy two-core machine: 97 MB/s of
JSON, 48,000 calls a second, where bare gzip and orjson reach 216 MB/s. Leaving prompts out saves nothing
measurable with JSON, since the line is parsed anyway; Parquet then does not read their columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.logs.call import LogCall
from suffixsvc_caches.logs.csv_rows import read_csv
from suffixsvc_caches.logs.documents import read_documents
from suffixsvc_caches.logs.files import LogFile, Storage
from suffixsvc_caches.logs.lines import read_lines
from suffixsvc_caches.logs.options import ReadOptions
from suffixsvc_caches.logs.sessions import Sessions
from suffixsvc_caches.logs.shapes import Labels, RawCall, Shape, open_shape
from suffixsvc_caches.logs.sources import DAMAGE, open_pieces
from suffixsvc_caches.logs.tables import RowsLeftOut, read_rows
from suffixsvc_caches.logs.tally import LogCounts, LogFault, LogTally
from suffixsvc_caches.logs.texts import BinaryFile, read_text

__all__ = ["read_calls"]

#: A field that the user named and that none of so many records has is a mistake, not bad luck.
_ENOUGH: Final = 1000
#: numbers go to the tally, which is shared, after so many records
_FLUSH: Final = 256
_PLACE: Final = {
    Storage.LINES: "line",
    Storage.CSV: "line",
    Storage.DOCUMENT: "record",
    Storage.PARQUET: "row",
}


def read_calls(
    file: LogFile,
    options: ReadOptions,
    tally: LogTally,
    on_bytes: Callable[[int], None] | None = None,
) -> Iterator[LogCall]:
    """The calls of a log that have a response and pass the filter, in the log's order.

    What cannot be read is noted in the tally and left out; a file that ends early gives what it has.

    Args:
        tally: counts go there every few hundred records, and when the iterator ends or is closed.
        on_bytes: told now and then how many bytes of the file are consumed.

    Raises:
        InvalidInputError: a field that the options name is in no record; or, where ``options.strict``, the
            first thing that cannot be read, with file and line.
        MissingExtraError: a library that this kind of file needs is not installed.
    """
    reading = _Reading(file, options, tally, on_bytes)
    try:
        yield from reading.calls()
    finally:
        reading.flush()


class _Reading:
    """One pass over one file."""

    def __init__(
        self, file: LogFile, options: ReadOptions, tally: LogTally, on_bytes: Callable[[int], None] | None
    ) -> None:
        self._file = file
        self._options = options
        self._tally = tally
        self._on_bytes = on_bytes
        self._counts = LogCounts(files=1)
        self._consumed = 0
        self._place = 0
        self._sessions = Sessions(options.split, file.name)

    def flush(self) -> None:
        """Hand the numbers to the tally."""
        counts, self._counts = self._counts, LogCounts()
        self._tally.add(counts)

    def calls(self) -> Iterator[LogCall]:
        """The calls, each counted."""
        try:
            yield from self._text() if self._file.storage is Storage.TEXT else self._recorded()
        except DAMAGE as damage:
            self._counts.damaged += 1
            self._note(f"cannot be read{' from here on' if self._place else ''}: {damage}", None)

    def _text(self) -> Iterator[LogCall]:
        try:
            text = read_text(self._pieces(), self._options.max_line_bytes)
        except BinaryFile:
            self._counts.binary += 1
            return
        except InvalidInputError as error:
            self._malformed(error)
            return
        labels = Labels("", self._file.name, "", self._file.path.suffix.lstrip("."), None, "")
        call = self._wanted(RawCall(labels, lambda: text, str))
        if call is not None:
            yield call

    def _recorded(self) -> Iterator[LogCall]:
        shape = open_shape(self._file.format, self._options)
        count, example = 0, {}
        given = [finder for finder in shape.finders if finder.given]
        for record in self._records(shape):
            count += 1
            yield from self._calls_of(record, shape)
            if count == _ENOUGH:
                self._require_fields(shape, record)
            if count % _FLUSH == 0:
                self.flush()
            # kept only for an error that may have to show it: one record at a time is held
            example = {} if all(finder.seen for finder in given) else record
            del record
        if 0 < count < _ENOUGH:
            self._require_fields(shape, example)

    def _calls_of(self, record: dict[str, Any], shape: Shape) -> Iterator[LogCall]:
        try:
            for raw in shape.calls(record):
                call = self._wanted(raw)
                if call is not None:
                    yield call
        except InvalidInputError as error:
            self._malformed(error)
        except RecursionError:
            self._malformed(InvalidInputError("nested too deeply"))

    def _wanted(self, raw: RawCall) -> LogCall | None:
        """The call, where the filter admits it and it has a response."""
        labels, options = raw.labels, self._options
        # asked for every call, wanted or not: the sessions of the others do not depend on the filter
        session = self._sessions.of(labels.session, labels.time, self._place, raw.together)
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

    def _records(self, shape: Shape) -> Iterator[dict[str, Any]]:
        for place, value in self._values(shape):
            self._place = place
            if isinstance(value, dict):
                yield value
            elif isinstance(value, InvalidInputError):
                self._malformed(value)
            else:
                self._malformed(
                    InvalidInputError("no record", expected="an object", got=type(value).__name__)
                )
            del value

    def _values(self, shape: Shape) -> Iterator[tuple[int, Any]]:
        file, limit, depth = self._file, self._options.max_line_bytes, self._options.max_depth
        if file.storage is Storage.PARQUET:
            yield from read_rows(
                file.path,
                without=frozenset() if self._options.want_prompt else shape.unneeded,
                max_row_bytes=limit,
                max_page_bytes=self._options.max_page_bytes,
                on_bytes=self._told,
            )
        elif file.storage is Storage.DOCUMENT:
            yield from read_documents(self._pieces(), limit, depth)
        else:
            read = read_csv if file.storage is Storage.CSV else read_lines
            yield from read(self._pieces(), limit, depth)

    def _pieces(self) -> Iterator[bytes]:
        return open_pieces(self._file.path, self._options.encoding, self._told)

    def _told(self, consumed: int) -> None:
        self._counts.bytes += consumed - self._consumed
        self._consumed = consumed
        if self._on_bytes is not None:
            self._on_bytes(consumed)

    def _malformed(self, error: InvalidInputError) -> None:
        self._counts.malformed += error.rows if isinstance(error, RowsLeftOut) else 1
        self._note(str(error), error)

    def _note(self, reason: str, error: InvalidInputError | None) -> None:
        unit = _PLACE.get(self._file.storage, "")
        place = f"{unit} {self._place}" if unit and self._place else ""
        if not self._options.strict:
            self._tally.add_fault(LogFault(self._file.path, place, reason))
            return
        where = f"{self._file.path}:{self._place}" if place else str(self._file.path)
        raise InvalidInputError(
            f"{where}: {error.message if error else reason}",
            expected=error.expected if error else None,
            got=error.got if error else None,
            remedy=error.remedy if error else None,
        ) from None

    def _require_fields(self, shape: Shape, record: dict[str, Any]) -> None:
        """A field that the user named is somewhere in the log."""
        for finder in shape.finders:
            if finder.given and not finder.seen:
                error = finder.missing(record)
                raise InvalidInputError(
                    f"{self._file.path}: {error.message}",
                    expected=error.expected,
                    got=error.got,
                    remedy=error.remedy,
                )
