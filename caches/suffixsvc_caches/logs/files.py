"""Discovery of log files and detection of their format: by content, then by name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from suffixsvc.errors import InvalidInputError, MissingExtraError
from suffixsvc_caches.logs.base.json_text import parse_json
from suffixsvc_caches.logs.base.lines import split_lines
from suffixsvc_caches.logs.base.options import LogFormat, ReadOptions
from suffixsvc_caches.logs.base.sources import READ_ERRORS, compression, open_pieces
from suffixsvc_caches.logs.formats.values import Storage, read_values
from suffixsvc_caches.logs.parquet.tables import is_table
from suffixsvc_caches.logs.parsers import detect_format

if TYPE_CHECKING:
    from pathspec import PathSpec

_LINES: Final = (".jsonl", ".ndjson")
_TABLES: Final = (".csv", ".tsv")
_COMPRESSED: Final = (".gz", ".zst")


def _named(*suffixes: str) -> tuple[str, ...]:
    return tuple(f"*{suffix}{compressed}" for suffix in suffixes for compressed in ("", *_COMPRESSED))


#: default patterns for folders; without CSV, since most tables beside logs are not logs
_LOGS: Final = (*_named(*_LINES, ".json"), "*.parquet")
_CSVS: Final = _named(*_TABLES)
#: default exclusions: version control, caches, generated and third-party files
_EXCLUDES: Final = (
    ".git/",
    ".hg/",
    ".svn/",
    "__pycache__/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".tox/",
    ".venv/",
    "venv/",
    "node_modules/",
    "*.min.js",
    "*.min.css",
    "*.map",
    "*.lock",
    "package-lock.json",
)
#: records inspected to detect a format
_PROBE_RECORDS: Final = 16


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log file with its detected format.

    Attributes:
        path: the file.
        name: path relative to the folder that was given, or the file name; used in names of sessions.
        format: format of its records; never AUTO.
        storage: physical format.
        compression: "gzip", "zstd" or "".
        size: bytes at detection.
    """

    path: Path
    name: str
    format: LogFormat
    storage: Storage
    compression: str
    size: int

    @property
    def found(self) -> str:
        """Detected format, for messages."""
        stored = f"{self.storage}, {self.compression}" if self.compression else str(self.storage)
        return stored if self.storage is Storage.TEXT else f"{stored}: {self.format}"


def find_logs(paths: Sequence[Path], options: ReadOptions) -> list[LogFile]:
    """Find logs: the files given, and the logs in the folders given, each file once, sorted within a folder.

    Raises:
        InvalidInputError: a path does not exist, or a folder has no log.
        MissingExtraError: folders need the library ``pathspec``, which is not installed.
    """
    for path in options.batch_input:
        if not path.is_file():
            raise InvalidInputError(f"batch input {path} must be a file", got="a folder or no such file")
    found: dict[Path, LogFile] = {}
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(_walk(path, options))
            if not inside:
                text = options.format is LogFormat.TEXT
                raise InvalidInputError(
                    f"the folder {path} must have logs",
                    expected=f"files {' or '.join(_wanted(options))}",
                    got="none",
                    remedy=None if text else "Use the format text for a folder of text or source code.",
                )
            named = [(path / name, name) for name in inside]
        elif path.is_file():
            named = [(path, path.name)]
        else:
            raise InvalidInputError(f"log {path} must be a file or a folder", got="no such file")
        for log, name in named:
            real = log.resolve()
            if real not in found:
                found[real] = _detect(log, name, options)
    return list(found.values())


def _wanted(options: ReadOptions) -> tuple[str, ...]:
    """Patterns of the files in folders."""
    usual = {LogFormat.TEXT: ("*",), LogFormat.CSV: _CSVS}
    return options.include or usual.get(options.format, _LOGS)


