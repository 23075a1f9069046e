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
from operator import lt
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

MAGIC: Final = 0xBEEFC0DE
DATA_VERSION: Final = 1
META_FLAG: Final = 0x08
#: the root of an empty tree
NO_PAGE: Final = 2**64 - 1
_HEADER: Final = 16
#: of a node, before its key
_NODE_HEADER: Final = 8
_BRANCH, _LEAF, _OVERFLOW = 0x01, 0x02, 0x04
_BIG, _SUBTREE = 0x01, 0x02
#: the only flag accepted, of the free tree; databases of the store have none
_INTEGER_KEYS: Final = 0x08
_INTEGER_BYTES: Final = 8
_METAS: Final = 2
_MAX_DEPTH: Final = 32
#: pages checked together
_BLOCK: Final = 2048

#: page size or 0, flags, depth, branch pages, leaf pages, overflow pages, entries, root
_TREE: Final = struct.Struct("<IHHQQQQQ")
#: page number, padding, flags, two words; magic, version, address, map size; the records of the free and the
#: main tree; last page, transaction
META: Final = struct.Struct("<QHHIIIQQ" + 2 * "IHHQQQQQ" + "QQ")

Numbers = npt.NDArray[np.int64]
_NO_PAGES: Final[Numbers] = np.empty(0, np.int64)


class _Unsound(Exception):  # a signal inside this module
    """The file is damaged, or has a feature that the store does not use."""


class _Tree(NamedTuple):
    pad: int
    flags: int
    depth: int
    branches: int
    leaves: int
    overflows: int
    entries: int
    root: int


class Meta(NamedTuple):
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


class _Nodes(NamedTuple):
    """The nodes of a block of pages, in the order of their keys."""

    raw: bytes  #: the pages
    first: list[bool]  #: whether it is the first node of its page
    keys: list[bytes]
    data: Numbers  #: offset of the data in ``raw``
    end: Numbers  #: end of its page in ``raw``
    low: Numbers  #: lower half of the data's size or of the child's page number
    high: Numbers
    flags: Numbers


def is_sound(path: str) -> bool:
    """Whether all pages are valid; False also for valid files with features that the store does not use.

    Raises:
        OSError: the file cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return sound_walk(fd) is not None
    finally:
        os.close(fd)


def sound_walk(fd: int, *, gaps: bool = False, newer: Walk | None = None) -> Walk | None:
    """Walk all trees of a transaction, see :class:`Walk`; None if a page is not valid.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        walk = Walk(fd, gaps=gaps, newer=newer)
        walk.check()
    except (_Unsound, struct.error):
        return None
    return walk


def _require(sound: object) -> None:
    if not sound:
        raise _Unsound


