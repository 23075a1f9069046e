"""llama.cpp's lookup decoding in Python: three caches of the followers of n-grams of 1 to 4 tokens.

Source: llama.cpp, common/ngram-cache.cpp, as used by ``llama-lookup`` and ``llama-server --spec-type
ngram-cache``. The *context* cache counts the current text, the *dynamic* cache earlier texts, the *static*
cache a corpus; only 2-grams of the static cache are queried. A token is drafted from the first cache whose
entry reaches its thresholds:

1. context, longest n-gram first, lax thresholds;
2. dynamic, longest n-gram first, strict thresholds;
3. static, the lax thresholds of 2-grams.

In 1 and 2 a candidate's count is multiplied by 100 times its count in the static entry of the last two
tokens, by 1 if it is not there; thresholds apply to unweighted counts. The draft is extended until no entry
reaches its thresholds or the draft is full. Of equal candidates the first in the iteration order of the hash
map wins (:mod:`suffixsvc_caches.lookup.hash_order`).

Two intentional differences:

* for texts of 2 or 3 tokens llama.cpp reads memory before the text to build longer n-grams; here those
  n-grams do not exist;
* llama.cpp multiplies counts as int32, which overflows; here products are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

import numpy as np

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.lookup.hash_order import iteration_order
from suffixsvc_caches.lookup.table import HEAD, MAX_ORDER, STATIC_ORDER, Int64s, LookupTable, are_ngrams

#: draft length limit of llama-server, and the usual one of llama-lookup
DRAFT_TOKENS: Final = 8
#: (minimum occurrences of an n-gram, minimum percentage of its best follower), by n - 1. _best_follower
#: relies on percentages of 50 or more
LAX: Final = ((2, 66), (2, 50), (1, 50), (1, 50))
STRICT: Final = ((4, 75), (3, 66), (2, 66), (2, 66))

_BITS: Final = 32
#: masks of the last 1 to 4 tokens of a packed n-gram
_LAST: Final = tuple(2 ** (n * _BITS) - 1 for n in range(1, MAX_ORDER + 1))
_TOKEN, _PAIR, _TRIPLE, _NGRAM = _LAST
#: a count of 1 in an entry
_ONE: Final = 1 << _BITS
_NONE: Final = -1
_SIDES: Final[tuple[Literal["left"], Literal["right"]]] = ("left", "right")


def thresholds(*, static: bool) -> dict[int, tuple[int, int]]:
    """Return the thresholds of a static or of a dynamic cache, by the length of its n-grams."""
    return {STATIC_ORDER: LAX[STATIC_ORDER - 1]} if static else dict(enumerate(STRICT, 1))


class _Followers:
    """Followers of an n-gram that has several.

    Attributes:
        total: sum of the counts.
        most, top: the largest count, and the first token that reached it.
        counts: count by token, in llama.cpp's insertion order.
    """

    __slots__ = ("counts", "most", "top", "total")

    def __init__(self, counts: dict[int, int]) -> None:
        self.counts = counts
        self.total = sum(counts.values())
        self.most = max(counts.values())
        self.top = next(token for token, count in counts.items() if count == self.most)

    def add(self, token: int, count: int) -> None:
        counts = self.counts
        self.total += count
        counts[token] = count = counts.get(token, 0) + count
        if count > self.most:
            self.most, self.top = count, token


#: followers of an n-gram; a single one, the usual case, is ``count << 32 | token``, a third of the memory
_Entry = int | _Followers
#: lookup by the packed n-gram: 32 bits for each token, oldest first
_Find = Callable[[int], _Entry | None]


class NgramCounts:
    """Follower counts of n-grams: one of the three caches.

    Args:
        table: initial counts, from a file; its records are decoded on first use. Of equal n-grams, and of
            equal tokens in a record, the first counts.
        orders: the lengths n that :meth:`extend` counts.

    Raises:
        InvalidInputError: the table has malformed n-grams or negative tokens.
    """

    def __init__(
        self, table: LookupTable | None = None, orders: Sequence[int] = range(1, MAX_ORDER + 1)
    ) -> None:
        self._orders = tuple(orders)
        self._after: list[dict[int, _Entry | None]]
        #: lookup functions, by n - 1
        self.find: tuple[_Find, ...]
        if table is None:
            self._after = [{} for _ in range(MAX_ORDER)]
            self.find = tuple(after.get for after in self._after)
        else:
            if (table.tokens < 0).any() or not are_ngrams(table.ngrams).all():
                raise InvalidInputError(
                    "n-grams and followers of a lookup cache must be token ids",
                    remedy="suffixsvc cache verify names the first fault.",
                )
            self._after = [_TableEntries(table, n) for n in range(1, MAX_ORDER + 1)]
            self.find = tuple(after.__getitem__ for after in self._after)

    def extend(self, text: Sequence[int], first: int) -> None:
        """Count each token from position ``first`` on as a follower of the n-grams that end before it."""
        first = max(first, 1)
        key = _pack(text[max(first - MAX_ORDER, 0) : first])
        counted = [(n, _LAST[n - 1], self.find[n - 1], self._after[n - 1]) for n in self._orders]
        for i in range(first, len(text)):
            token = text[i]
            for n, last, find, after in counted:
                if n > i:
                    break
                ngram = key & last
                old = find(ngram)
                if old is None:
                    after[ngram] = _ONE | token
                elif isinstance(old, int):
                    after[ngram] = old + _ONE if old & _TOKEN == token else _sum(old, _ONE | token)
                else:
                    old.add(token, 1)
            key = (key << _BITS | token) & _NGRAM

    def merge(self, other: NgramCounts) -> None:
        """Add the counts of another cache, which must not be used afterwards."""
        for find, mine, theirs in zip(self.find, self._after, other._after, strict=True):
            for key, entry in theirs.items():
                if entry is not None:
                    old = find(key)
                    mine[key] = entry if old is None else _sum(old, entry)

    def file_bytes(self) -> int:
        """Size in bytes of the decoded and counted entries as a file of llama.cpp."""
        entries = (entry for after in self._after for entry in after.values() if entry is not None)
        return sum(4 * HEAD + 8 * (1 if isinstance(entry, int) else len(entry.counts)) for entry in entries)


class LookupDrafter:
    """Drafter for a sequence of texts, equivalent to llama.cpp's.

    Args:
        static: 2-grams of a corpus; read only, can be shared.
        dynamic: counts of earlier texts; :meth:`end` adds to it.
        draft_tokens: length limit of a draft.
        pieces: count an n-gram and its follower only if both are in one piece: the prompt, or the tokens of
            one :meth:`append`. This reproduces a bug of llama-server (b11434), which counts the tokens of
            each step separately, and therefore nothing in a step of one token.
    """

    def __init__(
        self,
        static: NgramCounts,
        dynamic: NgramCounts,
        *,
        draft_tokens: int = DRAFT_TOKENS,
        pieces: bool = False,
    ) -> None:
        self._static, self._dynamic, self._context = static, dynamic, NgramCounts()
        self._draft_tokens, self._pieces = draft_tokens, pieces
        self._text: list[int] = []

    def begin(self, prompt: Sequence[int]) -> None:
        """Start a text with a prompt, which may be empty; its n-grams are counted."""
        self._text, self._context = [], NgramCounts()
        self.append(prompt)

    def append(self, token_ids: Sequence[int]) -> None:
        """Append generated tokens and count their n-grams."""
        if self._pieces:
            self._context.extend(token_ids, 0)
            self._text += token_ids
        else:
            known = len(self._text)
            self._text += token_ids
            self._context.extend(self._text, known)

    def end(self) -> None:
        """End the text: merge the context cache into the dynamic cache."""
        self._dynamic.merge(self._context)
        self._text, self._context = [], NgramCounts()

    def draft(self) -> list[int]:
        """Draft the next tokens, at most ``draft_tokens``."""
        drafted: list[int] = []
        known = len(self._text)
        if known < STATIC_ORDER:
            return drafted
        key = _pack(self._text[-MAX_ORDER:])
        while len(drafted) < self._draft_tokens:
            token = self._next(key, min(MAX_ORDER, known + len(drafted)))
            if token == _NONE:
                break
            drafted.append(token)
            key = (key << _BITS | token) & _NGRAM
        return drafted

    def _next(self, key: int, orders: int) -> int:
        """Token to draft after a packed n-gram of which ``orders`` tokens exist; or _NONE."""
        prior = self._static.find[STATIC_ORDER - 1](key & _PAIR)
        keys = (key & _TOKEN, key & _PAIR, key & _TRIPLE, key)
        for find, thresholds in ((self._context.find, LAX), (self._dynamic.find, STRICT)):
            for n in range(orders - 1, -1, -1):
                entry = find[n](keys[n])
                if entry is not None:
                    token = _best_follower(entry, prior, *thresholds[n])
                    if token != _NONE:
                        return token
        return _NONE if prior is None else _best_follower(prior, None, *LAX[STATIC_ORDER - 1])


def _best_follower(entry: _Entry, prior: _Entry | None, least: int, percent: int) -> int:
    """Best follower of an n-gram if the entry reaches its thresholds; or _NONE."""
    if isinstance(entry, int):
        return entry & _TOKEN if entry >> _BITS >= least else _NONE
    total, most, counts = entry.total, entry.most, entry.counts
    if total < least or 100 * most < percent * total:
        return _NONE
    if prior is None:
        # The largest count is half of the total or more: at most two are equal, and the map lists the later
        # one first.
        return list(counts)[1] if 2 * most == total and len(counts) == 2 else entry.top
    weights = {prior & _TOKEN: prior >> _BITS} if isinstance(prior, int) else prior.counts
    products = {
        token: 100 * weights[token] * count if token in weights else count for token, count in counts.items()
    }
    best = max(products.values())
    equal = [token for token, product in products.items() if product == best]
    winner = equal[0] if len(equal) == 1 else next(t for t in iteration_order(counts) if t in equal)
    return winner if 100 * counts[winner] >= percent * total else _NONE


def _sum(old: _Entry, new: _Entry) -> _Entry:
    """Sum of two entries; ``old`` may be modified."""
    if isinstance(new, int):
        token, count = new & _TOKEN, new >> _BITS
        if not isinstance(old, int):
            old.add(token, count)
            return old
        if old & _TOKEN == token:
            return old + (count << _BITS)
        return _Followers({old & _TOKEN: old >> _BITS, token: count})
    if isinstance(old, int):
        old = _Followers({old & _TOKEN: old >> _BITS})
    for token in iteration_order(new.counts):
        old.add(token, new.counts[token])
    return old


class _TableEntries(dict[int, _Entry | None]):
    """Entries of a table's n-grams of one length, decoded on first use."""

    def __init__(self, table: LookupTable, order: int) -> None:
        super().__init__()
        self._table = table
        records = np.flatnonzero(table.orders() == order)
        tokens = table.ngrams[records, :order].astype(np.int64)
        low, high = _pack_pairs(tokens[:, -2:]), _pack_pairs(tokens[:, :-2])
        by_ngram = np.lexsort((low, high))  # stable: the first of equal n-grams stays first
        self._low, self._high, self._records = low[by_ngram], high[by_ngram], records[by_ngram]

    def __missing__(self, key: int) -> _Entry | None:
        high, low = key >> 2 * _BITS, key & _PAIR
        a, b = (int(np.searchsorted(self._high, high, side)) for side in _SIDES)
        at = a + int(np.searchsorted(self._low[a:b], low))
        found = self._entry(int(self._records[at])) if at < b and self._low[at] == low else None
        self[key] = found
        return found

    def _entry(self, record: int) -> _Entry:
        table = self._table
        part = slice(int(table.starts[record]), int(table.starts[record + 1]))
        counts: dict[int, int] = {}
        for token, count in zip(table.tokens[part].tolist(), table.counts[part].tolist(), strict=True):
            counts.setdefault(token, count)
        if len(counts) > 1:
            return _Followers(counts)
        (token, count), *_ = counts.items()
        return int(count) << _BITS | int(token)


def _pack(tokens: Sequence[int]) -> int:
    """Pack up to four tokens, oldest first, into a key."""
    key = 0
    for token in tokens:
        key = key << _BITS | token
    return key


def _pack_pairs(tokens: Int64s) -> Int64s:
    """Pack tokens, int64[m, 0..2], to int64[m]."""
    packed = np.zeros(len(tokens), np.int64)
    for column in tokens.T:
        packed = packed << _BITS | column
    return packed
