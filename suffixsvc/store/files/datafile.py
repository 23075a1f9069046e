"""LMDB's data file, read and verified before LMDB maps it.

LMDB does not validate its file: it maps it and follows page numbers, so a truncated file ends in SIGBUS and
a damaged one in undefined behaviour. Every open therefore first reads the two meta pages and walks all pages:

    page 0  meta of the even transactions ┐ the one with the higher transaction number is current;
    page 1  meta of the odd transactions  ┘ the numbers differ by one, or one of them is damaged
    page 2  ...

With a damaged transaction number LMDB could silently select the transaction before the last. Every
transaction therefore writes its own number into the counters record, and each meta page must have the number
in its own tree (LMDB never reuses a page of the last two transactions, so both trees can be read).

The file is always as long as the map size in its meta page, and fully allocated (see ``extend``): any shorter
file is truncated, and a full disk is detected when the map grows, not during a commit.
Layout: LMDB 0.9 data version 1, 64 bit, little endian.
"""

from __future__ import annotations

import errno
import os
import shutil
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import lmdb
import xxhash
from lmdb import verify as lmdb_verify

from suffixsvc.errors import StoreCorruptError, StoreError, StoreForeignError
from suffixsvc.runtime.atomic_file import sync_folder
from suffixsvc.runtime.sync_points import SyncPoint
from suffixsvc.store.files import page_walk
from suffixsvc.store.files.folder import DATA_FILE, disk_error, is_full
from suffixsvc.store.files.meta_journal import MetaBeforeImage
from suffixsvc.store.files.page_walk import DATA_VERSION, MAGIC, META, META_FLAG, NO_PAGE, Meta, unpack_meta
from suffixsvc.store.records.framing import DAMAGE_REMEDY
from suffixsvc.store.records.keys import COUNTERS_KEY
from suffixsvc.store.records.table_records import decode_counters

#: map sizes are multiples of this, and so of every page size
PAGE_MULTIPLE: Final = 64 << 10

_CREATING: Final = ".creating"
#: LMDB's lock file: two cache lines and one for each reader, rounded up to whole pages
LOCK_TABLE: Final = "lock.mdb"
_LOCK_LINE: Final = 64
_LOCK_MULTIPLE: Final = 4096
#: unit of st_blocks
_BLOCK: Final = 512
_PAGE: Final = struct.Struct("<QHHHH")
_LEAF_FLAG: Final = 0x02
_NODE: Final = struct.Struct("<HHHH")
#: offset of the root's page number in the record of a named database
_ROOT_AT: Final = 40


@dataclass(frozen=True, slots=True)
class DataFileInfo:
    """Sizes from the current meta page."""

    file_bytes: int
    map_bytes: int
    used_bytes: int


def create(
    folder: str,
    map_bytes: int,
    fill: Callable[[lmdb.Environment], None],
    sync_point: SyncPoint,
) -> None:
    """Create the data file of a new store: built in a subfolder, synced, then renamed.

    A crash leaves either no data file or a complete one. ``fill`` writes the first transaction.

    Raises:
        StoreFullError, StoreError: the file cannot be written.
    """
    building = os.path.join(folder, _CREATING)
    path = os.path.join(building, DATA_FILE)
    try:
        shutil.rmtree(building, ignore_errors=True)
        os.mkdir(building, 0o700)
        # lock: no other process knows the folder, and the lock file of a full disk would end in SIGBUS.
        # lib_version: py-lmdb's environment variable must not select the file format
        env = lmdb.open(building, map_size=map_bytes, max_dbs=16, mode=0o600, lock=False, lib_version=0)
        try:
            fill(env)
        finally:
            env.close()
        extend(path, map_bytes)
        sync_point("create-built")
        os.rename(path, os.path.join(folder, DATA_FILE))
        sync_point("create-renamed")
        sync_folder(folder)
        shutil.rmtree(building, ignore_errors=True)
    except OSError as e:
        raise disk_error(e, folder, "creating a store in") from e
    except lmdb.Error as e:
        code = getattr(e, "code", 0)
        if code == errno.EIO and is_full(folder):  # as LMDB reports a short write
            code = errno.ENOSPC
        raise disk_error(OSError(code, str(e)), folder, "creating a store in") from e


def extend(path: str, size: int) -> None:
    """Extend the file to at least ``size`` bytes, with allocated blocks, durably.

    Raises:
        OSError: the disk is full; the file has its old length.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        before = os.fstat(fd).st_size
        if before >= size:
            return
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError:
            os.ftruncate(fd, before)
            raise
        os.fsync(fd)
    finally:
        os.close(fd)


def allocate_lock_file(folder: str, readers: int) -> None:
    """Create LMDB's lock file with allocated blocks for so many readers.

    LMDB maps it and writes through the map: on a full disk a write to a page without a block is a SIGBUS. The
    file stays when a process ends, so that a full disk prevents only the first open of a folder.

    Raises:
        StoreFullError, StoreError: it cannot be created.
    """
    path = os.path.join(folder, LOCK_TABLE)
    header, reader = 2 * _LOCK_LINE, _LOCK_LINE
    size = -(-(header + readers * reader) // _LOCK_MULTIPLE) * _LOCK_MULTIPLE
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(fd).st_blocks * _BLOCK < size:
                os.posix_fallocate(fd, 0, size)
        finally:
            os.close(fd)
    except OSError as e:
        raise disk_error(e, path, "creating") from e


def open_to_read(path: str) -> int:
    """Open the data file for :func:`read_before_image`; return the descriptor."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as e:
        raise disk_error(e, path, "opening") from e


