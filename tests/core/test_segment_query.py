"""Sealed segments, compared with a brute-force oracle: queries, adversarial inputs, forgetting, merging."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixsvc.core.segments import Segment, SegmentText, build_segment, merge_segments
from suffixsvc.errors import InvalidInputError
from support import adversarial_inputs
from support.long_form import rounds
from support.segment_levels import levels_of
from support.segment_oracle import ORDERS, SegmentOracle
from support.text_strategies import text_of

#: tokens, context, output id
Text = tuple[list[int], int, int]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def as_texts(texts: Sequence[Text]) -> list[SegmentText]:
    return [SegmentText(np.array(t, dtype=np.int32), c, lsn) for t, c, lsn in texts]


#: entries of a level up to which a segment counts exactly before its hubs are corrected
EXACT_ENTRIES = 256


def sealed(folder: Path, texts: Sequence[Text], hub_min: int = 0, name: str = "one.seg") -> Segment:
    build_segment(folder / name, as_texts(texts), hub_min=hub_min)
    return Segment(folder / name)


def require_equal(
    segment: Segment, oracle: SegmentOracle, context: Sequence[int], orders: Sequence[int] = ORDERS
) -> None:
    """Compare all queries for one position; of levels that are sampled, the context and its entries."""
    alphabet = sorted({t for tokens, _ in oracle.texts for t in tokens})[:8]
    queried = [*alphabet, 12345]
    hub_min = segment.stats().hub_min
    levels = levels_of(segment, list(context), orders, width=8, tokens=queried)
    truth = oracle.query(context, orders)
    assert [(r.length, r.entries) for r in levels] == [(r.length, len(r.places)) for r in truth], context
    longer: list[int] = [0] * len(queried)
    for level, true in zip(levels, truth, strict=True):
        if segment.stats().uncorrected and level.entries > EXACT_ENTRIES:
            break  # longer levels come first
        assert level.total == true.votes.total(), context
        if oracle.forgotten and level.entries >= hub_min:
            # The eight strongest before forgetting, with their remaining votes, while any is left.
            assert all(true.votes[t] == v for t, v in level.strongest)
            assert level.strongest
        else:
            assert level.strongest == true.strongest(8)
        listed = dict(level.strongest)
        for token, got, more in zip(queried, level.votes, longer, strict=True):
            if level.entries < hub_min or token in listed or len(true.votes) <= 8:
                assert got == true.votes[token]
            else:
                assert more <= got <= true.votes[token]
        place = max(true.newest_place.values())
        assert level.newest == (oracle.texts[place[0]][0][place[1]], oracle.ages[place[0]])
        longer = level.votes


def contexts_of(texts: Sequence[Text], random: Random, n: int) -> Iterator[list[int]]:
    """Prefixes of texts, modified ones, combinations of two texts, and unrelated contexts."""
    for _ in range(n):
        tokens = list(random.choice(texts)[0])
        context = tokens[: random.randint(0, len(tokens))]
        kind = random.randrange(4)
        if kind == 1 and context:
            context[random.randrange(len(context))] = random.randrange(4)
        elif kind == 2:
            context += random.choice(texts)[0][: random.randint(1, 5)]
        elif kind == 3:
            context = [random.randrange(5) for _ in range(random.randint(1, 4))] + context[-3:]
        yield context


small_text = st.one_of(
    text_of([0, 1], 30),
    text_of([0, 1, 2, 3], 30),
    text_of([0, 7, 2**31 - 1], 20),
    st.builds(lambda p, n: (p * n)[:90], text_of([0, 1, 2], 4), st.integers(2, 40)),
    st.builds(lambda t, n: [t] * n, st.integers(0, 2), st.integers(1, 90)),
)


@st.composite
def some_texts(draw: st.DrawFn) -> list[Text]:
    texts: list[Text] = []
    for tokens, context, lsn in draw(
        st.lists(st.tuples(small_text, st.integers(0, 80), st.integers(1, 9)), min_size=1, max_size=8)
    ):
        texts.append((tokens, min(context, len(tokens) - 1), lsn))
    for pick in draw(st.lists(st.integers(0, 99), max_size=3)):
        tokens, context, _ = texts[pick % len(texts)]  # the same text in another output
        texts.append((tokens, context, 10 + pick % 4))
    return texts


@settings(max_examples=rounds(75, full=250), deadline=None)
@given(
    texts=some_texts(),
    hub_min=st.sampled_from([0, 2, 3, 7]),
    orders=st.sampled_from([ORDERS, (1,), (2, 3), (1, 64), (5,)]),
    forgotten=st.lists(st.integers(0, 14), max_size=6),
    seed=st.integers(0, 2**32),
)
def test_a_segment_answers_as_brute_force_does(
    folder: Path, texts: list[Text], hub_min: int, orders: Sequence[int], forgotten: list[int], seed: int
) -> None:
    segment, oracle = sealed(folder, texts, hub_min), SegmentOracle(texts)
    random = Random(seed)
    segment.check()
    assert segment.outputs() == oracle.outputs()
    for context in contexts_of(texts, random, 6):
        require_equal(segment, oracle, context, orders)
    for lsn in forgotten:
        known = lsn in oracle.outputs()
        oracle.forgotten.add(lsn)
        assert segment.forget([lsn]) == known
        assert segment.outputs() == oracle.outputs()
        for context in contexts_of(texts, random, 2):  # hubs are sampled: exact here, they are small
            require_equal(segment, oracle, context, orders)
        if random.random() < 0.7:
            assert segment.correct_hubs() == 0
            for context in contexts_of(texts, random, 2):
                require_equal(segment, oracle, context, orders)
    segment.check()
    reopened = Segment(segment.path, oracle.forgotten)
    for context in contexts_of(texts, random, 2):
        require_equal(reopened, oracle, context, orders)


@settings(max_examples=rounds(45, full=150), deadline=None)
@given(
    parts=st.lists(some_texts(), min_size=1, max_size=4),
    forgotten=st.sets(st.integers(0, 60), max_size=6),
    hub_min=st.sampled_from([0, 2, 5]),
    seed=st.integers(0, 2**32),
)
def test_merging_gives_what_building_the_union_gives(
    folder: Path, parts: list[list[Text]], forgotten: set[int], hub_min: int, seed: int
) -> None:
    """Byte for byte without tombstones; with them, what a segment of the rest answers."""
    # Every output is sealed once: ids of the parts are disjoint, but not ordered.
    shift = list(range(0, 20 * len(parts), 20))
    Random(seed).shuffle(shift)
    parts = [[(t, c, lsn + by) for t, c, lsn in part] for part, by in zip(parts, shift, strict=True)]
    union = [text for part in parts for text in part]
    sources = [sealed(folder, part, hub_min, f"part{i}.seg") for i, part in enumerate(parts)]
    merge_segments(folder / "merged.seg", sources, hub_min=hub_min)
    build_segment(folder / "built.seg", as_texts(union), hub_min=hub_min)
    assert (folder / "merged.seg").read_bytes() == (folder / "built.seg").read_bytes()
    for source in sources:
        source.forget(forgotten)
    merge_segments(folder / "rest.seg", sources, hub_min=hub_min)
    rest = Segment(folder / "rest.seg")
    rest.check()
    assert rest.outputs() == sorted({lsn for _, _, lsn in union} - forgotten)
    assert rest.stats().forgotten == 0
    kept = [text for text in union if text[2] not in forgotten]
    if kept and all(len({lsn for t, c, lsn in union if (t, c) == (u, d)}) == 1 for u, d, _ in union):
        build_segment(folder / "built.seg", as_texts(kept), hub_min=hub_min)
        assert (folder / "rest.seg").read_bytes() == (folder / "built.seg").read_bytes()
    random = Random(seed)
    oracle = SegmentOracle(union)
    oracle.forgotten = forgotten
    for context in contexts_of(union, random, 4):
        got = levels_of(rest, context, width=8)
        truth = oracle.query(context)
        assert [r.total for r in got[:1]] == [r.votes.total() for r in truth[:1]]
        assert [r.length for r in got[:1]] == [r.length for r in truth[:1]]


@pytest.mark.parametrize("name", sorted(adversarial_inputs.ALL))
def test_adversarial_inputs(folder: Path, name: str) -> None:
    """Segments with real hubs, queried at positions of their own texts, which gives long matches."""
    random = Random(f"segment {name}")
    texts: list[Text] = [
        (adversarial_inputs.ALL[name](n, random), c, i)
        for i, (n, c) in enumerate([(700, 0), (300, 9), (5, 1)])
    ]
    segment, oracle = sealed(folder, texts), SegmentOracle(texts)
    segment.check()
    for context in contexts_of(texts, random, 12):
        require_equal(segment, oracle, context)
    segment.forget([0])
    segment.correct_hubs()
    oracle.forgotten.add(0)
    for context in contexts_of(texts, random, 6):
        require_equal(segment, oracle, context)


@pytest.mark.parametrize("name", sorted(adversarial_inputs.ALL))
def test_large_adversarial_inputs_build_and_check(folder: Path, name: str) -> None:
    random = Random(f"large {name}")
    texts = [(adversarial_inputs.ALL[name](60_000, random), 0, i) for i in range(3)]
    segment = sealed(folder, texts)
    segment.check()
    stats = segment.stats()
    assert stats.tokens == 60_000 * stats.texts
    # Bytes per token, without those per distinct id.
    assert (stats.file_bytes - 8 * stats.alphabet - 8192) / stats.tokens <= 12


@pytest.mark.parametrize("ids", [3, 300, 70_000])
def test_every_width_of_codes(folder: Path, ids: int) -> None:
    """Two bytes up to 65,535 distinct ids, three beyond."""
    random = Random(ids)
    every = random.sample(range(2**31), ids)
    texts: list[Text] = [([random.choice(every) for _ in range(90)], 10, i) for i in range(4)]
    texts.append((every, 0, 9))
    segment = sealed(folder, texts)
    segment.check()
    assert segment.stats().alphabet == ids
    small = SegmentOracle(texts)
    for context in (texts[0][0][:50], texts[2][0][:1], every[:5], [every[0], 5, every[1]], [2**31 - 1], []):
        require_equal(segment, small, context)
    merge_segments(folder / "two.seg", [segment, sealed(folder, texts[:2], name="few.seg")])
    Segment(folder / "two.seg").check()


def test_large_intervals_are_estimated_from_samples_when_hubs_are_stale(folder: Path) -> None:
    """A context seen 20,000 times with three followers in known shares; a tenth of it is forgotten."""
    random = Random(3)
    texts: list[Text] = []
    for lsn in range(10):
        tokens: list[int] = []
        for _ in range(2_000):
            tokens += [1, random.choices([2, 3, 4], [6, 3, 1])[0]]
        texts.append((tokens, 0, lsn))
    segment = sealed(folder, texts)
    exact = levels_of(segment, [1], tokens=[2, 3, 4])[0]
    assert exact.total == 20_000
    segment.forget([9])
    stale = levels_of(segment, [1], tokens=[2, 3, 4])[0]
    assert abs(stale.total - 18_000) < 3_000
    assert stale.strongest[0][0] == 2
    for before, now in zip(exact.votes, stale.votes, strict=True):
        assert abs(now - 0.9 * before) < 5_000
    assert segment.correct_hubs(0) == 1
    assert segment.correct_hubs() == 0
    corrected = levels_of(segment, [1], tokens=[2, 3, 4])[0]
    counted = [sum(t[i + 1] == v for t, _, _ in texts[:9] for i in range(0, 4_000, 2)) for v in (2, 3, 4)]
    assert corrected.votes == counted
    assert corrected.total == 18_000
    assert corrected.newest == (texts[8][0][-1], 8)


def test_an_empty_segment(folder: Path) -> None:
    segment = sealed(folder, [])
    segment.check()
    assert levels_of(segment, [1, 2, 3]) == []
    assert segment.outputs() == []
    source = sealed(folder, [([1, 2, 3], 0, 5)], name="source.seg")
    source.forget([5])
    merge_segments(folder / "none.seg", [source, segment])
    assert (folder / "none.seg").read_bytes() == segment.path.read_bytes()


def test_building_and_merging_refuse_hubs_of_one_entry(tmp_path: Path) -> None:
    """A merge wrote a file that could not be opened."""
    segment = sealed(tmp_path, [([1, 2, 3], 0, 1)])
    for write in (
        lambda path: build_segment(path, as_texts([([1, 2], 0, 1)]), hub_min=1),
        lambda path: merge_segments(path, [segment], hub_min=1),
    ):
        with pytest.raises(InvalidInputError, match="hub_min must be 0 or in 2"):
            write(tmp_path / "two.seg")
    assert [each.name for each in tmp_path.iterdir()] == ["one.seg"]


class Unprintable:
    def __repr__(self) -> str:
        raise ValueError("this value has no representation")


@pytest.mark.parametrize(
    ("wrong", "got"),
    [
        *((wrong, repr(wrong)) for wrong in (5.5, -1, 2**64, "five", None)),
        ("\ud800" * 100, "'" + "\\ud800" * 13 + "\\"),
        (10**5000, "int"),  # Python prints no number of so many digits
        (Unprintable(), "Unprintable"),
    ],
    ids=["float", "negative", "too large", "str", "None", "surrogates", "too many digits", "unprintable"],
)
def test_outputs_to_forget_must_be_unsigned_ints(folder: Path, wrong: object, got: str) -> None:
    segment = sealed(folder, [([1, 2, 3], 0, 5)])
    for outputs in ([wrong], [5, wrong]):
        with pytest.raises(InvalidInputError, match="outputs must be unsigned ints") as caught:
            segment.forget(outputs)  # type: ignore[arg-type]
        assert caught.value.got == got
    with pytest.raises(InvalidInputError, match="outputs must be unsigned ints"):
        Segment(segment.path, forgotten=[wrong])  # type: ignore[list-item]
    assert segment.outputs() == [5]
