"""Rollback journal of LMDB's meta pages: one record in a file next to the data file.

A commit overwrites one meta page. If that write fails, LMDB restores the old transaction number and leaves
the new roots next to it. Such a page looks like one with a damaged number, and its before-image is nowhere in
the file. It is therefore journaled before the commit begins:

    begun     not synced, but survives the end of the process. The next open restores the page if it is half
              written; a complete commit is retained
    failed    synced before a caller learns of the failure. The next open restores the page in any case
    zeros     cleared: the commit succeeded, or its page was restored

The file is one sector, so that it is never half written. Commits continue if the journal cannot be written:
while the process lives, the page is restored from memory. A journal that cannot be read prevents the folder
from opening, because it may hold a page that must be restored.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Final

import structlog

from suffixsvc.errors import StoreCorruptError, StoreForeignError
from suffixsvc.runtime.atomic_file import sync_folder
from suffixsvc.store.files.folder import disk_error
from suffixsvc.store.records.framing import Layout

log = structlog.get_logger(__name__)

JOURNAL_FILE: Final = "meta.journal"
#: header and content of a meta page
META_BYTES: Final = 152
#: version 1 had no digest, and was never released
_VERSION: Final = 2
_MAGIC: Final = b"SXMJ"
#: transaction, digest; the page. The flags are the state
_RECORD: Final = Layout(_MAGIC, f"QQ{META_BYTES}s", _VERSION, flags=3)
_CLEARED: Final = 0
_BEGUN: Final = 1
_FAILED: Final = 2
_SECTOR: Final = 512


@dataclass(frozen=True, slots=True)
class MetaBeforeImage:
    """Before-image of the meta page that a commit overwrites.

    Attributes:
        txn: number of the commit's transaction.
        tree_digest: hash of the records that the transaction before it committed. Other files, and copies of
            this file with later commits, have another one.
        raw: the page's header and content.
        failed: whether the commit is known to have failed.
    """

    txn: int
    tree_digest: int
    raw: bytes
    failed: bool = False


def encode_before_image(before: MetaBeforeImage) -> bytes:
    """Return the journal record, without the zeros after it."""
    return _RECORD.encode(before.txn, before.tree_digest, before.raw, flags=_state_of(before))


def _state_of(before: MetaBeforeImage) -> int:
    return _FAILED if before.failed else _BEGUN


class MetaJournal:
    """The journal of one data folder, whose lock is held. Not thread-safe.

    Attributes:
        pending: before-image that an earlier process left, by being killed or because its disk failed; None
            if there is none.

    Raises:
        StoreForeignError: the file is another program's, or of another version. It is left unchanged.
        StoreError: the journal cannot be read.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._path = os.path.join(folder, JOURNAL_FILE)
        self._state = _CLEARED  # state of the file, as of the last successful write
        self._has_warned = False
        self._fd = self._open()
        try:
            self.pending = self._read()
        except BaseException:
            if self._fd >= 0:
                os.close(self._fd)
            raise
        if self.pending is not None:
            self._state = _state_of(self.pending)

    def write(self, before: MetaBeforeImage) -> None:
        """Record that a commit begins, or has failed. A failure is synced if the disk still accepts it."""
        if self._fd < 0:
            return
        try:
            os.pwrite(self._fd, encode_before_image(before).ljust(_SECTOR, b"\0"), 0)
            self._state = _state_of(before)
            if before.failed:
                os.fsync(self._fd)
                sync_folder(self._folder)
            self._has_warned = False
        except OSError as error:
            self._warn(error)

    def clear(self) -> None:
        """Overwrite the record: the commit succeeded or wrote nothing, or its page was restored.

        Raises:
            StoreError: a record in state "failed" cannot be overwritten durably. It would roll back the next
                commit, which can have the same number; a record in state "begun" would not.
        """
        was_failed = self._state == _FAILED
        try:
            if self._state != _CLEARED:
                os.pwrite(self._fd, bytes(_SECTOR), 0)
                if was_failed:
                    os.fsync(self._fd)
                self._state = _CLEARED
        except OSError as error:
            if was_failed:
                raise disk_error(error, self._path, "writing") from error
            self._warn(error)

    def close(self) -> None:
        """Close the file, and remove it if it is cleared. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            if self._state == _CLEARED:
                with contextlib.suppress(OSError):  # a cleared file is harmless
                    os.unlink(self._path)
            os.close(fd)

    def _open(self) -> int:
        """Open or create the journal; return the descriptor, or -1 if none can be created."""
        try:
            return os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise disk_error(error, self._path, "opening") from error
        fd = -1
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            os.pwrite(fd, bytes(_SECTOR), 0)  # allocates its block
        except OSError as error:  # a full disk does not prevent reading
            self._warn(error)
        return fd

    def _read(self) -> MetaBeforeImage | None:
        if self._fd < 0:
            return None
        try:
            found = os.pread(self._fd, _SECTOR + 1, 0)
        except OSError as error:
            raise disk_error(error, self._path, "reading") from error
        if not any(found[:8]) and len(found) <= _SECTOR:  # version 1 cleared 8 bytes
            return None
        if found[:4] != _MAGIC or len(found) > _SECTOR:
            raise StoreForeignError(
                f"{self._path} is not a journal of suffixsvc",
                expected=f"magic {_MAGIC.decode()}, at most {_SECTOR} bytes",
                got=f"magic {found[:4]!r}",
                remedy="Move the file away, or name another data folder; it is left unchanged.",
            )
        version = int.from_bytes(found[4:6], "little")
        if version != _VERSION:
            raise StoreForeignError(
                f"{self._path} has another record version",
                expected=_VERSION,
                got=version,
                remedy="Open the folder once with the release of suffixsvc that wrote it.",
            )
        try:
            state, txn, digest, raw, _ = _RECORD.decode(found[: _RECORD.record_bytes], "meta journal")
        except StoreCorruptError:
            return None  # damaged: the checks of the data file decide
        return MetaBeforeImage(txn, digest, raw, state == _FAILED)

    def _warn(self, error: OSError) -> None:
        if not self._has_warned:  # once, until a write succeeds: each commit has two
            log.warning("meta journal not written", path=self._path, error=str(error))
        self._has_warned = True
