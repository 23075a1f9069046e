"""Lookup of batch requests by ``custom_id``: the prompts of a batch output are in the batch's input file.

    input:  {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [..]}}
    output: {"custom_id": "1", "response": {"status_code": 200, "body": {"choices": [..]}}, "error": null}

The output has no defined order, so the input is first copied, in one pass, to a private SQLite database in
the folder for temporary files, which is removed on close. Memory use is one line and SQLite's page cache.

Source: OpenAI, API reference of batches (the request input object, the request output object).
"""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import InvalidInputError, StoreError
from suffixsvc_caches.logs.base.json_text import parse_json
from suffixsvc_caches.logs.base.lines import split_lines, too_long
from suffixsvc_caches.logs.base.options import ReadOptions
from suffixsvc_caches.logs.base.sources import READ_ERRORS, open_pieces

__all__ = ["BatchRequests"]

#: the database is temporary: no journal, no sync
_CREATE: Final = """
    pragma journal_mode = off;
    pragma synchronous = off;
    create table requests (custom_id text primary key, line blob);
"""
#: null marks a custom_id with several different requests
_INSERT: Final = """
    insert into requests values (?, ?)
    on conflict do update set line = case when line is excluded.line then line end
"""


class BatchRequests:
    """The requests in ``options.batch_input``, read on the first lookup."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._names = ", ".join(str(path) for path in options.batch_input)
        self._requests: sqlite3.Connection | None = None
        self._faults = 0
        self._first_fault = ""

    def body(self, custom_id: Any) -> Any:
        """Return the body of a request.

        Raises:
            InvalidInputError: there is no such request, or several different ones; or, if
                ``options.strict``, a line of the input is malformed.
            StoreError: the temporary database cannot be written.
            MissingExtraError: a library for the input's format is not installed.
        """
        if self._requests is None:
            self._requests = self._read()
        found = self._requests.execute(
            "select line from requests where custom_id = ?", (str(custom_id),)
        ).fetchone()
        if found is None:
            raise InvalidInputError(
                f"no request with the custom_id {str(custom_id)[:80]!r}",
                expected=f"one in {self._names}",
                got=f"{self._faults:,} that cannot be read: {self._first_fault}" if self._faults else None,
            )
        if found[0] is None:
            raise InvalidInputError(
                f"several requests with the custom_id {str(custom_id)[:80]!r}",
                expected=f"one in {self._names}",
                remedy="Read the batches one by one, each with its input.",
            )
        return parse_json(found[0], self._options.max_depth)["body"]

    def _read(self) -> sqlite3.Connection:
        # readers are generators, which may be closed in any thread
        requests = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, requests.close)
        try:
            requests.executescript(_CREATE)
            for path in self._options.batch_input:
                requests.executemany(_INSERT, self._lines(path))
        except sqlite3.Error as error:
            raise StoreError(
                f"cannot index {self._names}",
                got=str(error),
                remedy="Free space in the folder for temporary files, or set SQLITE_TMPDIR to another one.",
            ) from None
        return requests

    def _lines(self, path: Path) -> Iterator[tuple[str, bytes]]:
        """Yield (custom_id, line) of each request."""
        limit = self._options.max_line_bytes
        number = 0
        try:
            for number, line in split_lines(open_pieces(path, self._options.encoding), limit):
                try:
                    if line is None:
                        raise too_long("line", limit)
                    if line and not line.isspace():
                        yield _custom_id(parse_json(line, self._options.max_depth)), line
                except InvalidInputError as error:
                    self._fault(f"{path}, line {number}: {error}")
        except READ_ERRORS as damage:
            self._fault(f"{path}, after line {number}: {damage}")

    def _fault(self, reason: str) -> None:
        if self._options.strict:
            raise InvalidInputError(reason)
        self._faults += 1
        self._first_fault = self._first_fault or reason


def _custom_id(request: Any) -> str:
    if (
        isinstance(request, dict)
        and isinstance(request.get("body"), dict)
        and isinstance(request.get("custom_id"), str)
    ):
        return str(request["custom_id"])
    raise InvalidInputError("a request must be an object with custom_id and body")