def read_before_image(fd: int, path: str, txn: int) -> MetaBeforeImage:
    """Read the meta page that the commit of transaction ``txn`` will overwrite."""
    try:
        _, *metas = _both_metas(fd, path)
        slot = txn % 2
        raw = os.pread(fd, META.size, slot * metas[0].page_bytes)
        return MetaBeforeImage(txn, _tree_digest(fd, metas[1 - slot]), raw)
    except OSError as e:
        raise disk_error(e, path, "reading") from e


def roll_back(path: str, before: MetaBeforeImage) -> bool:
    """Restore the meta page from its before-image, durably, if its commit failed or wrote half a page.

    The failed commit then never happened, whatever part of it reached the disk. The pages of the restored
    transaction and of the one before are intact: LMDB reuses a page only two transactions after it was freed.

    An image of another file, or of another state of this file, changes nothing: it does not match the other
    meta page, which has the transaction before.

    Returns:
        Whether the page was changed.
    """
    slot = before.txn % 2
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            _, *metas = _both_metas(fd, path)
            page, other = metas[slot], metas[1 - slot]
            is_whole = page.txn == before.txn and not before.failed
            if is_whole or other.txn != before.txn - 1 or _tree_digest(fd, other) != before.tree_digest:
                return False
            at = slot * metas[0].page_bytes
            is_changed = os.pread(fd, META.size, at) != before.raw
            # written even if equal: the page may not be on the disk if its writer ended before the sync
            os.pwrite(fd, before.raw, at)
            os.fsync(fd)
            return is_changed
        finally:
            os.close(fd)
    except OSError as e:
        raise disk_error(e, path, "rolling back a commit in") from e


def _tree_digest(fd: int, meta: Meta) -> int:
    """Hash the page that holds a transaction's counters, clock and node id.

    The meta page itself does not identify a file: it is equal in all stores with the same history of sizes.
    """
    return xxhash.xxh3_64_intdigest(_meta_database(fd, meta))


def state_digest(path: str) -> int:
    """Return a hash that two files share only if they hold the same last transaction of the same store."""
    with _reading(path) as fd:
        _, *metas = _both_metas(fd, path)
        return _tree_digest(fd, max(metas, key=lambda meta: meta.txn))


def inspect(path: str) -> DataFileInfo:
    """Read and validate the meta pages, before LMDB maps the file.

    Raises:
        StoreForeignError: not an LMDB file, or of another data version.
        StoreCorruptError: truncated, or its meta pages are damaged or inconsistent.
    """
    if sys.byteorder != "little":
        raise StoreError("the machine must be little-endian", got="big-endian")
    with _reading(path) as fd:
        size, first, second = _both_metas(fd, path)
    for page, meta in enumerate((first, second)):
        wrong_slot = meta.txn > 0 and meta.txn % 2 != page
        if meta.magic != MAGIC or meta.page != page or not meta.flags & META_FLAG or wrong_slot:
            raise _corrupt(path, f"meta page {page} is damaged")
        if meta.version != DATA_VERSION:
            raise StoreForeignError(
                f"{path} has another LMDB data format",
                expected=f"data version {DATA_VERSION}",
                got=meta.version,
                remedy="Name another data folder, or move this one away.",
            )
    if first.page_bytes != second.page_bytes:
        raise _corrupt(path, "meta pages disagree on the page size", first.page_bytes, second.page_bytes)
    if abs(first.txn - second.txn) > 1:
        # LMDB would silently select the other one, and the last transactions would be lost
        raise _corrupt(path, "meta pages must have consecutive transactions", first.txn, second.txn)
    current = max(first, second, key=lambda m: m.txn)
    used = (current.last_page + 1) * current.page_bytes
    if size < used:
        raise _corrupt(path, "the file is truncated", f"at least {used} bytes", f"{size} bytes")
    return DataFileInfo(size, current.map_bytes, used)


def verify(path: str) -> None:
    """Verify the whole file, without concurrent writes; StoreCorruptError, StoreForeignError, StoreError."""
    require_whole(path, inspect(path))
    verify_pages(path)
    require_own_commits(path)


