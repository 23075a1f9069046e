"""Overwriting of everything in LMDB's data file that its last two transactions do not use.

A deleted row stays in the file in three places: in pages that were freed, in the unused middle of pages that
lost a node or were copied, and in pages beyond the last one, which an aborted transaction wrote. LMDB reads
none of them: a freed page is written as a whole before it is read again.

    walk both transactions ── pages that neither uses, the end of the file ──┐
                           └─ gaps in the pages that one of them uses ───────┴─> zeros ── sync

The bytes of both transactions stay as they are, so that a crash at any point, or the rollback of the next
commit, leaves a sound file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from suffixsvc.errors import StoreError
from suffixsvc.runtime.sync_points import SyncPoint
from suffixsvc.store.files.page_walk import META, Numbers, Walk, sound_walk, unpack_meta

#: bytes of one read or write
_BLOCK: Final = 1 << 20
_ZEROS: Final = bytes(_BLOCK)


def scrub(path: str, sync_point: SyncPoint) -> int:
    """Overwrite the unused parts of a sound file with zeros; return how many bytes were written.

    The file must not be written to meanwhile, and no reader may use an older transaction than the last two.

    Raises:
        OSError: the file cannot be read or written.
        StoreError: a page is not as the walk expects it; nothing was written.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        last = sound_walk(fd, gaps=True)
        before = None if last is None else sound_walk(fd, gaps=True, newer=last)
        if last is None or before is None:
            raise StoreError(
                f"{path} cannot be overwritten",
                expected="pages of the kinds that the store uses",
                got="another kind, or damage",
                remedy="Check the data folder.",
            )
        walks = last, before
        page = unpack_meta(os.pread(fd, META.size, 0)).page_bytes
        written = sum(_clear(fd, first, last) for first, last in _free_ranges(walks, page))
        sync_point("scrub-freed")
        written += _clear_data(fd, max(len(walk.live) for walk in walks) * page)
        sync_point("scrub-end")
        written += sum(_clear(fd, first, last) for first, last in _gaps(walks))
        sync_point("scrub-gaps")
        os.fsync(fd)
        return written
    finally:
        os.close(fd)


def _free_ranges(walks: Sequence[Walk], page: int) -> Iterator[tuple[int, int]]:
    """Yield offsets, first and last exclusive, of runs of pages that no walk uses."""
    used = np.zeros(max(len(walk.live) for walk in walks), bool)
    for walk in walks:
        used[: len(walk.live)] |= walk.live
    used[:2] = True  # the meta pages
    edges = np.flatnonzero(np.diff(np.concatenate([[True], used, [True]]).astype(np.int8)))
    yield from zip((edges[::2] * page).tolist(), (edges[1::2] * page).tolist(), strict=True)


def _gaps(walks: Sequence[Walk]) -> Iterator[tuple[int, int]]:
    """Yield offsets, first and last exclusive, of the gaps of all walks, each once."""
    firsts: list[Numbers] = [first for walk in walks for first, _ in walk.gaps]
    lasts: list[Numbers] = [last for walk in walks for _, last in walk.gaps]
    if firsts:
        first, last = np.concatenate(firsts), np.concatenate(lasts)
        first, at = np.unique(first, return_index=True)
        yield from zip(first.tolist(), last[at].tolist(), strict=True)


def _clear_data(fd: int, first: int) -> int:
    """Clear what was ever written from an offset to the end of the file; return the bytes written.

    Blocks that are only allocated read as zeros, and are skipped where the file system says which they are.
    """
    size, written = os.fstat(fd).st_size, 0
    while first < size:
        try:
            first = os.lseek(fd, first, os.SEEK_DATA)
            last = os.lseek(fd, first, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but holes
                break
            last = size
        written += _clear(fd, first, last)
        first = last
    return written


def _clear(fd: int, first: int, last: int) -> int:
    """Write zeros where a range of the file is not zero; return the bytes written."""
    written = 0
    for at in range(first, last, _BLOCK):
        found = os.pread(fd, min(_BLOCK, last - at), at)
        zeros = _ZEROS[: len(found)]
        if found != zeros:
            os.pwrite(fd, zeros, at)
            written += len(found)
    return written
