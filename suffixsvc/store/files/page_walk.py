"""Fast verification of all pages of an LMDB data file, one level of a tree at a time.

``lmdb.verify`` does this page by page in Python: about 150 microseconds per leaf page, four seconds for a log
of 100M tokens. Here numpy checks all pages of a level at once. The result is a boolean, true only if
``lmdb.verify`` finds no fault (the tests damage files and compare); ``lmdb.verify`` names the fault.

Every field is checked before it is used:

    meta page ── free tree ── lists of free pages ┐ together each page of the file exactly once
        └─────── main tree ── a tree a database ──┘
                                   page: its number, one type, bounds, nodes inside the page, keys ascending
                                   tree: pages, entries and depth equal those in its record
                                   value on overflow pages: their number, type and count

Layout: LMDB 0.9, data version 1, 64 bit, little endian; databases without duplicate keys.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

MAGIC: Final = 0xBEEFC0DE
DATA_VERSION: Final = 1
META_FLAG: Final = 0x08
#: the root of an empty tree
NO_PAGE: Final = 2**64 - 1
_HEADER: Final = 16
_BRANCH, _LEAF, _OVERFLOW = 0x01, 0x02, 0x04
_BIG, _SUBTREE = 0x01, 0x02
#: the only flag accepted, of the free tree; databases of the store have none
_INTEGER_KEYS: Final = 0x08
_METAS: Final = 2
_MAX_DEPTH: Final = 32
#: pages checked together
_BLOCK: Final = 2048

#: page size or 0, flags, depth, branch pages, leaf pages, overflow pages, entries, root
_TREE: Final = struct.Struct("<IHHQQQQQ")
#: page number, padding, flags, two words; magic, version, address, map size; the records of the free and the
#: main tree; last page, transaction
META: Final = struct.Struct("<QHHIIIQQ" + 2 * "IHHQQQQQ" + "QQ")

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]


class _Unsound(Exception):  # a signal inside this module
    """The file is damaged, or has a feature that the store does not use."""


@dataclass(frozen=True, slots=True)
class _Tree:
    pad: int
    flags: int
    depth: int
    branches: int
    leaves: int
    overflows: int
    entries: int
    root: int


@dataclass(frozen=True, slots=True)
class Meta:
    """A meta page."""

    page: int
    flags: int
    magic: int
    version: int
    map_bytes: int
    free: _Tree
    main: _Tree
    last_page: int
    txn: int

    @property
    def page_bytes(self) -> int:
        """Size of all pages."""
        return self.free.pad


def unpack_meta(raw: bytes) -> Meta:
    """Return the fields of a meta page from its first ``META.size`` bytes, whatever they are."""
    page, _, flags, _, magic, version, _, map_bytes, *trees, last_page, txn = META.unpack(raw)
    return Meta(page, flags, magic, version, map_bytes, _Tree(*trees[:8]), _Tree(*trees[8:]), last_page, txn)


@dataclass(frozen=True, slots=True)
class _Nodes:
    """The nodes of a block of pages, in the order of their keys."""

    at: Numbers  #: offset of the node in the block
    page: Numbers  #: index of its page in the block
    first: npt.NDArray[np.bool_]  #: whether it is the first node of its page
    low: Numbers  #: lower half of the data's size or of the child's page number
    high: Numbers
    flags: Numbers
    key_bytes: Numbers


def is_sound(path: str) -> bool:
    """Whether all pages are valid; False also for valid files with features that the store does not use.

    Raises:
        OSError: the file cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        Walk(fd).check()
    except (_Unsound, struct.error):
        return False
    finally:
        os.close(fd)
    return True


def _require(sound: object) -> None:
    if not sound:
        raise _Unsound