def _walk(root: Path, options: ReadOptions) -> Iterator[str]:
    """Yield the relative paths of the matching files of a folder, with slashes."""
    excluded = _patterns((*_EXCLUDES, *options.exclude))
    included = _patterns(_wanted(options))
    for folder, folders, files in os.walk(root, onerror=_raise):
        below = Path(folder).relative_to(root).as_posix()
        prefix = "" if below == "." else f"{below}/"
        folders[:] = [name for name in folders if not excluded.match_file(f"{prefix}{name}/")]
        for name in files:
            path = prefix + name
            if included.match_file(path) and not excluded.match_file(path) and (root / path).is_file():
                yield path


def _raise(error: OSError) -> None:
    raise InvalidInputError(f"cannot list the folder {error.filename}", got=error.strerror) from None


def _patterns(patterns: Sequence[str]) -> PathSpec[Any]:
    try:
        from pathspec import PathSpec  # noqa: PLC0415 - optional
    except ModuleNotFoundError:
        raise MissingExtraError("caches", "pathspec") from None
    try:
        return PathSpec.from_lines("gitignore", patterns)
    except ValueError as error:
        raise InvalidInputError(
            "include and exclude must be patterns as in .gitignore", got=str(error)
        ) from None


def _detect(path: Path, name: str, options: ReadOptions) -> LogFile:
    try:
        storage = _storage(path, options)
        form = _format(path, storage, options)
        packed, size = compression(path), path.stat().st_size
    except READ_ERRORS:
        # reading the file will report the fault
        storage, form, packed, size = _storage_by_name(path, options), options.format, "", 0
    if form is LogFormat.AUTO:
        form = LogFormat.TEXT if storage is Storage.TEXT else LogFormat.JSONL
    return LogFile(path, name, form, storage, packed, size)


def _storage(path: Path, options: ReadOptions) -> Storage:
    if options.format is LogFormat.TEXT:
        return Storage.TEXT
    by_name = _storage_by_name(path, options)
    if is_table(path):
        return Storage.PARQUET
    pieces = open_pieces(path, options.encoding)
    first = next(
        (line for _, line in split_lines(pieces, options.max_line_bytes) if line is None or line.strip()), b""
    )
    if first is None:
        return by_name
    first = first.strip()
    if by_name is Storage.TEXT or (by_name is Storage.CSV and not first.startswith(b"[")):
        # with such a name the file is JSON lines only if its first line is a complete record
        return Storage.LINES if _is_record(first) else by_name
    if first.startswith(b"[") or (
        by_name is Storage.DOCUMENT and first.startswith(b"{") and not _is_record(first)
    ):
        return Storage.DOCUMENT
    return Storage.PARQUET if by_name is Storage.PARQUET else Storage.LINES


def _storage_by_name(path: Path, options: ReadOptions) -> Storage:
    suffix = path.with_suffix("").suffix if path.suffix in _COMPRESSED else path.suffix
    if options.format is LogFormat.PARQUET or suffix == ".parquet":
        return Storage.PARQUET
    if options.format is LogFormat.CSV or suffix in _TABLES:
        return Storage.CSV
    if suffix in _LINES:
        return Storage.LINES
    if suffix == ".json":
        return Storage.DOCUMENT
    return Storage.TEXT if options.format in (LogFormat.AUTO, LogFormat.TEXT) else Storage.LINES


def _is_record(line: bytes) -> bool:
    try:
        return isinstance(parse_json(line), dict)
    except InvalidInputError:
        return False


def _format(path: Path, storage: Storage, options: ReadOptions) -> LogFormat:
    if storage is Storage.TEXT:
        return LogFormat.TEXT
    if options.format is not LogFormat.AUTO:
        return options.format
    if options.response_field:
        return LogFormat.JSONL  # the user named the field
    for _, record in islice(read_values(path, storage, options, batch_rows=_PROBE_RECORDS), _PROBE_RECORDS):
        form = detect_format(record) if isinstance(record, dict) else None
        if form is not None:
            return form
        del record  # before the next one is decoded, so that one record at a time is in memory
    return LogFormat.AUTO
