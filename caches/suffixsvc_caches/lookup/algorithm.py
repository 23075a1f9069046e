"""llama.cpp's lookup decoding: three tables of what followed the last 1 to 4 tokens (common/ngram-cache.cpp).

The rules of ``llama-lookup`` and ``llama-server --spec-type ngram-cache``: the *context* cache counts the
text that is being written, the *dynamic* cache earlier ones, the *static* cache a corpus counted beforehand,
of which only 2-grams are ever asked for. A token is drafted from the first that is sure enough:

1. context, longest n-gram first, with lax thresholds;
2. dynamic, longest first, strict thresholds;
3. static, with the lax thresholds of 2-grams.

In 1 and 2 a candidate's count is weighed by 100 times its count in the static entry of the last two tokens,
by 1 where that lacks it; the thresholds look at unweighted counts. The draft goes on behind each token until
none is sure enough or it is full. Of equal candidates the one that its hash map lists first wins
(:mod:`suffixsvc_caches.lookup.hash_order`).

Two things differ on purpose. llama.cpp reads in front of a text of 2 or 3 tokens when it makes up longer
n-grams; here those n-grams do not exist. It multiplies counts as int32 and overflows; here they do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

import numpy as np

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.lookup.hash_order import listed_order
from suffixsvc_caches.lookup.table import HEAD, MAX_ORDER, STATIC_ORDER, Int64s, LookupTable, are_ngrams

__all__ = ["DRAFT_TOKENS", "LAX", "STRICT", "LookupDrafter", "NgramCounts"]

#: the widest draft of llama-server, and what llama-lookup is mostly used with
DRAFT_TOKENS: Final = 8
#: by n - 1: the least occurrences of an n-gram, and the least percent of them that the winner has. None is
#: below 50, which _chosen relies on
LAX: Final = ((2, 66), (2, 50), (1, 50), (1, 50))
STRICT: Final = ((4, 75), (3, 66), (2, 66), (2, 66))

_BITS: Final = 32
#: the last 1 to 4 tokens of a packed n-gram
_LAST: Final = tuple(2 ** (n * _BITS) - 1 for n in range(1, MAX_ORDER + 1))
_TOKEN, _PAIR, _TRIPLE, _NGRAM = _LAST
#: a count of one, in an entry
_ONE: Final = 1 << _BITS
_NONE: Final = -1
_SIDES: Final[tuple[Literal["left"], Literal["right"]]] = ("left", "right")


class _Followers:
    """What followed an n-gram, where that were several tokens.

    Attributes:
        total: sum of the counts.
        most, top: the largest count, and the first token that reached it.
        counts: by token, in the order in which llama.cpp inserts them.
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


#: what followed an n-gram: most often one token, as ``count << 32 | token``: a third of the memory
_Entry = int | _Followers
#: from an n-gram's tokens, oldest first, 32 bits each
_Find = Callable[[int], _Entry | None]


class NgramCounts:
    """One of the three caches: what followed every n-gram, and how often.

    Args:
        table: what it starts with, of a file; looked up as it is asked for, so that a large one costs little.
            Of equal n-grams, and of equal tokens in a record, the first counts.
        orders: the lengths n that :meth:`extend` counts.

    Raises:
        InvalidInputError: the table has n-grams or tokens that are none.
    """

    def __init__(
        self, table: LookupTable | None = None, orders: Sequence[int] = range(1, MAX_ORDER + 1)
    ) -> None:
        self._orders = tuple(orders)
        self._after: list[dict[int, _Entry | None]]
        #: by n - 1
        self.find: tuple[_Find, ...]
        if table is None:
            self._after = [{} for _ in range(MAX_ORDER)]
            self.find = tuple(after.get for after in self._after)
        else:
            if (table.tokens < 0).any() or not are_ngrams(table.ngrams).all():
                raise InvalidInputError(
                    "the lookup cache has n-grams or tokens that are none",
                    remedy="suffixsvc cache verify names the first one.",
                )
            self._after = [_OfTable(table, n) for n in range(1, MAX_ORDER + 1)]
            self.find = tuple(after.__getitem__ for after in self._after)

    def extend(self, text: Sequence[int], first: int) -> None:
        """Count the tokens from position ``first`` on, each behind the n-grams that end before it."""
        first = max(first, 1)
        key = _packed(text[max(first - MAX_ORDER, 0) : first])
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
        """Add what another has counted; ``other`` must not be used any more."""
        for find, mine, theirs in zip(self.find, self._after, other._after, strict=True):
            for key, entry in theirs.items():
                if entry is not None:
                    old = find(key)
                    mine[key] = entry if old is None else _sum(old, entry)

    def file_bytes(self) -> int:
        """Of what was counted here, as llama.cpp's file."""
        entries = (entry for after in self._after for entry in after.values() if entry is not None)
        return sum(4 * HEAD + 8 * (1 if isinstance(entry, int) else len(entry.counts)) for entry in entries)


