"""Rows of a damaged data file, read page by page without LMDB, which would follow damaged page numbers.

    meta pages ── the newest whose own tree has its transaction
        ├── free tree ── pages that no tree uses
        └── main tree ── trees of the databases ── leaf pages ── rows

In a file with sound pages the leaf pages are those that a tree leads to. In another one a damaged branch page
may lead nowhere, or elsewhere: then every leaf page is read that is not free. Free pages hold rows that were
deleted. Callers verify each row by its own magic, key and checksum.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from suffixsvc.errors import StoreCorruptError
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc.store.files.datafile import transaction_of_tree
from suffixsvc.store.files.page_walk import (
    DATA_VERSION,
    MAGIC,
    META,
    META_FLAG,
    NO_PAGE,
    Meta,
    is_sound,
    unpack_meta,
)

_HEADER: Final = struct.Struct("<QHHHH")
_NODE: Final = struct.Struct("<HHHH")
_TREE: Final = struct.Struct("<IHHQQQQQ")
_BRANCH, _LEAF, _OVERFLOW = 0x01, 0x02, 0x04
_BIG, _SUBTREE = 0x01, 0x02
_PAGE_SIZES: Final = (4096, 512, 1024, 2048, 8192, 16384, 32768)
_MAX_DEPTH: Final = 32


class _Node(NamedTuple):
    key: bytes
    flags: int
    size: int
    data: bytes  #: of the page, from the node's data on


class _Damage(Exception):  # a signal inside this module
    """A page is not what led to it."""


class SalvageReader(ClosedOnExit):
    """Reads the rows of one file.

    Args:
        path: the data file.

    Attributes:
        faults: what could not be read so far, one line each.

    Raises:
        StoreCorruptError: neither meta page can be read.
        OSError: the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.faults: list[str] = []
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._size = os.fstat(self._fd).st_size
            self._meta = self._newest_meta(path)
            self._page = self._meta.page_bytes
            self._last = min(self._meta.last_page, self._size // self._page - 1)
            if self._last < self._meta.last_page:
                self.faults.append(
                    f"the file ends at page {self._last}, its last page is {self._meta.last_page}"
                )
            self._leaves = self._find_leaves(sound=is_sound(str(path)))
        except BaseException:
            self.close()
            raise

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield key and value of each row that can be read, of all databases, in no order."""
        for page in self._leaves:
            try:
                nodes = self._nodes(page, _LEAF)
            except _Damage:
                continue  # listed in ``faults`` before
            for node in nodes:
                if not node.flags & _SUBTREE:
                    try:
                        yield node.key, self._value(node)
                    except _Damage as damage:
                        self._fault(f"page {page}: the value of key {node.key.hex()[:80]}: {damage}")

    def close(self) -> None:
        """Close the file. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    # --- meta pages ---------------------------------------------------------------------------------------

    def _newest_meta(self, path: Path) -> Meta:
        metas = [meta for meta in (self._meta_at(slot) for slot in (0, 1)) if meta is not None]
        if not metas:
            raise StoreCorruptError(
                f"{path}: a meta page must be readable",
                got="two damaged ones",
                remedy="Restore the folder from a backup; the file is left unchanged.",
            )
        if len(metas) == 1:
            self._fault(f"meta page {1 - metas[0].page} is damaged: the last transaction may be missing")
        elif abs(metas[0].txn - metas[1].txn) > 1:
            self._fault("the transaction of a meta page is damaged: the last transaction may be missing")
        return max(metas, key=lambda meta: (self._transaction(meta), meta.txn))

    def _transaction(self, meta: Meta) -> int:
        """Return the transaction of a meta page's tree, -1 if that cannot be read."""
        try:
            return transaction_of_tree(self._fd, meta) or -1
        except (StoreCorruptError, struct.error):
            return -1

    def _meta_at(self, slot: int) -> Meta | None:
        for size in _PAGE_SIZES:
            raw = os.pread(self._fd, META.size, slot * size)
            if len(raw) < META.size:
                continue
            meta = unpack_meta(raw)
            known = (meta.magic, meta.version, meta.page, meta.flags) == (
                MAGIC,
                DATA_VERSION,
                slot,
                META_FLAG,
            )
            if known and meta.page_bytes == size and (meta.txn == 0 or meta.txn % 2 == slot):
                return meta
        return None

    # --- pages --------------------------------------------------------------------------------------------

    def _find_leaves(self, *, sound: bool) -> list[int]:
        """Return the leaf pages of all databases."""
        main = self._leaves_below(self._meta.main.root)
        found = set(main)
        for page in main:
            for node in self._readable(page):
                if node.flags & _SUBTREE and len(node.data) >= _TREE.size:
                    found.update(self._leaves_below(_TREE.unpack_from(node.data)[-1]))
        if not sound:
            free = self._free_pages()
            if free is None:
                self._fault("the list of free pages is damaged: pages below damaged ones are not read")
            else:
                found = (found | set(self._used_leaves(free))) - free
        return sorted(found)

    def _fault(self, fault: str) -> None:
        if fault not in self.faults:
            self.faults.append(fault)

    def _readable(self, page: int) -> list[_Node]:
        try:
            return self._nodes(page, _LEAF)
        except _Damage:
            return []

    def _leaves_below(self, root: int) -> list[int]:
        """Return the leaf pages of a tree that can be read."""
        level = [] if root == NO_PAGE else [root]
        leaves: list[int] = []
        seen: set[int] = set()
        for _ in range(_MAX_DEPTH):
            below: list[int] = []
            for page in level:
                if page in seen:
                    continue
                seen.add(page)
                try:
                    kind = self._kind(page)
                    nodes = self._nodes(page, kind)
                except _Damage as damage:
                    self._fault(f"page {page} is damaged: {damage}")
                    continue
                if kind == _LEAF:
                    leaves.append(page)
                else:
                    below += [node.size | node.flags << 32 for node in nodes]
            level = below
        return leaves

    def _used_leaves(self, free: set[int]) -> Iterator[int]:
        """Yield the leaf pages that are not free."""
        page = 2
        while page <= self._last:
            kind = self._kind_or_none(page)
            if page in free:
                kind = None
            if kind == _LEAF and self._readable(page):
                yield page
            page += max(1, self._overflow_pages(page)) if kind == _OVERFLOW else 1

    def _free_pages(self) -> set[int] | None:
        """Return the pages that no tree uses; None if that cannot be read."""
        before = len(self.faults)
        leaves = self._leaves_below(self._meta.free.root)
        if len(self.faults) != before:
            return None
        free: set[int] = set()
        try:
            for page in leaves:
                for node in self._nodes(page, _LEAF):
                    value = self._value(node)
                    (count,) = struct.unpack_from("<Q", value)
                    if len(value) != 8 * (count + 1):
                        return None
                    free.update(struct.unpack_from(f"<{count}Q", value, 8))
        except (_Damage, struct.error):
            return None
        return free

    def _head(self, page: int) -> tuple[int, int, int]:
        """Return (type, lower bound, upper bound) of a page."""
        if not 2 <= page <= self._last:
            raise _Damage("it is not in the file")
        raw = os.pread(self._fd, _HEADER.size, page * self._page)
        number, _, flags, lower, upper = _HEADER.unpack(raw)
        if number != page:
            raise _Damage(f"it has the number {number}")
        return flags, lower, upper

    def _kind(self, page: int) -> int:
        flags, *_ = self._head(page)
        if flags not in (_BRANCH, _LEAF):
            raise _Damage(f"it has the type {flags:#x}")
        return flags

    def _kind_or_none(self, page: int) -> int | None:
        try:
            return self._head(page)[0]
        except _Damage:
            return None

    def _overflow_pages(self, page: int) -> int:
        _, lower, upper = self._head(page)
        return lower | upper << 16

    def _nodes(self, page: int, kind: int) -> list[_Node]:
        """Return the nodes of a page. Of a leaf page damaged ones are left out."""
        flags, lower, upper = self._head(page)
        size = self._page
        if flags != kind or not _HEADER.size < lower <= upper <= size or lower % 2:
            raise _Damage("its header is damaged")
        raw = os.pread(self._fd, size, page * size)
        nodes = []
        for (at,) in struct.iter_unpack("<H", raw[_HEADER.size : lower]):
            low, high, node_flags, key_size = _NODE.unpack_from(raw.ljust(size + _NODE.size), min(at, size))
            start = at + _NODE.size + key_size
            if not upper <= at <= size - _NODE.size or start > size:
                if kind == _BRANCH:
                    raise _Damage("a node is outside of it")
                self._fault(f"page {page}: a node is outside of it")
                continue
            key = raw[at + _NODE.size : start]
            nodes.append(_Node(key, node_flags, low | high << 16, raw[start:]))
        return nodes

    def _value(self, node: _Node) -> bytes:
        if not node.flags & _BIG:
            if node.size > len(node.data):
                raise _Damage("it is outside of the page")
            return node.data[: node.size]
        if len(node.data) < 8:
            raise _Damage("its page number is outside of the page")
        page = int.from_bytes(node.data[:8], "little")
        if self._head(page)[0] != _OVERFLOW:
            raise _Damage(f"page {page} does not hold it")
        raw = os.pread(self._fd, node.size, page * self._page + _HEADER.size)
        if len(raw) < node.size:
            raise _Damage(f"the file ends in page {page}")
        return raw
