"""Reference implementation of llama.cpp's lookup decoding, with libstdc++'s hash maps as lists."""

from __future__ import annotations

from collections.abc import Sequence

#: by n - 1
SAMPLES_LAX, PERCENT_LAX = [2, 2, 1, 1], [66, 50, 50, 50]
SAMPLES_STRICT, PERCENT_STRICT = [4, 3, 2, 2], [75, 66, 66, 66]

Ngram = tuple[int, ...]

#: ties that were decided by the order of a hash map
TIES: list[tuple[int, ...]] = []


class GnuMap:
    """``std::unordered_map<int, int>``; ``items`` is in iteration order."""

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
    """Load the records of a file as llama.cpp does."""
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


def stats(text: Sequence[int], ctx: int, wide: int, static: Cache) -> tuple[int, int, int, int, int]:
    """llama-lookup-stats, line by line: n_predict, n_drafted, n_accept, steps, tokens."""
    dynamic: Cache = {}
    drafted = accepted = steps = tokens = 0
    start = 0
    while start + ctx < len(text):
        chunk = text[start : start + ctx]
        output, context = [chunk[0]], dict[Ngram, GnuMap]()
        while len(output) < ctx:
            tried = draft(output, wide, context, dynamic, static)
            drafted += len(tried)
            for token in tried:
                if len(output) == ctx or chunk[len(output)] != token:
                    break
                accepted += 1
                output.append(token)
                update(context, output, 1)
            if len(output) < ctx:
                output.append(chunk[len(output)])
                update(context, output, 1)
            steps += 1
        merge(dynamic, context)
        tokens += ctx - 1
        start += ctx
    return len(text) - len(text) % ctx, drafted, accepted, steps, tokens


def _primary(
    cache: Cache, known: Sequence[int], prior: GnuMap, samples: list[int], percent: list[int]
) -> int | None:
    for n in (4, 3, 2, 1):
        if n > len(known):
            continue
        part = cache.get(tuple(known[len(known) - n :]), GnuMap())
        weights = {token: 100 * (prior.get(token) or 0) or 1 for token, _ in part.items}
        best = _best(part, weights, samples[n - 1], percent[n - 1])
        if best is not None:
            return best
    return None


def _static(part: GnuMap) -> int | None:
    return _best(part, dict.fromkeys((token for token, _ in part.items), 1), SAMPLES_LAX[1], PERCENT_LAX[1])


def _best(part: GnuMap, weights: dict[int, int], samples: int, percent: int) -> int | None:
    best, best_product, total = None, 0, 0
    for token, count in part.items:
        if count * weights[token] > best_product:
            best, best_product = token, count * weights[token]
        total += count
    if best is None or total < samples:
        return None
    enough = {token: 100 * count >= percent * total for token, count in part.items}
    equal = tuple(token for token, count in part.items if count * weights[token] == best_product)
    if len(equal) > 1 and any(enough[token] for token in equal):
        TIES.append(equal)
    return best if enough[best] else None
