"""``backup.json``: what a backup holds, and the checksums of its files. docs/format.md is the contract."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import xxhash
from pydantic import TypeAdapter, ValidationError

from suffixsvc.errors import StoreCorruptError, StoreError, StoreForeignError
from suffixsvc.store.files.folder import DATA_FILE, disk_error

MANIFEST_NAME: Final = "backup.json"
_FORMAT: Final = "suffixsvc-backup/1"
#: a larger file is not a manifest
_MOST_BYTES: Final = 64 << 20
_PIECE_BYTES: Final = 1 << 20
#: of a segment file
HEADER_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class DataFileEntry:
    """The data file: size in bytes, and xxh3-128 of its content in 32 hexadecimal digits."""

    bytes: int
    xxh3: str


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """A segment file: its name, size, and xxh3-128 of its header, which has the checksums of the rest."""

    name: str
    bytes: int
    header_xxh3: str


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """Contents of a backup.

    Attributes:
        created_at: UTC, ISO 8601.
        made_by: name and version of the program.
        node_id: of the log, 16 hexadecimal digits.
        lsn: the backup holds the log as of this LSN.
        namespaces, outputs, tokens: totals.
        data: ``data.mdb``.
        segments: files in ``segments/``, by name.
    """

    created_at: str
    made_by: str
    node_id: str
    lsn: int
    namespaces: int
    outputs: int
    tokens: int
    data: DataFileEntry
    segments: tuple[SegmentEntry, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Bytes of the files."""
        return self.data.bytes + sum(each.bytes for each in self.segments)

    def summary(self) -> dict[str, int]:
        """Return LSN and totals."""
        return {
            "lsn": self.lsn,
            "namespaces": self.namespaces,
            "outputs": self.outputs,
            "tokens": self.tokens,
            "segments": len(self.segments),
            "bytes": self.total_bytes,
        }

    def as_json(self) -> str:
        """Return the text of the file."""
        fields = {"format": _FORMAT, **asdict(self)}
        return json.dumps({**fields, "checksum": _checksum(fields)}, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: bytes, where: str) -> BackupManifest:
        """Parse the text of :meth:`as_json`.

        Raises:
            StoreForeignError: not a manifest, or one of another version.
            StoreCorruptError: the checksum does not match, or a field is malformed.
        """
        try:
            fields: Any = json.loads(text)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict) or not isinstance(fields.get("format"), str):
            raise StoreForeignError(
                f"{where} must be the manifest of a backup",
                expected='a JSON object with "format"',
                got=repr(text[:40]),
                remedy="Name the folder that `suffixsvc backup` wrote.",
            )
        if fields["format"] != _FORMAT:
            raise StoreForeignError(
                f"{where} must have a supported format",
                expected=_FORMAT,
                got=fields["format"][:80],
                remedy="Restore it with the release of suffixsvc that wrote it, or a newer one.",
            )
        checksum = fields.pop("checksum", None)
        if checksum != _checksum(fields):
            raise _damaged(f"{where}: checksum does not match", _checksum(fields), repr(checksum)[:80])
        del fields["format"]
        try:
            manifest = _ADAPTER.validate_json(json.dumps(fields), strict=True)
        except ValidationError as error:
            raise _damaged(f"{where}: a field is missing or malformed", got=str(error)[:200]) from None
        names = [each.name for each in manifest.segments]
        if any("/" in name or "\0" in name or name in ("", ".", "..") for name in names):
            raise _damaged(f"{where}: segments must be file names", got=str(names)[:200])
        return manifest


_ADAPTER: Final = TypeAdapter(BackupManifest)


def read_manifest(folder: Path) -> BackupManifest:
    """Read the manifest of a backup.

    Raises:
        StoreForeignError: the folder is not a complete backup, or one of another version.
        StoreCorruptError: it is damaged.
        StoreError: it cannot be read.
    """
    path = folder / MANIFEST_NAME
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise StoreForeignError(
            f"{folder} must be a backup",
            expected=f"a folder with {MANIFEST_NAME} and {DATA_FILE}",
            got=f"no {MANIFEST_NAME}",
            remedy="Name the folder that `suffixsvc backup` wrote. A backup that was interrupted has none.",
        ) from None
    except OSError as error:
        raise disk_error(error, str(path), "reading") from error
    return BackupManifest.from_json(text, str(path))


def file_xxh3(path: Path, limit: int = -1) -> tuple[int, str]:
    """Return (bytes read, their xxh3-128) of a file or of its first ``limit`` bytes. OSError."""
    digest = xxhash.xxh3_128()
    size = 0
    with path.open("rb") as file:
        while data := file.read(_PIECE_BYTES if limit < 0 else min(_PIECE_BYTES, limit - size)):
            digest.update(data)
            size += len(data)
    return size, digest.hexdigest()


def _checksum(fields: dict[str, Any]) -> str:
    """The xxh3-64 of the fields as JSON with sorted keys and without spaces, 16 hexadecimal digits."""
    plain = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_64_hexdigest(plain.encode())


def _damaged(what: str, expected: object = None, got: object = None) -> StoreError:
    return StoreCorruptError(
        what, expected=expected, got=got, remedy="Restore another backup; this one is left unchanged."
    )
