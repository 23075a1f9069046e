"""The rollback journal of LMDB's meta pages: one record beside the data file.

A commit overwrites one meta page. LMDB, when that write fails, writes the old transaction number back and
leaves the new trees beside it. Such a page cannot be told from one whose number was damaged, and the page
that it was before is nowhere in the file. So it is in the journal before the commit begins:

    begun     not synced: the end of the process does not lose it. Put back by the next open where that finds
              the page half written; a commit that is whole on the disk stays
    failed    synced: callers may be told that nothing was kept. Put back by the next open in any case
    settled   the commit succeeded, or its page was put back

The record is within one sector, so that it is never half written. A journal that cannot be written keeps no
commit from being tried: while the process lives the page is put back from memory.
"""

from __future__ import annotations

import contextlib
import os
import struct
from dataclasses import dataclass
from typing import Final

import structlog

from suffixsvc.errors import StoreCorruptError
from suffixsvc.store.folder import disk_error, sync_folder
from suffixsvc.store.framing import CHECKSUM, RECORD_VERSION, open_record, require_length, seal

__all__ = ["JOURNAL_FILE", "META_BYTES", "MetaBefore", "MetaJournal"]

log = structlog.get_logger(__name__)

JOURNAL_FILE: Final = "meta.journal"
#: header and content of a meta page
META_BYTES: Final = 152
_RECORD: Final = struct.Struct("<4sHHQ")
_MAGIC: Final = b"SXMJ"
_BEGUN: Final = 1
_FAILED: Final = 2
_SETTLED: Final = bytes(8)
_READ_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class MetaBefore:
    """A meta page as it was before a commit.

    Attributes:
        txn: the number of the commit's transaction.
        raw: the page's header and content.
        failed: the commit is known to have failed.
    """

    txn: int
    raw: bytes
    failed: bool = False


class MetaJournal:
    """Of one data folder, whose lock is held. One thread at a time."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._path = os.path.join(folder, JOURNAL_FILE)
        self._fd = -1
        self._is_hot = False  # it holds a page that may have to be put back
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if not os.fstat(self._fd).st_size:
                os.pwrite(self._fd, bytes(_READ_BYTES), 0)  # so that it has its block
        except OSError as error:  # a full disk keeps no history from being read
            self._warn(error)

    def left(self) -> MetaBefore | None:
        """What a process left that was killed, or whose disk failed; None where all is settled."""
        if self._fd < 0:
            return None
        try:
            found = os.pread(self._fd, _READ_BYTES, 0)
        except OSError as error:
            raise disk_error(error, self._path, "reading") from error
        size = _RECORD.size + META_BYTES + CHECKSUM.size
        raw = found[:size]
        try:
            state, txn = open_record(raw, _RECORD, _MAGIC, "meta journal")
            require_length(raw, size, "meta journal")
        except StoreCorruptError:
            return None  # settled, or never written
        self._is_hot = True
        return MetaBefore(txn, raw[_RECORD.size : -CHECKSUM.size], state == _FAILED)

    def begin(self, before: MetaBefore) -> None:
        """A commit begins."""
        self._write(_BEGUN, before)

    def fail(self, before: MetaBefore) -> None:
        """It failed. Durable when this returns, as far as the disk takes it."""
        self._write(_FAILED, before)
        if self._fd >= 0:
            try:
                os.fsync(self._fd)
                sync_folder(self._folder)
            except OSError as error:
                self._warn(error)

    def end(self) -> None:
        """It succeeded, or has written nothing."""
        if self._fd >= 0:
            try:
                os.pwrite(self._fd, _SETTLED, 0)
                self._is_hot = False
            except OSError as error:  # the next open finds the page whole and leaves it
                self._warn(error)

    def settle(self) -> None:
        """The page was put back, or needs not to be. StoreError where that cannot be noted durably: the next
        commit has the same number, and a journal that says "failed" would take it back."""
        if self._fd < 0:
            return
        try:
            os.pwrite(self._fd, _SETTLED, 0)
            os.fsync(self._fd)
            self._is_hot = False
        except OSError as error:
            raise disk_error(error, self._path, "writing") from error

    def close(self) -> None:
        """Let go of the file, and remove it where nothing is to be put back. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            if not self._is_hot:
                with contextlib.suppress(OSError):  # it says that all is settled
                    os.unlink(self._path)
            os.close(fd)

    def _write(self, state: int, before: MetaBefore) -> None:
        if self._fd < 0:
            return
        self._is_hot = True
        try:
            os.pwrite(self._fd, seal(_RECORD.pack(_MAGIC, RECORD_VERSION, state, before.txn) + before.raw), 0)
        except OSError as error:
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        log.warning("meta journal not written", path=self._path, error=str(error))