class LookupDrafter:
    """Drafts for one text after the other, as llama.cpp does.

    Args:
        static: 2-grams of a corpus; shared between drafters, never changed.
        dynamic: of earlier texts; :meth:`end` adds to it.
        draft_tokens: the widest draft.
        pieces: count only n-grams that lie, with what follows, in one piece: a prompt, or the tokens of one
            :meth:`append`. llama-server (b11434) does, by mistake: of a step's tokens it learns what they
            are among themselves, and nothing of a step of one token.
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
        """A text begins, perhaps of no token; what stands in front of it is learned from and drafted from."""
        self._text, self._context = [], NgramCounts()
        self.append(prompt)

    def append(self, token_ids: Sequence[int]) -> None:
        """What was really written."""
        if self._pieces:
            self._context.extend(token_ids, 0)
            self._text += token_ids
        else:
            known = len(self._text)
            self._text += token_ids
            self._context.extend(self._text, known)

    def end(self) -> None:
        """The text is over: the context cache is added to the dynamic one."""
        self._dynamic.merge(self._context)
        self._text, self._context = [], NgramCounts()

    def draft(self) -> list[int]:
        """What comes next: token ids, at most ``draft_tokens``."""
        drafted: list[int] = []
        known = len(self._text)
        if known < STATIC_ORDER:
            return drafted
        key = _packed(self._text[-MAX_ORDER:])
        while len(drafted) < self._draft_tokens:
            token = self._next(key, min(MAX_ORDER, known + len(drafted)))
            if token == _NONE:
                break
            drafted.append(token)
            key = (key << _BITS | token) & _NGRAM
        return drafted

    def _next(self, key: int, orders: int) -> int:
        """The token behind the last tokens, of which ``orders`` are known; or _NONE."""
        prior = self._static.find[STATIC_ORDER - 1](key & _PAIR)
        keys = (key & _TOKEN, key & _PAIR, key & _TRIPLE, key)
        for find, thresholds in ((self._context.find, LAX), (self._dynamic.find, STRICT)):
            for n in range(orders - 1, -1, -1):
                entry = find[n](keys[n])
                if entry is not None:
                    token = _chosen(entry, prior, *thresholds[n])
                    if token != _NONE:
                        return token
        return _NONE if prior is None else _chosen(prior, None, *LAX[STATIC_ORDER - 1])


def _chosen(entry: _Entry, prior: _Entry | None, least: int, percent: int) -> int:
    """The best of an n-gram's followers, if they are many and it is enough of them; or _NONE."""
    if isinstance(entry, int):
        return entry & _TOKEN if entry >> _BITS >= least else _NONE
    total, most, counts = entry.total, entry.most, entry.counts
    if total < least or 100 * most < percent * total:
        return _NONE
    if prior is None:
        # The largest count is half of all or more: equal ones are two, and the map lists the later first.
        return list(counts)[1] if 2 * most == total and len(counts) == 2 else entry.top
    weights = {prior & _TOKEN: prior >> _BITS} if isinstance(prior, int) else prior.counts
    products = {
        token: 100 * weights[token] * count if token in weights else count for token, count in counts.items()
    }
    best = max(products.values())
    equal = [token for token, product in products.items() if product == best]
    winner = equal[0] if len(equal) == 1 else next(t for t in listed_order(counts) if t in equal)
    return winner if 100 * counts[winner] >= percent * total else _NONE


def _sum(old: _Entry, new: _Entry) -> _Entry:
    """Two entries added; ``old`` may be changed."""
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
    for token in listed_order(new.counts):
        old.add(token, new.counts[token])
    return old


class _OfTable(dict[int, _Entry | None]):
    """The n-grams of one length of a table, as they are asked for."""

    def __init__(self, table: LookupTable, order: int) -> None:
        super().__init__()
        self._table = table
        records = np.flatnonzero(table.orders() == order)
        tokens = table.ngrams[records, :order].astype(np.int64)
        low, high = _packed_pairs(tokens[:, -2:]), _packed_pairs(tokens[:, :-2])
        by_ngram = np.lexsort((low, high))  # stable: of equal ones the first stays the first
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


def _packed(tokens: Sequence[int]) -> int:
    """The key of up to four tokens, oldest first."""
    key = 0
    for token in tokens:
        key = key << _BITS | token
    return key


def _packed_pairs(tokens: Int64s) -> Int64s:
    """int64[m] of int64[m, 0..2]."""
    packed = np.zeros(len(tokens), np.int64)
    for column in tokens.T:
        packed = packed << _BITS | column
    return packed