class Walk:
    """The walk of one file; ``live`` has a flag for each page that a tree uses."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._page = unpack_meta(os.pread(fd, META.size, 0)).free.pad
        _require(self._page in (512, 1024, 2048, 4096, 8192, 16384, 32768))
        metas = [unpack_meta(os.pread(fd, META.size, page * self._page)) for page in range(_METAS)]
        for page, meta in enumerate(metas):
            _require((meta.page, meta.flags) == (page, META_FLAG))
            _require((meta.magic, meta.version, meta.free.pad) == (MAGIC, DATA_VERSION, self._page))
            _require(meta.txn == 0 or meta.txn % 2 == page)
        self._meta = max(metas, key=lambda meta: meta.txn)
        self._pages = self._meta.last_page + 1
        _require(_METAS <= self._pages <= os.fstat(fd).st_size // self._page)
        self.live = np.zeros(self._pages, bool)
        self._used = 0
        self._unused = np.zeros(self._pages, bool)

    def check(self) -> None:
        """Walk all trees; raise _Unsound at the first fault."""
        free, main = self._meta.free, self._meta.main
        _require(free.flags == _INTEGER_KEYS and main.flags == 0 and main.pad == 0)
        self._walk(free, is_free=True)
        for record in self._walk(main):
            tree = _Tree(*_TREE.unpack(record))
            _require(tree.flags == 0 and tree.pad == 0)
            _require(not self._walk(tree))
        _require((self.live ^ self._unused)[_METAS:].all() and not (self.live & self._unused).any())

    def _walk(self, tree: _Tree, *, is_free: bool = False) -> list[bytes]:
        """Check a tree; return the records of its subtrees."""
        if tree.root == NO_PAGE:
            _require(not (tree.depth or tree.branches or tree.leaves or tree.overflows or tree.entries))
            return []
        _require(1 <= tree.depth <= _MAX_DEPTH and tree.root < self._pages)
        level = np.array([tree.root], np.int64)
        branches = 0
        for _ in range(tree.depth - 1):
            branches += len(level)
            level = np.concatenate([self._children(block) for block in self._blocks(level)])
            _require(len(level) <= self._pages)
        _require(branches == tree.branches and len(level) == tree.leaves)
        last = b""
        entries = overflows = 0
        inside: list[bytes] = []
        for block in self._blocks(level):
            buffer, nodes = self._nodes(block, _LEAF)
            last = self._check_keys(buffer, nodes, last, is_free=is_free)
            entries += len(nodes.at)
            overflows += self._check_values(buffer, nodes, inside, is_free=is_free)
        _require(entries == tree.entries and overflows == tree.overflows)
        return inside

    def _blocks(self, pages: Numbers) -> Iterator[Numbers]:
        for first in range(0, len(pages), _BLOCK):
            yield pages[first : first + _BLOCK]

    def _mark(self, pages: Numbers) -> None:
        """Mark pages as used; a page must not be used twice."""
        _require(len(pages) == 0 or (int(pages.min()) >= _METAS and int(pages.max()) < self._pages))
        _require(not self.live[pages].any())
        self.live[pages] = True
        self._used += len(pages)
        _require(np.count_nonzero(self.live) == self._used)

    # ----------------------------------------------------------------------------------------------- pages

    def _nodes(self, pages: Numbers, kind: int) -> tuple[Bytes, _Nodes]:
        """Read pages of one kind; return their bytes and nodes."""
        self._mark(pages)
        size = self._page
        buffer = np.empty(len(pages) * size, np.uint8)
        view = memoryview(buffer.data)
        for i, page in enumerate(pages.tolist()):
            _require(os.preadv(self._fd, [view[i * size : (i + 1) * size]], page * size) == size)
        heads = buffer.reshape(-1, size)[:, :_HEADER].copy()
        lower, upper = (heads.view("<u2")[:, column].astype(np.int64) for column in (6, 7))
        _require((heads.view("<u8")[:, 0] == pages.astype(np.uint64)).all())
        _require((heads.view("<u2")[:, 5] == kind).all())
        _require((lower >= _HEADER).all() and (lower <= upper).all() and (upper <= size).all())
        counts = (lower - _HEADER) // 2
        _require((counts >= 1).all())
        page = np.repeat(np.arange(len(pages)), counts)
        within = np.arange(len(page)) - np.repeat(np.cumsum(counts) - counts, counts)
        start = page * size
        offset = _u16(buffer, start + _HEADER + 2 * within)
        _require((offset >= upper[page]).all() and (offset + 8 <= size).all())
        at = start + offset
        low, high, flags, key_bytes = (_u16(buffer, at + 2 * i) for i in range(4))
        _require((offset + 8 + key_bytes <= size).all())
        return buffer, _Nodes(at, page, within == 0, low, high, flags, key_bytes)

    def _children(self, pages: Numbers) -> Numbers:
        """Return the child pages of branch pages."""
        buffer, nodes = self._nodes(pages, _BRANCH)
        rest = ~nodes.first  # the key of the first node is unused
        _require((nodes.key_bytes[rest] > 0).all())
        keys = _Keys(buffer, nodes.at[rest], nodes.key_bytes[rest])
        same_page = np.diff(nodes.page[rest]) == 0
        _require((keys.ascend() | ~same_page).all())
        return nodes.low | nodes.high << 16 | nodes.flags << 32

    def _check_keys(self, buffer: Bytes, nodes: _Nodes, last: bytes, *, is_free: bool) -> bytes:
        """Check that keys ascend, from ``last`` of the block before on; return the last key."""
        keys = _Keys(buffer, nodes.at, nodes.key_bytes)
        if is_free:
            _require((nodes.key_bytes == 8).all())
            numbers = keys.bytes.copy().view("<u8")[:, 0]
            _require((numbers >= 1).all() and (numbers <= self._meta.txn).all())
            _require((numbers[1:] > numbers[:-1]).all())
            _require(not last or int(numbers[0]) > int.from_bytes(last, "little"))
        else:
            _require(keys.ascend().all())
            _require(not last or keys.key(0) > last)
        return keys.key(-1)

    # ---------------------------------------------------------------------------------------------- values

    def _check_values(self, buffer: Bytes, nodes: _Nodes, inside: list[bytes], *, is_free: bool) -> int:
        """Check that values are inside their pages or overflow pages; return the number of overflow pages."""
        size = nodes.low | nodes.high << 16
        big = nodes.flags == _BIG
        subtree = nodes.flags == _SUBTREE
        _require((big | subtree | (nodes.flags == 0)).all() and not (is_free and subtree.any()))
        data = nodes.at + 8 + nodes.key_bytes
        end = (nodes.page + 1) * self._page
        _require((data + np.where(big, 8, size) <= end).all())
        _require((size[subtree] == _TREE.size).all())
        inside += [buffer[at : at + _TREE.size].tobytes() for at in data[subtree].tolist()]
        first = _u64(buffer, data[big])
        used = self._check_overflow(first, size[big])
        if is_free:
            where = iter(first.tolist())
            for at, length, is_big in zip(data.tolist(), size.tolist(), big.tolist(), strict=True):
                if is_big:
                    self._free_pages(os.pread(self._fd, length, next(where) * self._page + _HEADER))
                else:
                    self._free_pages(buffer[at : at + length].tobytes())
        return used

    def _check_overflow(self, first: Numbers, size: Numbers) -> int:
        """Check and mark the overflow pages of values, given first pages and sizes; return their number."""
        if not len(first):
            return 0
        need = (_HEADER - 1 + size) // self._page + 1
        _require(
            (first >= _METAS).all() and (first < self._pages).all() and (first + need <= self._pages).all()
        )
        order = np.argsort(first)
        heads = b"".join([os.pread(self._fd, _HEADER, page * self._page) for page in first[order].tolist()])
        _require(len(heads) == _HEADER * len(first))
        table = np.frombuffer(heads, np.uint8).reshape(-1, _HEADER)
        _require((table.view("<u8")[:, 0] == first[order].astype(np.uint64)).all())
        _require((table.view("<u2")[:, 5] == _OVERFLOW).all())
        _require((table.view("<u4")[:, 3] == need[order]).all())
        before = np.cumsum(need) - need
        self._mark(np.repeat(first - before, need) + np.arange(int(need.sum())))
        return int(need.sum())

    def _free_pages(self, raw: bytes) -> None:
        """Check and mark a list of free pages: their count, then their numbers, descending."""
        _require(len(raw) >= 8 and len(raw) % 8 == 0)
        count, *_ = struct.unpack_from("<Q", raw)
        pages = np.frombuffer(raw, "<u8", offset=8)
        _require(count == len(pages))
        if count:
            _require(
                (pages[1:] < pages[:-1]).all() and int(pages[-1]) >= _METAS and int(pages[0]) < self._pages
            )
            _require(not self._unused[pages].any())
            self._unused[pages] = True


class _Keys:
    """A matrix of keys, one per row, padded with zeros."""

    def __init__(self, buffer: Bytes, at: Numbers, lengths: Numbers) -> None:
        longest = int(lengths.max()) if len(lengths) else 0
        column = np.arange(longest)
        where = np.minimum(at[:, None] + 8 + column, len(buffer) - 1)
        self.lengths = lengths
        self.bytes: Any = np.where(column < lengths[:, None], buffer[where], np.uint8(0))

    def key(self, i: int) -> bytes:
        """Return a key without padding."""
        return bytes(self.bytes[i, : self.lengths[i]].tobytes())

    def ascend(self) -> npt.NDArray[np.bool_]:
        """Whether each key but the first is greater than the key before: bool[n - 1]."""
        if len(self.lengths) < 2 or not self.bytes.shape[1]:
            return np.zeros(max(0, len(self.lengths) - 1), bool)
        before, after = self.bytes[:-1], self.bytes[1:]
        differ = before != after
        place = differ.argmax(axis=1)
        row = np.arange(len(before))
        greater = after[row, place] > before[row, place]
        longer = self.lengths[1:] > self.lengths[:-1]
        result: npt.NDArray[np.bool_] = np.where(differ[row, place], greater, longer)
        return result


def _u16(buffer: Bytes, at: Numbers) -> Numbers:
    return buffer[at].astype(np.int64) | buffer[at + 1].astype(np.int64) << 8


def _u64(buffer: Bytes, at: Numbers) -> Numbers:
    """Read u64 page numbers; those beyond int63 become negative, and so invalid."""
    wide = buffer[at[:, None] + np.arange(8)].astype(np.int64)
    result: Numbers = (wide << np.arange(0, 64, 8)).sum(axis=1)
    return result
