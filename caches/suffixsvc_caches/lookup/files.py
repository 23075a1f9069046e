"""File format of lookup caches: a sequence of int32 records (llama.cpp, common/ngram-cache.cpp).

    record    :=  tokens int32[4]   oldest first, unused slots -1
                  followers int32   n >= 1
                  (token int32, count int32) * n

Little endian. There is no header, record count or checksum; a manifest beside the file has the checksum.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import numpy as np

from suffixsvc.core import ngram_count
from suffixsvc.errors import StoreCorruptError, StoreError
from suffixsvc_caches.atomic import new_file
from suffixsvc_caches.lookup.faults import find_faults
from suffixsvc_caches.lookup.table import FREE, HEAD, MAX_ORDER, Int32s, Int64s, LookupTable

#: records serialized at a time
_BLOCK: Final = 1 << 16


def read_lookup(path: Path) -> LookupTable:
    """Read all records of a file, in file order.

    Raises:
        StoreError: the file cannot be read.
        StoreCorruptError: llama.cpp would abort, or ignore a part of the file; the message has the byte
            offset.
    """
    words, rest = read_words(path)
    starts, bad = record_starts(words)
    is_pair = np.ones(int(starts[-1]), bool)
    for slot in range(HEAD):
        is_pair[starts[:-1] + slot] = False
    tokens, counts = words[: starts[-1]][is_pair].reshape(-1, 2).T
    if bad or rest or (counts <= 0).any() or (tokens < FREE).any():
        fault = next(find_faults(words, starts, bad, rest, odd=False))
        raise StoreCorruptError(
            f"{path} is not a complete lookup cache: byte {fault.offset}: {fault.what}",
            remedy="Export it again.",
        )
    ngrams = np.stack([words[starts[:-1] + slot] for slot in range(MAX_ORDER)], axis=1)
    firsts = (starts - HEAD * np.arange(len(starts))) // 2
    return LookupTable(ngrams, firsts, np.ascontiguousarray(tokens), np.ascontiguousarray(counts))


def read_words(path: Path) -> tuple[Int32s, int]:
    """Read a file as (int32 words, number of bytes after the last word). StoreError: it cannot be read."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot read {path}", got=error.strerror) from None
    return np.frombuffer(raw, "<i4", len(raw) // 4).astype(np.int32, copy=False), len(raw) % 4


def record_starts(words: Int32s) -> tuple[Int64s, bool]:
    """Find the complete records of a file.

    Returns:
        int64[m + 1], offsets of the records and the end of the last one, in words; and whether an incomplete
        record follows.
    """
    starts = ngram_count.record_starts(words, HEAD)
    return starts, int(starts[-1]) != len(words)


def write_lookup(path: Path, table: LookupTable, *, force: bool = False) -> int:
    """Write a table atomically and return the file size in bytes.

    Raises:
        InvalidInputError: the file exists, and not ``force``.
        StoreFullError, StoreError: the file cannot be written; no partial file is left.
    """
    with new_file(path, force=force) as file:
        for first in range(0, len(table), _BLOCK):
            file.write(_serialize(table, first, min(first + _BLOCK, len(table))).tobytes())
        return file.tell()


def _serialize(table: LookupTable, first: int, last: int) -> Int32s:
    """Records first .. last - 1 as file words."""
    starts = table.starts[first : last + 1]
    sizes = np.diff(starts)
    at = HEAD * np.arange(last - first) + 2 * (starts[:-1] - starts[0])
    words = np.empty(HEAD * (last - first) + 2 * int(starts[-1] - starts[0]), np.int32)
    words[at[:, None] + np.arange(MAX_ORDER)] = table.ngrams[first:last]
    words[at + MAX_ORDER] = sizes
    pair_at = np.repeat(HEAD * np.arange(1, last - first + 1), sizes) + 2 * np.arange(starts[-1] - starts[0])
    words[pair_at] = table.tokens[starts[0] : starts[-1]]
    words[pair_at + 1] = table.counts[starts[0] : starts[-1]]
    return words if sys.byteorder == "little" else words.byteswap()