def require_whole(path: str, info: DataFileInfo) -> None:
    """Raise StoreCorruptError if the file is shorter than its map."""
    if info.file_bytes < info.map_bytes:
        expected, got = f"at least {info.map_bytes} bytes", f"{info.file_bytes} bytes"
        raise _corrupt(path, "the file is truncated", expected, got)


def require_own_commits(path: str) -> None:
    """Raise StoreCorruptError unless each meta page has the transaction number in its own tree."""
    with _reading(path) as fd:
        _, *metas = _both_metas(fd, path)
        for meta in metas:
            if meta.txn == 0 and meta.main.root == NO_PAGE:
                continue  # the file has had one transaction only
            txn = transaction_of_tree(fd, meta)
            if txn != meta.txn:
                raise _corrupt(
                    path, f"meta page {meta.page} must have the transaction of its data", txn, meta.txn
                )


def transaction_of_tree(fd: int, meta: Meta) -> int | None:
    """Return the transaction in the counters record of a meta page's tree; None: there is none.

    Raises:
        StoreCorruptError: the record is damaged.
    """
    raw = _value_in(_meta_database(fd, meta), COUNTERS_KEY)
    return None if raw is None else decode_counters(raw).txn


def _meta_database(fd: int, meta: Meta) -> bytes:
    """Return the only leaf page of the database named "meta"; empty if it cannot be found."""
    record = _value_in(_leaf(fd, meta, meta.main.root), b"meta") or b""
    return _leaf(fd, meta, int.from_bytes(record[_ROOT_AT : _ROOT_AT + 8], "little"))


def _leaf(fd: int, meta: Meta, page: int) -> bytes:
    if not 1 < page <= meta.last_page:
        return b""
    raw = os.pread(fd, meta.page_bytes, page * meta.page_bytes)
    if len(raw) < meta.page_bytes:
        return b""
    number, _, flags, lower, _ = _PAGE.unpack_from(raw)
    return raw if number == page and flags == _LEAF_FLAG and _PAGE.size <= lower <= len(raw) else b""


def _value_in(leaf: bytes, wanted: bytes) -> bytes | None:
    """Return the value of a key in a leaf page, or None."""
    lower = _PAGE.unpack_from(leaf)[3] if leaf else _PAGE.size
    for (at,) in struct.iter_unpack("<H", leaf[_PAGE.size : lower & ~1]):
        if at + _NODE.size > len(leaf):
            return None
        low, high, _, key_size = _NODE.unpack_from(leaf, at)
        start = at + _NODE.size + key_size
        if leaf[at + _NODE.size : start] == wanted:
            return leaf[start : start + (low | high << 16)]
    return None


def verify_pages(path: str) -> None:
    """Verify every page of a file without concurrent writes; StoreCorruptError names the first fault."""
    if faults := page_faults(path):
        raise _corrupt(path, faults[0], got=f"{len(faults)} faults")


def page_faults(path: str) -> list[str]:
    """Return the faults of the pages of a file without concurrent writes; StoreCorruptError, StoreError.

    ``lmdb.verify`` decides about files that the quick walk does not accept.
    """
    try:
        if page_walk.is_sound(path):
            return []
        faults: list[str] = lmdb_verify.verify(path, subdir=False)  # type: ignore[no-untyped-call]  # no types
    except lmdb_verify.VerifyError as e:
        raise _corrupt(path, str(e)) from e
    except OSError as e:
        raise disk_error(e, path, "reading") from e
    return faults


@contextmanager
def _reading(path: str) -> Iterator[int]:
    fd = open_to_read(path)
    try:
        yield fd
    except OSError as e:
        raise disk_error(e, path, "reading") from e
    finally:
        os.close(fd)


def _both_metas(fd: int, path: str) -> tuple[int, Meta, Meta]:
    """Return (bytes of the file, meta page 0, meta page 1). OSError."""
    size = os.fstat(fd).st_size
    first = _read_meta(os.pread(fd, META.size, 0), 0, path, size)
    return size, first, _read_meta(os.pread(fd, META.size, first.page_bytes), 1, path, size)


def _read_meta(raw: bytes, page: int, path: str, size: int) -> Meta:
    if len(raw) < META.size:
        raise _corrupt(path, f"the file ends before meta page {page}", got=f"{size} bytes")
    meta = unpack_meta(raw)
    if page == 0 and meta.magic != MAGIC:
        raise StoreForeignError(
            f"{path} is not an LMDB file",
            expected=f"magic {MAGIC:08x}",
            got=f"{meta.magic:08x}",
            remedy="Name another data folder, or move the file away; it is left unchanged.",
        )
    if not 512 <= meta.page_bytes <= PAGE_MULTIPLE or meta.page_bytes & (meta.page_bytes - 1):
        raise _corrupt(path, f"meta page {page} has an impossible page size", got=meta.page_bytes)
    return meta


def _corrupt(path: str, what: str, expected: object = None, got: object = None) -> StoreCorruptError:
    return StoreCorruptError(f"{path}: {what}", expected=expected, got=got, remedy=DAMAGE_REMEDY)
