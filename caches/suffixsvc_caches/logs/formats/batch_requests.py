"""Lookup of batch requests by ``custom_id``: the prompts of a batch output are in the batch's input file.

    input:  {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [..]}}
    output: {"custom_id": "1", "response": {"status_code": 200, "body": {"choices": [..]}}, "error": null}

The output has no defined order, so the input is first copied, in one pass, to a private SQLite database in
the folder for temporary files, which is removed on close. Memory use is one line and SQLite's page cache.

Source: OpenAI, API reference of batches (the request input object, the request output object).
"""

from __future__ import annotations

import json
import sqlite3
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import InvalidInputError, StoreError
from suffixsvc_caches.logs.base.lines import read_lines
from suffixsvc_caches.logs.base.options import ReadOptions
from suffixsvc_caches.logs.base.sources import READ_ERRORS, open_pieces

#: the database is temporary: no journal, no sync
_CREATE: Final = """
    pragma journal_mode = off;
    pragma synchronous = off;
    create table requests (custom_id text primary key, body text);
"""
#: null marks a custom_id with several different requests
_INSERT: Final = """
    insert into requests values (?, ?)
    on conflict do update set body = case when body is excluded.body then body end
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
            "select body from requests where custom_id = ?", (str(custom_id),)
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
        return json.loads(found[0])

    def _read(self) -> sqlite3.Connection:
        # readers are generators, which may be closed in any thread
        requests = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, requests.close)
        try:
            requests.executescript(_CREATE)
            for path in self._options.batch_input:
                requests.executemany(_INSERT, self._read_requests(path))
        except sqlite3.Error as error:
            raise StoreError(
                f"cannot index {self._names}",
                got=str(error),
                remedy="Free space in the folder for temporary files, or set SQLITE_TMPDIR to another one.",
            ) from None
        return requests

    def _read_requests(self, path: Path) -> Iterator[tuple[str, str]]:
        """Yield (custom_id, body as JSON) of each request."""
        options, number = self._options, 0
        pieces = open_pieces(path, options.encoding)
        try:
            for number, request in read_lines(pieces, options.max_line_bytes, options.max_depth):
                match request:
                    case {"custom_id": str(custom_id), "body": dict(body)}:
                        yield custom_id, json.dumps(body)
                        del body
                    case InvalidInputError():
                        self._fault(f"{path}, line {number}: {request}")
                    case _:
                        reason = "a request must be an object with custom_id and body"
                        self._fault(f"{path}, line {number}: {reason}")
                del request  # before the next one is decoded, so that one record at a time is in memory
        except READ_ERRORS as damage:
            self._fault(f"{path}, after line {number}: {damage}")

    def _fault(self, reason: str) -> None:
        if self._options.strict:
            raise InvalidInputError(reason)
        self._faults += 1
        self._first_fault = self._first_fault or reason
