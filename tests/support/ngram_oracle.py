"""Brute-force n-gram counts, and the guarantees of pruning for each record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from suffixsvc.core.ngram_count import NgramCounter, TallyOutput

Ngram = tuple[int, ...]
#: n-gram -> counts of its followers
Follows = dict[Ngram, Counter[int]]
#: a text, and its number of leading context tokens
Text = tuple[Sequence[int], int]
#: an n-gram, its remaining slots, and (token, count) of its followers
Record = tuple[Ngram, tuple[int, ...], list[tuple[int, int]]]

MOST = 2**31 - 1


def follows(texts: Iterable[Text], order: int) -> Follows:
    """Followers of every n-gram of one order; context tokens do not count as followers."""
    found: Follows = {}
    for text, context in texts:
        for i in range(max(context, order), len(text)):
            found.setdefault(tuple(text[i - order : i]), Counter())[text[i]] += 1
    return found


def count(texts: Sequence[Text], path: Path, lowest: int, highest: int, memory_bytes: int = 1 << 20) -> None:
    """Count texts into one run."""
    counter = NgramCounter(lowest, highest, memory_bytes=memory_bytes)
    add(counter, texts)
    counter.spill(path)


def add(counter: NgramCounter, texts: Sequence[Text]) -> None:
    counter.add(
        np.array([token for text, _ in texts for token in text], np.int32),
        np.cumsum([len(text) for text, _ in texts], dtype=np.int64),
        np.array([context for _, context in texts], np.int64),
    )


def parse(raw: bytes, order: int, slots: int) -> list[Record]:
    """Parse the records of one order."""
    words = np.frombuffer(raw, "<i4").tolist()
    records: list[Record] = []
    at = 0
    while at < len(words):
        ngram, free = tuple(words[at : at + order]), tuple(words[at + order : at + slots])
        pairs = words[at + slots]
        assert pairs > 0
        at += slots + 1
        records.append(
            (ngram, free, list(zip(words[at : at + 2 * pairs : 2], words[at + 1 :: 2], strict=False))[:pairs])
        )
        at += 2 * pairs
    assert at == len(words)
    return records


def ranked(counts: Counter[int]) -> list[tuple[int, int]]:
    """Followers in the order of a record: the most frequent first, the smaller token among equals."""
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


def fires(pairs: Sequence[tuple[int, int]], least: int, percent: int) -> bool:
    total = sum(count for _, count in pairs)
    return total >= least and 100 * max(count for _, count in pairs) >= percent * total


def check_cut(rule: TallyOutput, cut: dict[str, int], raw: bytes, full: Follows) -> None:
    """Verify a file, given all counts and the arguments of its output."""
    least, percent, top = cut.get("least", 0), cut.get("percent", 0), cut.get("top", 0)
    min_count, max_count = cut.get("min_count", 1), cut.get("max_count", 0) or MOST
    records = parse(raw, rule.order, cut["slots"])
    assert [ngram for ngram, _, _ in records] == sorted({ngram for ngram, _, _ in records})
    assert rule.occurrences == sum(sum(counts.values()) for counts in full.values())
    assert (rule.records, rule.pairs, rule.bytes) == (
        len(records), sum(len(pairs) for _, _, pairs in records), len(raw),
    )  # fmt: skip
    written = {ngram: pairs for ngram, _, pairs in records}
    assert written.keys() <= full.keys()
    for ngram, free, _ in records:
        total = min(MOST, sum(full[ngram].values()))
        assert free == (-1,) * (len(free) - 1) + (total,) if cut.get("totals") else set(free) <= {-1}
    for ngram, counts in full.items():
        every = ranked(counts)
        fired = fires(every, least, percent)
        frequent = [pair for pair in every if pair[1] >= min_count][: top or None]
        kept = written.get(ngram)
        if kept is None:
            assert not frequent or (not fired and (cut.get("firing") or fires(frequent, least, percent)))
            continue
        assert fired or not cut.get("firing")
        assert fires(kept, least, percent) == fired, (ngram, every, kept)
        assert [token for token, _ in kept] == [token for token, _ in frequent[: len(kept)]]
        assert all(count >= 1 for _, count in kept)
        assert [count for _, count in kept] == sorted((count for _, count in kept), reverse=True)
        unique = bool(cut.get("unique")) and fired and len(kept) > 1
        if unique:
            assert kept[0][1] > kept[1][1]
        if frequent[0][1] <= max_count:
            assert kept[1:] == frequent[1:]
            raised = max(0, least - sum(count for _, count in frequent)) if fired else 0
            assert kept[0][1] <= max(max_count, frequent[0][1] + raised) + unique
            assert raised > 0 or unique or kept == frequent
        else:
            assert max_count <= kept[0][1] <= max_count + unique
