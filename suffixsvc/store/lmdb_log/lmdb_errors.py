"""Mapping of LMDB's errors to the store's typed errors."""

from __future__ import annotations

import errno

import lmdb

from suffixsvc.errors import StoreCorruptError, StoreError
from suffixsvc.store.files.folder import FULL_ERRNOS, NO_DESCRIPTOR_ERRNOS, disk_error, is_full
from suffixsvc.store.records.framing import DAMAGE_REMEDY


def is_out_of_space(error: lmdb.Error, folder: str) -> bool:
    """Whether the map, the disk, the quota or the process's file size limit is exhausted."""
    if isinstance(error, lmdb.MapFullError | lmdb.DiskError) or error.code in FULL_ERRNOS:
        return True
    # LMDB reports a short write, the usual symptom of a full disk, as a plain I/O error
    return error.code == errno.EIO and is_full(folder)


def store_error_of(error: lmdb.Error, doing: str) -> StoreError:
    """Return the typed error for an LMDB error that was raised while ``doing`` something."""
    if isinstance(error, lmdb.DiskError) or error.code in FULL_ERRNOS | NO_DESCRIPTOR_ERRNOS:
        return disk_error(OSError(error.code, str(error)), "", doing)
    if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError | lmdb.InvalidError):
        return StoreCorruptError(f"LMDB found damage while {doing}", got=str(error), remedy=DAMAGE_REMEDY)
    return StoreError(
        f"LMDB failed while {doing}",
        got=str(error),
        remedy="Nothing of it was stored. The store reopens its file once the disk responds; retry then.",
    )
