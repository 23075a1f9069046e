"""Drafting from sealed segments: named cases, and the record of recently used texts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest

from suffixsvc.core import Index, Session, new_learner
from suffixsvc.core.segments import Segment, SegmentText, build_segment, merge_segments
from suffixsvc.errors import SuffixError

#: the core's own source numbers
NUMBERS = bytes([0, 1])
WIDTH = 3


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def session_at(index: Index, context: Sequence[int], writer: int) -> Session:
    session = Session(None, [index], new_learner(), writer, 64)
    if context:
        session.append_context(np.array(context, dtype=np.int32))
    return session


def text_of(seed: int, n: int = 60) -> list[int]:
    return Random(seed).sample(range(1000), n)


def sealed(folder: Path, name: str, texts: dict[int, list[int]]) -> Segment:
    build_segment(
        folder / name, [SegmentText(np.array(t, dtype=np.int32), 0, lsn) for lsn, t in texts.items()]
    )
    return Segment(folder / name)


def draft(session: Session, n: int = 4) -> tuple[list[int], list[int]]:
    columns = session.draft(n, np.ones(n + 1), False, NUMBERS)
    return ([], []) if columns is None else (columns[0], columns[3])


def test_drafts_come_from_segments_of_every_namespace_read(folder: Path) -> None:
    own, other = Index(64), Index(64)
    first, second = text_of(1), text_of(2)
    own.set_segments([sealed(folder, "own.seg", {1: first})])
    other.set_segments([sealed(folder, "other.seg", {2: second})])
    session = Session(own, [other], new_learner(), 7, 64)
    for text in (first, second):
        session.append_context(np.array(text[:20], dtype=np.int32))
        assert draft(session) == (text[20:24], [1] * 4)
    alone = session_at(own, second[:20], 8)
    assert draft(alone) == ([], [])


def test_a_session_takes_a_new_list_at_its_next_step(folder: Path) -> None:
    index, text = Index(64), text_of(3)
    session = session_at(index, text[:20], 5)
    assert draft(session) == ([], [])
    segment = sealed(folder, "late.seg", {1: text})
    index.set_segments([segment])
    assert draft(session) == (text[20:24], [1] * 4)
    index.set_segments([])
    assert draft(session) == ([], [])


def test_a_replaced_segment_stays_mapped_as_long_as_a_session_has_it(folder: Path) -> None:
    def mapped() -> bool:
        return str(path) in Path("/proc/self/maps").read_text()

    index, text, path = Index(64), text_of(4), folder / "replaced.seg"
    segment = sealed(folder, "replaced.seg", {1: text})
    index.set_segments([segment])
    session = session_at(index, text[:20], 5)
    path.unlink()
    del segment
    index.set_segments([])
    assert mapped()
    index.release_segments()
    assert mapped()
    session.append_context(np.array([1], dtype=np.int32))
    index.release_segments()  # a step does not unmap files, which takes milliseconds for large ones
    assert not mapped()


def test_what_is_forgotten_is_not_drafted_at_the_next_step(folder: Path) -> None:
    """The result for the end of the text is retained between steps, but not after outputs were forgotten."""
    index, text = Index(64), text_of(5)
    segment = sealed(folder, "forget.seg", {1: text, 2: [*text[10:20], *text_of(6)]})
    index.set_segments([segment])
    session = session_at(index, text[:20], 5)
    assert draft(session, 1)[0] == [text[20]]
    segment.forget([1])
    assert draft(session, 1)[0] == [text_of(6)[0]]
    segment.forget([2])
    assert draft(session, 1)[0] == []


def test_a_corrupt_segment_is_skipped(folder: Path) -> None:
    index, text, path = Index(64), text_of(7), folder / "damaged.seg"
    whole = sealed(folder, "whole.seg", {1: text})
    sealed(folder, "damaged.seg", {2: text[:20] + text_of(8, 900) * 60})
    good = path.read_bytes()
    damaged = 0
    for at in range(512 + 40_000, len(good), 65_536):  # blocks are verified on first access
        path.unlink()
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
        try:
            segment = Segment(path)
        except SuffixError:
            continue
        index.set_segments([segment, whole])
        session = session_at(index, text[:20], 5)
        if segment.corrupt:
            damaged += 1
            assert draft(session) == (text[20:24], [1] * 4)
        else:
            assert draft(session)[0][0] in (text[20], text_of(8, 900)[0])
            if segment.corrupt:
                damaged += 1
                assert draft(session) == (text[20:24], [1] * 4)
    assert damaged > 0


def test_a_sealed_text_is_followed_over_a_token_that_differs(folder: Path) -> None:
    """The recovery model of the index: the template continues with another value filled in."""
    index, text = Index(64), text_of(9)
    index.set_segments([sealed(folder, "template.seg", {1: text})])
    session = session_at(index, text[:20], 5)
    session.append(np.array([text[20], 5000], dtype=np.int32), True)
    _, _, followed = session.inspect(WIDTH)
    assert [token for _, _, token in followed] == [-1, text[22]]
    session.append(np.array([text[22], 5001], dtype=np.int32), True)
    assert session.inspect(WIDTH)[2][1][2] == text[24]


def test_a_recovery_ends_with_its_text_or_when_it_is_forgotten(folder: Path) -> None:
    index, text = Index(64), text_of(10)
    segment = sealed(folder, "ends.seg", {1: text})
    index.set_segments([segment])
    ends, forgets = (session_at(index, text[:n], 5 + n) for n in (58, 20))
    ends.append(np.array([5000], dtype=np.int32), True)
    assert ends.inspect(WIDTH)[2][1][2] == text[59]
    ends.append(np.array([5001], dtype=np.int32), True)
    assert ends.inspect(WIDTH)[2][1][2] == -1
    forgets.append(np.array([5000], dtype=np.int32), True)
    assert forgets.inspect(WIDTH)[2][1][2] == text[21]
    segment.forget([1])
    assert forgets.inspect(WIDTH)[2][1][2] == -1


# ------------------------------------------------------------------------------------------ recently used


def test_take_recently_used_returns_the_texts_that_drafts_came_from(folder: Path) -> None:
    index = Index(64)
    texts = {n: text_of(20 + n) for n in range(6)}
    for writer in (2, 3):
        index.add(np.array(texts[writer], dtype=np.int32), 0, writer)
    segment = sealed(folder, "noted.seg", {104: texts[4], 105: texts[5]})
    index.set_segments([segment])
    for n in (4, 2, 5, 2, 4):
        assert draft(session_at(index, texts[n][:20], 50 + n))[0] == texts[n][20:24]
    draft(session_at(index, texts[0][:20], 60))
    assert (index.take_recently_used(), segment.take_recently_used()) == ([2], [105, 104])
    assert (index.take_recently_used(), segment.take_recently_used()) == ([], [])
    draft(session_at(index, texts[3][:20], 61))
    assert index.take_recently_used() == [3]


def test_of_equal_texts_the_newest_is_recorded(folder: Path) -> None:
    """The index records the last of several writers of a text, or such texts would never count as used."""
    index, text = Index(64), text_of(30)
    for writer in (2, 3, 4):
        index.add(np.array(text, dtype=np.int32), 0, writer)
        draft(session_at(index, text[:30], 50 + writer))
        assert index.take_recently_used() == [writer]
    segment = sealed(folder, "twice.seg", {1: text, 2: text, 9: text})
    sealed_only = Index(64)
    sealed_only.set_segments([segment])
    for forgotten, newest in ((7, [9]), (9, [2]), (2, [1]), (1, [])):
        draft(session_at(sealed_only, text[:30], 60))
        segment.forget([forgotten])
        assert segment.take_recently_used() == newest


def test_after_a_merge_the_newest_remaining_output_of_a_text_is_recorded(folder: Path) -> None:
    """The use of a text whose newest output the merge had left out was recorded for that one, and lost."""
    text = text_of(33)
    source = sealed(folder, "source.seg", {1: text, 2: text, 9: text})
    source.forget([9])
    merge_segments(folder / "merged.seg", [source])
    merged, index = Segment(folder / "merged.seg"), Index(64)
    index.set_segments([merged])
    draft(session_at(index, text[:30], 60))
    assert merged.take_recently_used() == [2]


def test_own_text_and_unused_drafts_are_not_recorded(folder: Path) -> None:
    index, text = Index(64), text_of(31)
    session = Session(index, [], new_learner(), 5, 64)
    session.append(np.array(text + text[:20], dtype=np.int32), True)
    assert draft(session) == (text[20:24], [0] * 4)
    index.add(np.array(text_of(32), dtype=np.int32), 0, 6)
    costly = session_at(index, text_of(32)[:20], 7)
    assert costly.draft(8, np.array([1.0] + [1000.0] * 8), False, NUMBERS) is None
    assert index.take_recently_used() == []


def test_the_recently_used_set_is_bounded() -> None:
    index = Index(64)
    texts = [np.array([n, n + 1, n + 2], dtype=np.int32) for n in range(0, 30_000, 10)]
    for writer, text in enumerate(texts, start=2):
        index.add(text, 0, writer)
    for n, text in enumerate(texts):
        draft(session_at(index, text[:2].tolist(), 5000 + n), 1)
    drafted = index.take_recently_used()
    assert 500 < len(drafted) <= 1024
    assert drafted == sorted(drafted)
    assert drafted[-1] == len(texts) + 1


def test_writer_ids_are_below_the_flag_bit() -> None:
    text = np.array([1, 2], dtype=np.int32)
    with pytest.raises(ValueError, match="2\\*\\*31"):
        Index(64).add(text, 0, 2**31)
    with pytest.raises(ValueError, match="2\\*\\*31"):
        Session(None, [], new_learner(), 2**31, 0)
