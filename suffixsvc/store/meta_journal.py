"""The rollback journal of LMDB's meta pages: one record beside the data file.

A commit overwrites one meta page. LMDB, when that write fails, writes the old transaction number back and
leaves the new trees beside it. Such a page cannot be told from one whose number was damaged, and the page
that it was before is nowhere in the file. So it is in the journal before the commit begins:

    begun     not synced: the end of the process does not lose it. Put back by the next open where that finds
              the page half written; a commit that is whole on the disk stays
    failed    synced: callers may be told that nothing was kept. Put back by the next open in any case
    zeros     settled: the commit succeeded, or its page was put back

The file is one sector, so that it is never half written. A journal that cannot be written keeps no commit
from being tried: while the process lives the page is put back from memory. One that cannot be read may ask
for a page, so it keeps the folder from opening.
"""

from __future__ import annotations

import contextlib
import os
import struct
from dataclasses import dataclass
from typing import Final

import structlog

from suffixsvc.errors import StoreCorruptError, StoreForeignError
from suffixsvc.store.folder import disk_error, sync_folder
from suffixsvc.store.framing import CHECKSUM, open_record, seal

__all__ = ["JOURNAL_FILE", "META_BYTES", "MetaBefore", "MetaJournal", "encode_before"]

log = structlog.get_logger(__name__)

JOURNAL_FILE: Final = "meta.journal"
#: header and content of a meta page
META_BYTES: Final = 152
#: version 1 had no digest of the state before, and was in no release
_VERSION: Final = 2
_MAGIC: Final = b"SXMJ"
#: magic, version, state; transaction, digest; the page
_RECORD: Final = struct.Struct(f"<4sHHQQ{META_BYTES}s")
_SETTLED: Final = 0
_BEGUN: Final = 1
_FAILED: Final = 2
_SECTOR: Final = 512


@dataclass(frozen=True, slots=True)
class MetaBefore:
    """A meta page as it was before a commit.

    Attributes:
        txn: the number of the commit's transaction.
        tree_digest: of what the transaction before it committed. No other file has it, nor a copy of this
            one that went on by itself.
        raw: the page's header and content.
        failed: the commit is known to have failed.
    """

    txn: int
    tree_digest: int
    raw: bytes
    failed: bool = False


def encode_before(before: MetaBefore) -> bytes:
    """The record, without the zeros after it."""
    return seal(_RECORD.pack(_MAGIC, _VERSION, _state_of(before), before.txn, before.tree_digest, before.raw))


def _state_of(before: MetaBefore) -> int:
    return _FAILED if before.failed else _BEGUN


class MetaJournal:
    """Of one data folder, whose lock is held. One thread at a time.

    Attributes:
        pending: what a process left that was killed, or whose disk failed; None where all was settled.

    Raises:
        StoreForeignError: the file is another program's, or of another version. It is left as it is.
        StoreError: there is a journal, and it cannot be read.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._path = os.path.join(folder, JOURNAL_FILE)
        self._holds = _SETTLED  # what the file says, as far as a write of it succeeded
        self._has_warned = False
        self._fd = self._open()
        try:
            self.pending = self._read()
        except BaseException:
            if self._fd >= 0:
                os.close(self._fd)
            raise
        if self.pending is not None:
            self._holds = _state_of(self.pending)

    def write(self, before: MetaBefore) -> None:
        """A commit begins, or has failed. What has failed is durable when this returns, as far as the disk
        takes it."""
        if self._fd < 0:
            return
        try:
            os.pwrite(self._fd, encode_before(before).ljust(_SECTOR, b"\0"), 0)
            self._holds = _state_of(before)
            if before.failed:
                os.fsync(self._fd)
                sync_folder(self._folder)
            self._has_warned = False
        except OSError as error:
            self._warn(error)

    def settle(self) -> None:
        """No page is to be put back: the commit succeeded or wrote nothing, or the page was put back.

        The next commit can have the same number: a record that says "failed" would take that one back, so it
        is StoreError where such a record cannot be overwritten durably. One that says "begun" does no harm.
        """
        must = self._holds == _FAILED
        try:
            if self._holds != _SETTLED:
                os.pwrite(self._fd, bytes(_SECTOR), 0)
                if must:
                    os.fsync(self._fd)
                self._holds = _SETTLED
        except OSError as error:
            if must:
                raise disk_error(error, self._path, "writing") from error
            self._warn(error)

    def close(self) -> None:
        """Close the file, and remove it where nothing is to be put back. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            if self._holds == _SETTLED:
                with contextlib.suppress(OSError):  # it says that all is settled
                    os.unlink(self._path)
            os.close(fd)

    def _open(self) -> int:
        """A descriptor; -1 where there is no journal and none can be made."""
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
        except OSError as error:  # a full disk keeps no history from being read
            self._warn(error)
        return fd

    def _read(self) -> MetaBefore | None:
        if self._fd < 0:
            return None
        try:
            found = os.pread(self._fd, _SECTOR + 1, 0)
        except OSError as error:
            raise disk_error(error, self._path, "reading") from error
        if not any(found[:8]) and len(found) <= _SECTOR:  # so much of it did version 1 overwrite
            return None
        if found[:4] != _MAGIC or len(found) > _SECTOR:
            raise StoreForeignError(
                f"{self._path} is not a journal of suffixsvc",
                expected=f"magic {_MAGIC.decode()}, at most {_SECTOR} bytes",
                got=f"magic {found[:4]!r}",
                remedy="Move the file away, or name another data folder; it is left as it is.",
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
            state, txn, digest, raw = open_record(
                found[: _RECORD.size + CHECKSUM.size], _RECORD, _MAGIC, "meta journal", _VERSION
            )
        except StoreCorruptError:
            return None  # damaged: the data file's own checks decide
        return MetaBefore(txn, digest, raw, state == _FAILED)

    def _warn(self, error: OSError) -> None:
        if not self._has_warned:  # once, until a write succeeds: there are two a commit
            log.warning("meta journal not written", path=self._path, error=str(error))
        self._has_warned = True
