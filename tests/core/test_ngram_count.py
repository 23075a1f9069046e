"""Counting, merging and pruning of n-grams, compared with a brute-force count."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixsvc.core.ngram_count import (
    NgramCounter,
    SegmentJob,
    TallyOutput,
    check_run,
    combine_runs,
    record_starts,
    run_tokens,
    split_runs,
    tally_runs,
)
from suffixsvc.errors import InvalidInputError, SegmentCancelledError
from support.long_form import rounds
from support.ngram_oracle import MOST, Text, add, check_cut, count, follows, parse, ranked
from support.text_strategies import text_of


@st.composite
def texts_of(draw: st.DrawFn) -> list[Text]:
    """Adversarial texts: one token only, periods, tiny alphabets, the limits of int32; partly context."""
    alphabet = draw(st.sampled_from([[0], [0, 1], [0, MOST], [MOST - 1, MOST], [5, 6, 7, 100_000]]))
    period = text_of(alphabet, 4)
    text = st.one_of(
        text_of(alphabet, 40, shortest=0),
        st.builds(lambda part, times: part * times, period, st.integers(1, 30)),
    )
    found = draw(st.lists(text, min_size=1, max_size=6))
    return [(each, draw(st.integers(0, len(each)))) for each in found]


def cuts() -> st.SearchStrategy[dict[str, Any]]:
    """Arguments of an output. Pruning below the firing threshold could not preserve what fires."""
    return st.fixed_dictionaries(
        {"min_count": st.integers(1, 3), "top": st.integers(0, 3), "least": st.integers(0, 4)},
        optional={
            "max_count": st.integers(4, 9),
            "percent": st.sampled_from([34, 50, 66, 75, 100]),
            "firing": st.booleans(),
            "unique": st.booleans(),
            "totals": st.booleans(),
        },
    )


@settings(deadline=None, max_examples=rounds(25, full=80))
@given(texts_of(), st.data())
def test_any_runs_of_any_texts_give_what_was_counted(texts: list[Text], data: st.DataObject) -> None:
    lowest = data.draw(st.integers(1, 16), "lowest")
    highest = data.draw(st.integers(lowest, 16), "highest")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        largest = max((max(text, default=0) for text, _ in texts), default=0)
        counter = NgramCounter(
            lowest, highest, largest_token=data.draw(st.sampled_from([largest, MOST])), memory_bytes=320 << 10
        )
        runs: list[Path] = []
        for text in texts:
            add(counter, [text])
            if data.draw(st.booleans(), "spill"):
                runs.append(folder / f"{len(runs)}.run")
                counter.spill(runs[-1])
        runs.append(folder / "last.run")
        counter.spill(runs[-1])
        assert sum(map(run_tokens, runs)) == sum(len(text) for text, _ in texts)
        some = data.draw(st.integers(1, len(runs)), "combined")
        combine_runs(runs[:some], folder / "combined.run", memory_bytes=data.draw(st.sampled_from([0, 999])))
        merged = [folder / "combined.run", *runs[some:]]
        for run in merged:
            check_run(run)
        order = data.draw(st.integers(lowest, highest), "order")
        full = follows(texts, order)
        cut = data.draw(cuts(), "cut")
        cut["slots"] = order + data.draw(st.integers(cut.get("totals", False), 1), "free slots")
        written = {}
        for which, given_runs in (("apart", runs), ("merged", merged)):
            wanted = TallyOutput(str(folder / which), order, **cut)
            [found] = tally_runs(given_runs, [wanted], memory_bytes=data.draw(st.sampled_from([0, 4096])))
            written[which] = (folder / which).read_bytes()
        assert written["apart"] == written["merged"]
        check_cut(found, cut, written["merged"], full)
        bounds = split_runs(runs, data.draw(st.integers(1, 5), "parts"))
        assert bounds == sorted(set(bounds))
        parts = b""
        for first, end in zip([0, *bounds], [*bounds, MOST + 1], strict=True):
            tally_runs(
                runs, [TallyOutput(str(folder / "part"), order, **cut)], first_token=first, end_token=end
            )
            parts += (folder / "part").read_bytes()
        assert parts == written["merged"]


@pytest.mark.parametrize("highest", [1, 2, 4, 9, 16], ids=lambda n: f"{n}-grams")
def test_many_tokens_in_little_memory(highest: int, tmp_path: Path) -> None:
    """Enough tokens to fill the arena, to sort blocks digit by digit, and to spill several runs."""
    random = Random(highest)
    texts: list[Text] = []
    for _ in range(60):
        size, alphabet = random.randrange(1, 900), random.choice([1, 2, 30, 5000])
        period = [random.randrange(alphabet) for _ in range(random.choice([3, 50, size]))]
        text = (period * (size // len(period) + 1))[:size]
        texts.append((text, random.choice([0, 0, random.randrange(size + 1)])))
    counter = NgramCounter(1, highest, largest_token=5000, memory_bytes=4 << 20)
    small = NgramCounter(1, highest, largest_token=5000, memory_bytes=400 << 10)
    runs = [tmp_path / "0.run"]
    for text in texts:
        add(counter, [text])
        if len(text[0]) > small.room or small.tokens > 5000:
            small.spill(runs[-1])
            runs.append(tmp_path / f"{len(runs)}.run")
        add(small, [text])
    small.spill(runs[-1])
    counter.spill(tmp_path / "one.run")
    combine_runs(runs, tmp_path / "combined.run", memory_bytes=1000)
    assert len(runs) > 3
    assert (tmp_path / "combined.run").read_bytes() == (tmp_path / "one.run").read_bytes()
    orders = sorted({1, highest})
    outputs = [TallyOutput(str(tmp_path / f"order{n}"), n, n) for n in orders]
    tally_runs(runs, outputs)
    for n in orders:
        records = parse((tmp_path / f"order{n}").read_bytes(), n, n)
        assert records == [(g, (), ranked(c)) for g, c in sorted(follows(texts, n).items())]


def test_counts_beyond_int32(tmp_path: Path) -> None:
    """The best count is limited to int32; the others are scaled in proportion."""
    text = [1, 2] * 3 + [1, 3]
    count([(text, 0)], tmp_path / "0.run", 1, 1)
    for i in range(30):  # the same run twice is twice the counts
        combine_runs([tmp_path / f"{i}.run"] * 2, tmp_path / f"{i + 1}.run")
    [found] = tally_runs([tmp_path / "30.run"], [TallyOutput(str(tmp_path / "o"), 1, 1)])
    assert found.occurrences == 7 << 30
    third = ((1 << 30) * MOST) // (3 << 30)
    assert parse((tmp_path / "o").read_bytes(), 1, 1) == [
        ((1,), (), [(2, MOST), (3, third)]),
        ((2,), (), [(1, MOST)]),
    ]


def test_a_tie_at_the_largest_count_is_broken_downwards(tmp_path: Path) -> None:
    count([([1, 2, 1, 3], 0)], tmp_path / "0.run", 1, 1)
    for i in range(31):
        combine_runs([tmp_path / f"{i}.run"] * 2, tmp_path / f"{i + 1}.run")
    tally_runs([tmp_path / "31.run"], [TallyOutput(str(tmp_path / "o"), 1, 1, unique=True)])
    assert parse((tmp_path / "o").read_bytes(), 1, 1)[0] == ((1,), (), [(2, MOST), (3, MOST - 1)])


def bad_adds() -> list[tuple[str, list[int], list[int], list[int]]]:
    return [
        ("must be in range", [1, 8, 1], [3], [0]),
        ("must be in range", [1, -1, 1], [3], [0]),
        ("must divide", [1, 2, 3], [2], [0]),
        ("must divide", [1, 2, 3], [4], [0]),
        ("must divide", [1, 2, 3], [2, 1, 3], [0, 0, 0]),
        ("must divide", [1, 2, 3], [3], [4]),
        ("must divide", [1, 2, 3], [3], [-1]),
        ("must divide", [1, 2, 3], [3], []),
        ("must fit the room", [1] * 100_000, [100_000], [0]),
    ]


@pytest.mark.parametrize(("what", "tokens", "ends", "contexts"), bad_adds())
def test_a_refused_add_changes_nothing(
    what: str, tokens: list[int], ends: list[int], contexts: list[int], tmp_path: Path
) -> None:
    counter = NgramCounter(1, 2, largest_token=7, memory_bytes=64 << 10)
    add(counter, [([1, 2, 3], 0)])
    before = counter.room, counter.tokens
    with pytest.raises(InvalidInputError, match=what):
        counter.add(np.array(tokens, np.int32), np.array(ends, np.int64), np.array(contexts, np.int64))
    assert (counter.room, counter.tokens) == before
    counter.spill(tmp_path / "a.run")
    [found] = tally_runs([tmp_path / "a.run"], [TallyOutput(str(tmp_path / "o"), 1)])
    assert found.occurrences == 2


def test_ids_are_int32_and_are_not_made_so() -> None:
    """A conversion would change an id that does not fit."""
    counter = NgramCounter(1, 1, memory_bytes=1 << 20)
    none = np.zeros(1, np.int64)
    with pytest.raises(TypeError):
        counter.add(np.array([1 << 32, 1], np.int64), np.array([2], np.int64), none)  # type: ignore[arg-type] # is the point


@pytest.mark.parametrize(
    ("lowest", "highest", "largest", "memory"),
    [(0, 1, 9, 1 << 20), (2, 1, 9, 1 << 20), (1, 17, 9, 1 << 20), (1, 4, -1, 1 << 20), (1, 4, 2**31, 1 << 20),
     (1, 4, 9, 1000), (1, 16, MOST, 100_000)],
)  # fmt: skip
def test_invalid_counter_arguments_are_refused(lowest: int, highest: int, largest: int, memory: int) -> None:
    with pytest.raises(InvalidInputError):
        NgramCounter(lowest, highest, largest_token=largest, memory_bytes=memory)


@pytest.mark.parametrize(
    ("order", "slots", "totals", "first", "end"),
    [(1, 4, False, 0, 9), (4, 4, False, 0, 9), (3, 2, False, 0, 9), (3, 3, True, 0, 9), (3, 99, False, 0, 9),
     (3, 4, False, 9, 8), (3, 4, False, -1, 8), (3, 4, False, 0, 2**31 + 1),
     (3, 4, False, 2**63 - 1, 2**63 - 1)],
)  # fmt: skip
def test_invalid_tally_arguments_are_refused(
    order: int, slots: int, totals: bool, first: int, end: int, tmp_path: Path
) -> None:
    count([([1, 2, 3, 4, 5, 6], 0)], tmp_path / "a.run", 2, 3)
    wanted = TallyOutput(str(tmp_path / "o"), order, slots, totals=totals)
    with pytest.raises(InvalidInputError):
        tally_runs([tmp_path / "a.run"], [wanted], first_token=first, end_token=end)
    assert not (tmp_path / "o").exists()


def test_zero_runs_and_zero_parts_are_refused(tmp_path: Path) -> None:
    count([([1, 2], 0)], tmp_path / "a.run", 1, 1)
    with pytest.raises(InvalidInputError, match="runs must not be empty"):
        tally_runs([], [TallyOutput(str(tmp_path / "o"), 1)])
    with pytest.raises(InvalidInputError, match="parts must be at least 1"):
        split_runs([tmp_path / "a.run"], 0)


def test_a_cancelled_merge_leaves_nothing(tmp_path: Path) -> None:
    count([([1, 2, 3], 0)], tmp_path / "a.run", 1, 1)
    job = SegmentJob()
    job.cancel()
    with pytest.raises(SegmentCancelledError):
        tally_runs([tmp_path / "a.run"], [TallyOutput(str(tmp_path / "o"), 1)], job=job)
    with pytest.raises(SegmentCancelledError):
        combine_runs([tmp_path / "a.run"], tmp_path / "b.run", job=job)
    assert [path.name for path in tmp_path.iterdir()] == ["a.run"]


def test_record_starts() -> None:
    words = np.array([7, -1, 1, 5, 9, 8, -1, 2, 5, 1, 6, 1, 3], np.int32)
    assert record_starts(words, 3).tolist() == [0, 5, 12]  # the last is cut off
    for followers in (0, -1, 2, MOST):
        assert record_starts(np.array([7, -1, followers, 5, 9], np.int32), 3).tolist() == [0]
    assert record_starts(np.empty(0, np.int32), 3).tolist() == [0]
