"""Selection of n-grams for small caches, compared with a reference selection and the whole cache's drafts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import pytest

from suffixsvc.errors import InvalidConfigError
from suffixsvc.lookup_records import TalliedFile
from suffixsvc_caches.building import selection
from suffixsvc_caches.building.lookup_caches import LookupCaches, LookupSpec
from suffixsvc_caches.building.run import build
from suffixsvc_caches.building.spec import BuildSpec
from suffixsvc_caches.counting.merging import Records
from suffixsvc_caches.lookup.algorithm import LookupDrafter, NgramCounts
from suffixsvc_caches.lookup.files import read_lookup
from support.build_logs import Call, texts_of, write_log
from support.lookup_oracle import PERCENT_LAX, PERCENT_STRICT, SAMPLES_LAX, SAMPLES_STRICT
from support.lookup_tables import records_of_table
from support.ngram_oracle import Ngram, fires, follows, ranked

RECORD = 28


class Candidate(NamedTuple):
    ngram: Ngram
    follower: int
    count: int
    share: float


def made_up(seed: int) -> list[Call]:
    random = Random(seed)
    words = [[random.randrange(6) for _ in range(random.randrange(1, 7))] for _ in range(6)]
    return [Call([token for _ in range(12) for token in random.choice(words)]) for _ in range(12)]


def candidates(calls: Sequence[Call], *, static: bool, min_count: int) -> list[Candidate]:
    """n-grams that fire, with their best follower, in the order of a file."""
    found = []
    for order in [2] if static else [1, 2, 3, 4]:
        least = (SAMPLES_LAX if static else SAMPLES_STRICT)[order - 1]
        percent = (PERCENT_LAX if static else PERCENT_STRICT)[order - 1]
        for ngram, counts in sorted(follows(texts_of(calls), order).items()):
            token, count = ranked(counts)[0]
            if fires(ranked(counts), least, percent) and count >= min_count:
                found.append(Candidate(ngram, token, count, count / sum(counts.values())))
    return found


def values(found: list[Candidate]) -> list[int]:
    """Expected hits of each; 0 if the longest shorter n-gram that fires has the same follower."""
    says = {each.ngram: each.follower for each in found}
    worth = []
    for each in found:
        shorter = [each.ngram[i:] for i in range(1, len(each.ngram)) if each.ngram[i:] in says]
        worth.append(0 if shorter and says[shorter[0]] == each.follower else each.count)
    return worth


def built(calls: Sequence[Call], folder: Path, *, static: bool, **spec: int | bool | None) -> Path:
    """Build a cache and return its file."""
    folder.mkdir()
    log = write_log(folder / "log.jsonl", calls)
    lookup = LookupSpec(folder / "c.bin", **spec)  # type: ignore[arg-type] # by name
    build(BuildSpec([log], work=folder / "work", **{"static" if static else "dynamic": lookup}))  # type: ignore[arg-type] # by name
    return lookup.path


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("seed", range(4))
def test_the_best_records_for_a_budget(static: bool, seed: int, tmp_path: Path) -> None:
    calls = made_up(seed)
    random = Random(seed)
    for k, min_count in enumerate((1, 3)):
        found = candidates(calls, static=static, min_count=min_count)
        worth = values(found)
        useful = sum(value > 0 for value in worth)
        assert useful > 5
        for budget in (
            RECORD,
            RECORD * useful - 1,
            RECORD * random.randrange(2, useful) + 5,
            RECORD * 9999,
            None,
        ):
            path = built(
                calls, tmp_path / f"{k}-{budget}", static=static, budget_bytes=budget, compact=True,
                min_count=min_count, exact_counts=True,
            )  # fmt: skip
            room = useful if budget is None else min(useful, budget // RECORD)
            best = sorted(range(len(found)), key=lambda i: (-worth[i], -found[i].share, i))[:room]
            expected = {found[i].ngram: {found[i].follower: found[i].count} for i in sorted(best)}
            table = records_of_table(read_lookup(path))
            assert list(table.items()) == list(expected.items())
            assert path.stat().st_size == RECORD * room


def drafts(path: Path, text: Sequence[int], *, static: bool) -> list[int]:
    table, nothing = NgramCounts(read_lookup(path)), NgramCounts()
    drafter = LookupDrafter(table, nothing) if static else LookupDrafter(nothing, table)
    drafter.begin(text)
    return drafter.draft()


@pytest.mark.parametrize("seed", range(4))
def test_a_compact_dynamic_cache_drafts_what_the_whole_one_does(seed: int, tmp_path: Path) -> None:
    calls = made_up(seed)
    whole = built(calls, tmp_path / "whole", static=False)
    compact = built(calls, tmp_path / "compact", static=False, compact=True)
    assert compact.stat().st_size < whole.stat().st_size / 2
    random = Random(seed)
    drafted = 0
    for _ in range(400):
        response = random.choice(calls).response
        at = random.randrange(2, len(response))
        text = random.choice(
            [response[:at], response[max(0, at - 5) : at], [random.randrange(6) for _ in range(4)]]
        )
        expected = drafts(whole, text, static=False)
        assert drafts(compact, text, static=False) == expected, text
        drafted += len(expected)
    assert drafted > 400


@pytest.mark.parametrize("seed", range(4))
def test_a_compact_static_cache_drafts_what_the_whole_one_does(seed: int, tmp_path: Path) -> None:
    """After two tokens, before the context cache has counts."""
    calls = made_up(seed)
    whole = built(calls, tmp_path / "whole", static=True)
    compact = built(calls, tmp_path / "compact", static=True, compact=True)
    assert compact.stat().st_size < whole.stat().st_size
    pairs = [[a, b] for a in range(6) for b in range(6) if a != b]
    expected = [drafts(whole, pair, static=True) for pair in pairs]
    assert sum(map(len, expected)) > 10
    assert [drafts(compact, pair, static=True) for pair in pairs] == expected


def test_followers_are_cut_and_counts_kept_small(tmp_path: Path) -> None:
    calls = [Call([1, 2, 3] * 6000), Call([1, 2, 4] * 4), Call([1, 2, 5] * 3), Call([7, 8, 9, 7, 8, 6])]
    exact = records_of_table(read_lookup(built(calls, tmp_path / "exact", static=True, exact_counts=True)))
    assert exact[1, 2] == {3: 6000, 4: 4, 5: 3}
    assert exact[7, 8] == {6: 1, 9: 1}
    small = records_of_table(read_lookup(built(calls, tmp_path / "small", static=True)))
    assert small[1, 2] == {3: 4000, 4: 2, 5: 2}
    assert small[7, 8] == {6: 2, 9: 1}
    top = records_of_table(read_lookup(built(calls, tmp_path / "top", static=True, top=1, min_count=2)))
    assert top[1, 2] == {3: 4000}
    assert (7, 8) not in top


@pytest.mark.parametrize(
    "bad", [{"budget_bytes": 27}, {"min_count": 0}, {"min_count": 2**31}, {"top": -1}, {"top": 2**31},
            {"budget_bytes": 99, "top": 2}, {"compact": True, "top": 2}],
)  # fmt: skip
def test_cuts_out_of_range(bad: dict[str, int]) -> None:
    with pytest.raises(InvalidConfigError):
        LookupSpec(Path("s.bin"), **bad)  # type: ignore[arg-type] # by name


def test_candidates_beyond_the_memory_limit_are_dropped_by_count(tmp_path: Path) -> None:
    """Candidates of 1, 2, .. 40 occurrences, with memory for ten of them."""
    rows = np.zeros((40, 8), np.int32)
    rows[:, 0], rows[:, 1], rows[:, 2:4] = np.arange(40), 7, -1
    rows[:, 4] = rows[:, 7] = np.random.default_rng(3).permutation(40) + 1
    rows[:, 5], rows[:, 6] = 1, 9
    parts = []
    for name, half in zip("ab", np.split(rows, 2), strict=True):
        (tmp_path / name).write_bytes(half.tobytes())
        parts.append(TalliedFile(tmp_path / name, 20, 20, half.nbytes, int(half[:, 7].sum()), 0))
    [wanted] = LookupCaches(LookupSpec(tmp_path / "c.bin", compact=True)).wanted
    found = [Records(wanted, parts)]
    everything, none = selection.select(found, None)
    assert (none, len(everything[0])) == (0, 40)
    chosen, least = selection.select(found, None, memory_bytes=10 * 160)
    assert least == 31
    assert sorted(chosen[0][:, 7].tolist()) == list(range(31, 41))
    assert chosen[0].tolist() == rows[rows[:, 7] >= 31].tolist()  # still in order
    nothing, most = selection.select(found, None, memory_bytes=0)
    assert (len(nothing[0]), most) == (0, 41)
