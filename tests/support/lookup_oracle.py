"""llama.cpp's lookup decoding the slow way: hash maps of GNU's library as lists, every rule written out."""

from __future__ import annotations

from collections.abc import Sequence

#: by n - 1
SAMPLES_LAX, PERCENT_LAX = [2, 2, 1, 1], [66, 50, 50, 50]
SAMPLES_STRICT, PERCENT_STRICT = [4, 3, 2, 2], [75, 66, 66, 66]

Ngram = tuple[int, ...]


class GnuMap:
    """``std::unordered_map<int, int>``: ``items`` is what a loop over it sees."""

    def __init__(self) -> None:
        self.items: list[tuple[int, int]] = []
        self.buckets = 1

    def emplace(self, key: int, value: int) -> None:
        if any(old == key for old, _ in self.items):
            return
        if len(self.items) + 1 > (self.buckets if self.buckets > 1 else 0):
            self.buckets = {1: 13, 13: 29, 29: 59, 59: 127, 127: 257}[self.buckets]
            listed, self.items = self.items, []
            for item in listed:
                self._insert(item)
        self._insert((key, value))

    def add(self, key: int, value: int) -> None:
        for i, (old, count) in enumerate(self.items):
            if old == key:
                self.items[i] = (key, count + value)
                return
        self.emplace(key, value)

    def get(self, key: int) -> int | None:
        return next((count for old, count in self.items if old == key), None)

    def _insert(self, item: tuple[int, int]) -> None:
        for i, (old, _) in enumerate(self.items):
            if old % self.buckets == item[0] % self.buckets:
                self.items.insert(i, item)
                return
        self.items.insert(0, item)


Cache = dict[Ngram, GnuMap]


def update(cache: Cache, text: Sequence[int], new: int, orders: Sequence[int] = (1, 2, 3, 4)) -> None:
    for n in orders:
        for i in range(max(len(text) - new, n), len(text)):
            cache.setdefault(tuple(text[i - n : i]), GnuMap()).add(text[i], 1)


def merge(into: Cache, added: Cache) -> None:
    for ngram, part in added.items():
        if ngram not in into:
            into[ngram] = part
            continue
        for token, count in part.items:
            into[ngram].add(token, count)


def loaded(records: Sequence[tuple[Ngram, Sequence[tuple[int, int]]]]) -> Cache:
    """A file's records as the loader takes them."""
    cache: Cache = {}
    for ngram, pairs in records:
        part = GnuMap()
        for token, count in pairs:
            part.emplace(token, count)
        cache.setdefault(ngram, part)
    return cache


def draft(text: Sequence[int], wide: int, context: Cache, dynamic: Cache, static: Cache) -> list[int]:
    drafted: list[int] = []
    if len(text) < 2:
        return drafted
    while len(drafted) < wide:
        known = [*text, *drafted]
        prior = static.get(tuple(known[-2:]), GnuMap())
        token = _primary(context, known, prior, SAMPLES_LAX, PERCENT_LAX)
        if token is None:
            token = _primary(dynamic, known, prior, SAMPLES_STRICT, PERCENT_STRICT)
        if token is None:
            token = _static(prior)
        if token is None:
            break
        drafted.append(token)
    return drafted


def _primary(
    cache: Cache, known: Sequence[int], prior: GnuMap, samples: list[int], percent: list[int]
) -> int | None:
    for n in (4, 3, 2, 1):
        if n > len(known):
            continue
        part = cache.get(tuple(known[len(known) - n :]), GnuMap())
        best, best_count, best_weight, total = None, 0, 0, 0
        for token, count in part.items:
            weight = 100 * (prior.get(token) or 0) or 1
            if count * weight > best_count * best_weight:
                best, best_count, best_weight = token, count, weight
            total += count
        if total < samples[n - 1] or 100 * best_count < percent[n - 1] * total:
            continue
        return best
    return None


def _static(part: GnuMap) -> int | None:
    best, best_count, total = None, 0, 0
    for token, count in part.items:
        if count > best_count:
            best, best_count = token, count
        total += count
    return best if total >= SAMPLES_LAX[1] and 100 * best_count >= PERCENT_LAX[1] * total else None