class Walk:
    """The walk of one transaction of a file.

    Args:
        fd: of the file.
        gaps: collect :attr:`gaps`.
        newer: the walk of the last transaction: the one before it is walked, as far as it does not share the
            pages of the last one. Counts and completeness are not checked then.

    Attributes:
        live: a flag for each page that a tree uses.
        gaps: offsets in the file, first and last exclusive, of bytes of live pages that nothing uses and that
            may not be zero: between the nodes of a page, and after a value on overflow pages. Whole arrays.
    """

    def __init__(self, fd: int, *, gaps: bool = False, newer: Walk | None = None) -> None:
        self._fd = fd
        self._page = unpack_meta(os.pread(fd, META.size, 0)).free.pad
        _require(self._page in (512, 1024, 2048, 4096, 8192, 16384, 32768))
        metas = [unpack_meta(os.pread(fd, META.size, page * self._page)) for page in range(_METAS)]
        for page, meta in enumerate(metas):
            _require((meta.page, meta.flags) == (page, META_FLAG))
            _require((meta.magic, meta.version, meta.free.pad) == (MAGIC, DATA_VERSION, self._page))
            _require(meta.txn == 0 or meta.txn % 2 == page)
        self._meta = sorted(metas, key=lambda meta: meta.txn)[newer is None]
        self._pages = self._meta.last_page + 1
        _require(_METAS <= self._pages <= os.fstat(fd).st_size // self._page)
        self.live = np.zeros(self._pages, bool)
        self._unused = np.zeros(self._pages, bool)
        self._shared = None if newer is None else newer.live
        self._collects_gaps = gaps
        self.gaps: list[tuple[Numbers, Numbers]] = []

    def check(self) -> None:
        """Walk all trees; raise _Unsound at the first fault."""
        free, main = self._meta.free, self._meta.main
        _require(free.flags == _INTEGER_KEYS and main.flags == 0 and main.pad == 0)
        self._walk(free, is_free=True)
        for record in self._walk(main):
            tree = _Tree(*_TREE.unpack(record))
            _require(tree.flags == 0 and tree.pad == 0)
            _require(not self._walk(tree))
        _require(self._shared is not None or self._is_complete())

    def _is_complete(self) -> bool:
        """Whether each page is used once, or free."""
        return bool((self.live ^ self._unused)[_METAS:].all()) and not (self.live & self._unused).any()

    def _walk(self, tree: _Tree, *, is_free: bool = False) -> list[bytes]:
        """Check a tree; return the records of its subtrees."""
        if tree.root == NO_PAGE:
            _require(not (tree.depth or tree.branches or tree.leaves or tree.overflows or tree.entries))
            return []
        _require(1 <= tree.depth <= _MAX_DEPTH and tree.root < self._pages)
        level = self._own(np.array([tree.root], np.int64))
        branches = 0
        for _ in range(tree.depth - 1):
            branches += len(level)
            children = [self._children(block, is_free=is_free) for block in _blocks(level)]
            level = self._own(np.concatenate([_NO_PAGES, *children]))
            _require(len(level) <= self._pages)
        _require(self._shared is not None or (branches == tree.branches and len(level) == tree.leaves))
        last: Any = 0 if is_free else b""
        entries = overflows = 0
        inside: list[bytes] = []
        for block in _blocks(level):
            nodes = self._nodes(block, _LEAF)
            last = self._check_keys(nodes, last, is_free=is_free)
            entries += len(nodes.keys)
            overflows += self._check_values(nodes, inside, is_free=is_free)
        _require(self._shared is not None or (entries == tree.entries and overflows == tree.overflows))
        return inside

    def _own(self, pages: Numbers) -> Numbers:
        """The pages that the last transaction does not share."""
        if self._shared is None:
            return pages
        return pages[(pages >= len(self._shared)) | ~self._shared[np.minimum(pages, len(self._shared) - 1)]]

    def _mark(self, pages: Numbers) -> None:
        """Mark pages as used; a page must not be used twice."""
        _require(((pages >= _METAS) & (pages < self._pages)).all())
        _require((np.diff(np.sort(pages)) > 0).all() and not self.live[pages].any())
        self.live[pages] = True

    # ----------------------------------------------------------------------------------------------- pages

    def _nodes(self, pages: Numbers, kind: int) -> _Nodes:
        """Read pages of one kind; return their nodes."""
        self._mark(pages)
        size = self._page
        raw = b"".join([os.pread(self._fd, size, page * size) for page in pages.tolist()])
        heads = _headers(raw, size, pages, kind)
        lower, upper = heads["lower"].astype(np.int64), heads["upper"].astype(np.int64)
        counts = (lower - _HEADER) // 2
        _require((counts >= 1).all() and (lower <= upper).all() and (upper <= size).all())
        if self._collects_gaps:
            self._add_gaps(raw, pages * size, lower, upper)
        page = np.repeat(np.arange(len(pages)), counts)
        within = np.arange(len(page)) - np.repeat(np.cumsum(counts) - counts, counts)
        words = np.frombuffer(raw, "<u2")
        start = page * size
        offset = words[(start + _HEADER) // 2 + within].astype(np.int64)
        _require((offset >= upper[page]).all() and (offset + _NODE_HEADER <= size).all())
        _require(not (offset % 2).any())
        at = start + offset
        low, high, flags, key_bytes = (words[at // 2 + i].astype(np.int64) for i in range(4))
        key, data, end = at + _NODE_HEADER, at + _NODE_HEADER + key_bytes, start + size
        _require((data <= end).all())
        keys = [raw[first:last] for first, last in zip(key.tolist(), data.tolist(), strict=True)]
        return _Nodes(raw, (within == 0).tolist(), keys, data, end, low, high, flags)

    def _add_gaps(self, raw: bytes, start: Numbers, lower: Numbers, upper: Numbers) -> None:
        """Collect the gaps of pages that are not zero.

        Args:
            raw: the pages.
            start: offset of each page in the file.
            lower, upper: bounds of its gap.
        """
        size = self._page
        at = np.arange(len(start)) * size
        bounds = np.stack([at + lower, at + upper], axis=1).ravel()
        octets = np.append(np.frombuffer(raw, np.uint8), np.uint8(0))  # a bound can be the end of the pages
        dirty = (np.maximum.reduceat(octets, bounds)[::2] > 0) & (lower < upper)
        self.gaps.append((start[dirty] + lower[dirty], start[dirty] + upper[dirty]))

    def _children(self, pages: Numbers, *, is_free: bool) -> Numbers:
        """Return the child pages of branch pages."""
        nodes = self._nodes(pages, _BRANCH)
        before: Any = None
        for is_first, key in zip(nodes.first, nodes.keys, strict=True):
            if is_first:  # its key is unused, and less than all others
                before = None
                continue
            _require(not is_free or len(key) == _INTEGER_BYTES)
            order: Any = int.from_bytes(key, "little") if is_free else key
            _require(before is None or before < order)
            before = order
        return nodes.low | nodes.high << 16 | nodes.flags << 32

    def _check_keys(self, nodes: _Nodes, last: Any, *, is_free: bool) -> Any:
        """Check that keys ascend, from ``last`` of the block before on; return the last key."""
        keys: list[Any] = nodes.keys
        if is_free:
            _require(all(len(key) == _INTEGER_BYTES for key in keys))
            keys = [int.from_bytes(key, "little") for key in keys]
            _require(keys[-1] <= self._meta.txn)
        _require(all(map(lt, [last, *keys], keys)))
        return keys[-1]

    # ---------------------------------------------------------------------------------------------- values

    def _check_values(self, nodes: _Nodes, inside: list[bytes], *, is_free: bool) -> int:
        """Check that values are inside their pages or overflow pages; return the number of overflow pages."""
        raw, data = nodes.raw, nodes.data
        size = nodes.low | nodes.high << 16
        big, subtree = nodes.flags == _BIG, nodes.flags == _SUBTREE
        _require((big | subtree | (nodes.flags == 0)).all() and not (is_free and subtree.any()))
        _require((data + np.where(big, 8, size) <= nodes.end).all())
        _require((size[subtree] == _TREE.size).all())
        inside += [raw[at : at + _TREE.size] for at in data[subtree].tolist()]
        # page numbers beyond int63 become negative, and so invalid
        first = np.frombuffer(b"".join([raw[at : at + 8] for at in data[big].tolist()]), "<i8")
        used = self._check_overflow(first, size[big])
        if is_free:
            pages = iter(first.tolist())
            for at, length, is_big in zip(data.tolist(), size.tolist(), big.tolist(), strict=True):
                self._free_pages(
                    os.pread(self._fd, length, next(pages) * self._page + _HEADER)
                    if is_big
                    else raw[at : at + length]
                )
        return used

    def _check_overflow(self, first: Numbers, size: Numbers) -> int:
        """Check and mark the overflow pages of values, given first pages and sizes; return their number."""
        need = (_HEADER - 1 + size) // self._page + 1
        _require(((first >= _METAS) & (first < self._pages)).all() and (first + need <= self._pages).all())
        raw = b"".join([os.pread(self._fd, _HEADER, page * self._page) for page in first.tolist()])
        _require((_headers(raw, _HEADER, first, _OVERFLOW)["count"] == need).all())
        self._mark(np.repeat(first - np.cumsum(need) + need, need) + np.arange(int(need.sum())))
        if self._collects_gaps:
            self.gaps.append((first * self._page + _HEADER + size, (first + need) * self._page))
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


def _blocks(pages: Numbers) -> Iterator[Numbers]:
    for first in range(0, len(pages), _BLOCK):
        yield pages[first : first + _BLOCK]


def _headers(raw: bytes, stride: int, pages: Numbers, kind: int) -> npt.NDArray[Any]:
    """Return the headers of pages, ``stride`` bytes apart, after a check of their numbers and type."""
    _require(len(raw) == stride * len(pages))
    fields = {"page": ("<u8", 0), "flags": ("<u2", 10), "lower": ("<u2", 12), "upper": ("<u2", 14)}
    fields["count"] = "<u4", 12  # of overflow pages, instead of the two bounds
    formats, offsets = zip(*fields.values(), strict=True)
    layout = {"names": [*fields], "formats": formats, "offsets": offsets, "itemsize": stride}
    heads: npt.NDArray[Any] = np.frombuffer(raw, np.dtype(layout))  # type: ignore[call-overload]  # a dict of columns
    _require((heads["page"] == pages.astype(np.uint64)).all() and (heads["flags"] == kind).all())
    return heads
