"""In which order GNU's ``std::unordered_map<int, ...>`` lists its keys.

llama.cpp takes the first of equal candidates that its map of followers lists, so that order decides whether
a draft is right. The standard leaves it open; GNU's library (libstdc++, bits/hashtable.h) does it so:

    one list of all keys, those of a bucket next to each other; bucket = key mod number of buckets

    a key whose bucket is empty   goes to the front of the list
    a key whose bucket is not     goes to the front of its bucket's keys

When more keys than buckets would be there, the buckets grow to the next size and all keys are inserted anew,
in the order they were listed. Copying a map keeps the order. Other libraries (libc++, MSVC) differ: drafts of
llama.cpp built with them differ from ours where candidates tie.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Final

__all__ = ["listed_order"]

#: how many buckets there are, one size after the other: primes that at least double
_BUCKETS: Final = (
    13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753, 42043, 85229, 172933, 351061, 712697, 1447153,
)  # fmt: skip


def listed_order(keys: Iterable[int]) -> list[int]:
    """Distinct keys >= 0 as the map lists them, from the order in which they were inserted."""
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
    """From the buckets in the order in which they were first used, keys in the order they came."""
    return list(chain.from_iterable(reversed(keys) for keys in reversed(buckets.values())))
