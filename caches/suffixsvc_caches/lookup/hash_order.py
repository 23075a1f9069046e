"""Iteration order of libstdc++'s ``std::unordered_map<int, ...>``.

llama.cpp drafts the first of equal candidates in the iteration order of its map, which the C++ standard does
not define. Source: libstdc++, bits/hashtable.h:

    one linked list of all keys, keys of a bucket adjacent; bucket = key mod number of buckets

    insertion into an empty bucket      at the front of the list
    insertion into a non-empty bucket   at the front of the bucket's keys

When the keys would outnumber the buckets, the bucket count grows to the next prime and all keys are inserted
again in iteration order. Copying a map keeps the order. Other libraries (libc++, MSVC) differ, so that drafts
of llama.cpp built with them differ where candidates tie.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Final

#: successive bucket counts: primes that at least double
_BUCKETS: Final = (
    13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753, 42043, 85229, 172933, 351061, 712697, 1447153,
)  # fmt: skip


def iteration_order(keys: Iterable[int]) -> list[int]:
    """Return distinct keys >= 0 in the map's iteration order, given in insertion order."""
    listed: list[int] = []
    sizes = iter(_BUCKETS)
    size = 0
    buckets: dict[int, list[int]] = {}
    for i, key in enumerate(keys):
        if i >= size:
            listed, size = _listed(buckets), next(sizes)
            buckets = {}
            for old in listed:
                buckets.setdefault(old % size, []).append(old)
        buckets.setdefault(key % size, []).append(key)
    return _listed(buckets)


def _listed(buckets: dict[int, list[int]]) -> list[int]:
    """Keys in iteration order, from buckets in order of first use with keys in insertion order."""
    return list(chain.from_iterable(reversed(keys) for keys in reversed(buckets.values())))
