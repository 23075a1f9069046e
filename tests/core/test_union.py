"""Drafting from sealed segments and the hot index as from one index: against brute force.

What may differ from an index that holds everything, and why:

- Which of several followers with equal votes is considered when there are more than the width, and the one
  called newest in a hot context: an index remembers that as far as growing touched it (csrc/nodes.h), and
  of context, too.
- Which follower in a segment is called newest, where one text has outputs before and after another's.
- Where contexts are told apart: a segment does not know where its texts end, nor what was only context in
  them, and still knows places of forgotten texts until it is merged. So an order may have no slot of its own
  (the next larger one has the same votes), or one more.
- Which followers are considered where a context has more than five different ones in a segment (WIDTH and
  two more are asked for), their votes in a hub (csrc/segment.h), and counts that the index has not carried
  up yet: the texts here have five tokens, and counts are settled.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.segment_oracle import SegmentOracle
from support.union_oracle import UnionOracle

from suffixsvc.core import Index, Session, new_learner
from suffixsvc.core.segments import Segment, SegmentText, build_segment, merge_segments
from suffixsvc.errors import SuffixError

WIDTH = 3
#: contexts.h: how many contexts of a source are considered, and how many of them propose their followers
#: until they have votes enough; of the others what all texts hold of them is their total, text ends included
CONSIDERED, PROPOSING, ENOUGH = 4, 3, 16
SECONDARY = 2  #: followers of a context, but the deepest, that are proposed
MIN_MATCH = 5


#: the core's own source numbers
NUMBERS = bytes([0, 1])


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@dataclass(frozen=True)
class Output:
    tokens: tuple[int, ...]
    context: int
    lsn: int
    writer: int

    @property
    def array(self) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return np.array(self.tokens, dtype=np.int32)


@dataclass
class Sealed:
    segment: Segment
    outputs: list[Output]
    forgotten: set[int] = field(default_factory=set)

    @property
    def oracle(self) -> SegmentOracle:
        return SegmentOracle([(o.tokens, o.context, o.lsn) for o in self.outputs], set(self.forgotten))


def session_at(index: Index, context: Sequence[int], writer: int) -> Session:
    session = Session(None, [index], new_learner(), writer, 64)
    if context:
        session.append_context(np.array(context, dtype=np.int32))
    return session


class World:
    """One namespace, kept three times: hot and sealed, all of it hot, and as lists for the oracle."""

    def __init__(self, folder: Path, random: Random, hub_min: int) -> None:
        self.folder, self.random, self.hub_min = folder, random, hub_min
        self.index, self.whole = Index(64), Index(64)
        self.hot: list[Output] = []
        self.sealed: list[Sealed] = []
        self.writers, self.lsns, self.files = itertools.count(2), itertools.count(1), itertools.count()
        self.reader = session_at(self.index, [], next(self.writers))
        self.read: list[int] = []

    # ---- what happens to a namespace
    def text(self) -> list[int]:
        kind, n = self.random.randrange(5), self.random.randint(1, 30)
        if kind == 0 and self.everything():
            old = self.random.choice(self.everything()).tokens
            return [t if self.random.random() < 0.9 else self.random.randrange(4) for t in old]
        if kind == 1:
            period = [self.random.randrange(3) for _ in range(self.random.randint(1, 4))]
            return (period * n)[:n]
        return [self.random.randrange(5 if kind == 2 else 2) for _ in range(n)]

    def everything(self) -> list[Output]:
        return self.hot + [o for s in self.sealed for o in s.outputs if o.lsn not in s.forgotten]

    def add(self) -> None:
        tokens = self.text()
        if self.random.random() < 0.2 and self.everything():  # the same again
            tokens = list(self.random.choice(self.everything()).tokens)
        context = self.random.choice([0, 0, self.random.randrange(len(tokens))])
        output = Output(tuple(tokens), context, next(self.lsns), next(self.writers))
        self.index.add(output.array, context, output.writer)
        self.whole.add(output.array, context, output.writer)
        self.hot.append(output)

    def write(self) -> None:
        """A session writes token by token, and commits or not."""
        output = Output(tuple(self.text()), 0, next(self.lsns), next(self.writers))
        session = Session(self.index, [], new_learner(), output.writer, 64)
        for token in output.array:
            session.append(np.array([token], dtype=np.int32), True)
            if self.random.random() < 0.2:
                session.draft(4, np.array([1.0, 1.01, 1.02, 1.03, 1.04]), False, NUMBERS)
        if self.random.random() < 0.3:
            session.retract()
        else:
            self.whole.add(output.array, 0, output.writer)
            self.hot.append(output)

    def forget(self) -> None:
        if not self.everything():
            return
        output = self.random.choice(self.everything())
        assert self.whole.remove(output.array, output.context)
        if output in self.hot:
            assert self.index.remove(output.array, output.context)
            self.hot.remove(output)
            return
        part = next(s for s in self.sealed if output in s.outputs)
        assert part.segment.forget([output.lsn]) == 1
        part.forgotten.add(output.lsn)
        part.segment.settle()

    def seal(self) -> None:
        n = self.random.randint(1, 4)
        outputs, self.hot = self.hot[:n], self.hot[n:]
        if not outputs:
            return
        path = self.folder / f"{next(self.files)}.seg"
        texts = [SegmentText(o.array, o.context, o.lsn) for o in outputs]
        build_segment(path, [t for t in texts if len(t.token_ids) > t.context], hub_min=self.hub_min)
        self.sealed.append(Sealed(Segment(path), outputs))
        self.list_segments()
        for output in outputs:
            assert self.index.remove(output.array, output.context)

    def merge(self) -> None:
        if len(self.sealed) < 2:
            return
        at = self.random.randrange(len(self.sealed) - 1)
        pair = self.sealed[at : at + 2]
        path = self.folder / f"{next(self.files)}.seg"
        merge_segments(path, [s.segment for s in pair], hub_min=self.hub_min)
        left = [o for s in pair for o in s.outputs if o.lsn not in s.forgotten]
        self.sealed[at : at + 2] = [Sealed(Segment(path), left)]
        self.list_segments()
        for part in pair:
            part.segment.path.unlink()

    def list_segments(self) -> None:
        natives = [s.segment.native for s in self.sealed]
        self.random.shuffle(natives)
        self.index.set_segments(natives)

    # ---- what must hold
    def context(self) -> list[int]:
        everything = self.everything()
        if not everything or self.random.random() < 0.2:
            return [self.random.randrange(3) for _ in range(self.random.randrange(8))]
        tokens = list(self.random.choice(everything).tokens)
        context = tokens[: self.random.randint(0, len(tokens))]
        if self.random.random() < 0.3:
            context = [self.random.randrange(4) for _ in range(3)] + context[-self.random.randint(1, 9) :]
        return context

    def require_all(self) -> None:
        self.index.settle()
        self.whole.settle()
        for _ in range(3):
            self.require(self.context())
        # A session that was there all along finds what a new one finds. (A removal makes it look again in the
        # index: it does not notice by itself that another's new text shares more of its context.)
        nothing = np.array([9], dtype=np.int32)
        self.index.add(nothing, 0, next(self.writers))
        assert self.index.remove(nothing, 0)
        step = [self.random.randrange(3)] if self.random.random() < 0.5 else self.context()[:5]
        if step:
            self.reader.append_context(np.array(step, dtype=np.int32))
            self.read += step
        fresh = session_at(self.index, self.read, next(self.writers))
        assert self.reader.look(WIDTH)[:2] == fresh.look(WIDTH)[:2]

    def require(self, context: list[int]) -> None:
        hot = [(o.tokens, o.context) for o in self.hot]
        oracle = UnionOracle(hot, [s.oracle for s in self.sealed], context)
        places = oracle.slots()
        truth = {order: slot for order, slot in places.items() if slot.votes}
        candidates, contexts, followed = session_at(self.index, context, next(self.writers)).look(WIDTH)
        assert len(set(candidates)) == len(candidates)
        got = {order: rest for source, order, *rest in contexts if source == 1}
        considered = sorted(places, reverse=True)[:CONSIDERED]
        assert set(truth) & set(considered) <= set(got) <= set(considered)
        scanned: list[int] = []
        for order in considered:
            if len(scanned) < PROPOSING and sum(truth[o].votes.total() for o in scanned) < ENOUGH:
                scanned += [order] if order in truth else []
        explained = {
            t
            for source, *_, votes in contexts
            if source == 0
            for t, v in zip(candidates, votes, strict=True)
            if v
        }
        for order, (match_len, total, newest, votes) in got.items():
            if order not in truth:  # texts end there, and nothing followed
                assert scanned
                assert order < scanned[-1]
                assert not any(votes)
                continue
            slot = truth[order]
            assert match_len == slot.match_len, order
            assert dict(zip(candidates, votes, strict=True)) == {t: slot.votes[t] for t in candidates}
            if newest != slot.sealed_newest:
                assert newest in oracle.followers(order, context_too=True) | set(slot.votes)
            if order not in scanned:
                assert total in range(sum(votes), slot.votes.total() + len(hot) + 1)
                continue
            assert total == slot.votes.total(), order
            width = WIDTH if order == scanned[0] else SECONDARY
            least = sorted(slot.votes.values(), reverse=True)[:width][-1]
            assert {t for t, v in slot.votes.items() if v > least} <= set(candidates)
            explained |= {t for t, v in slot.votes.items() if v >= least}
        assert set(candidates) <= explained | {token for token, _, _ in followed}
        self.require_match(oracle, followed[1][:2])
        self.require_as_whole(context, candidates, got, followed[1][:2])

    def require_match(self, oracle: UnionOracle, got: tuple[int, int]) -> None:
        token, length = oracle.sealed_match()
        if oracle.hot_match() >= max(length, MIN_MATCH):
            assert got[1] == oracle.hot_match()
            assert got[0] in oracle.followers(got[1])
        elif length >= MIN_MATCH:
            assert got == (token, length)
        else:
            assert got == (-1, 0)

    def require_as_whole(
        self,
        context: list[int],
        candidates: list[int],
        got: dict[int, list[object]],
        followed: tuple[int, int],
    ) -> None:
        others, contexts, theirs = session_at(self.whole, context, next(self.writers)).look(WIDTH)
        whole = {order: rest for source, order, *rest in contexts if source == 1}
        assert followed[1] == theirs[1][1]
        if not any(s.forgotten for s in self.sealed):
            texts = [(o.tokens, o.context) for o in self.everything()]
            considered = sorted(UnionOracle(texts, [], context).slots(), reverse=True)[:CONSIDERED]
            assert set(got) & set(considered) <= set(whole)
        both = [t for t in candidates if t in others]
        for order in set(got) & set(whole):
            (_, _, _, votes), (_, _, _, their_votes) = got[order], whole[order]
            assert [votes[candidates.index(t)] for t in both] == [their_votes[others.index(t)] for t in both]


@settings(max_examples=60, deadline=None)
@example(seed=3052, hub_min=0)
@given(seed=st.integers(0, 2**32), hub_min=st.sampled_from([0, 2, 4]))
def test_sealed_and_hot_answer_as_one(folder: Path, seed: int, hub_min: int) -> None:
    random = Random(seed)
    world = World(folder, random, hub_min)
    acts = [world.add, world.add, world.add, world.write, world.forget, world.seal, world.merge]
    for _ in range(25):
        random.choice(acts)()
        world.require_all()
    assert world.index.check() == ""
    for part in world.sealed:
        part.segment.check()
        part.segment.path.unlink()


def text_of(seed: int, n: int = 60) -> list[int]:
    return Random(seed).sample(range(1000), n)


def sealed(folder: Path, name: str, texts: dict[int, list[int]]) -> Segment:
    build_segment(
        folder / name, [SegmentText(np.array(t, dtype=np.int32), 0, lsn) for lsn, t in texts.items()]
    )
    return Segment(folder / name)


def draft(session: Session, n: int = 4) -> tuple[list[int], list[int]]:
    columns = session.draft(n, np.ones(n + 1), False, NUMBERS)
    return ([], []) if columns is None else (columns[0].tolist(), columns[3].tolist())


def test_drafts_come_from_segments_of_every_namespace_read(folder: Path) -> None:
    own, other = Index(64), Index(64)
    first, second = text_of(1), text_of(2)
    own.set_segments([sealed(folder, "own.seg", {1: first}).native])
    other.set_segments([sealed(folder, "other.seg", {2: second}).native])
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
    index.set_segments([segment.native])
    assert draft(session) == (text[20:24], [1] * 4)
    index.set_segments([])
    assert draft(session) == ([], [])


def test_a_replaced_segment_stays_mapped_as_long_as_a_session_has_it(folder: Path) -> None:
    def mapped() -> bool:
        return str(path) in Path("/proc/self/maps").read_text()

    index, text, path = Index(64), text_of(4), folder / "replaced.seg"
    segment = sealed(folder, "replaced.seg", {1: text})
    index.set_segments([segment.native])
    session = session_at(index, text[:20], 5)
    path.unlink()
    del segment
    index.set_segments([])
    assert mapped()
    index.release_segments()
    assert mapped()
    session.append_context(np.array([1], dtype=np.int32))
    index.release_segments()  # no step unmaps a file: that takes milliseconds where it is large
    assert not mapped()


def test_what_is_forgotten_is_not_drafted_at_the_next_step(folder: Path) -> None:
    """The answer for the end of the text is kept between steps: forgetting in between must not use it."""
    index, text = Index(64), text_of(5)
    segment = sealed(folder, "forget.seg", {1: text, 2: [*text[10:20], *text_of(6)]})
    index.set_segments([segment.native])
    session = session_at(index, text[:20], 5)
    assert draft(session, 1)[0] == [text[20]]
    segment.forget([1])
    assert draft(session, 1)[0] == [text_of(6)[0]]
    segment.forget([2])
    assert draft(session, 1)[0] == []


def test_a_corrupt_segment_is_passed_over(folder: Path) -> None:
    index, text, path = Index(64), text_of(7), folder / "damaged.seg"
    whole = sealed(folder, "whole.seg", {1: text})
    sealed(folder, "damaged.seg", {2: text[:20] + text_of(8, 900) * 60})
    good = path.read_bytes()
    damaged = 0
    for at in range(512 + 40_000, len(good), 65_536):  # blocks are looked at when they are needed
        path.unlink()
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
        try:
            segment = Segment(path)
        except SuffixError:
            continue
        index.set_segments([segment.native, whole.native])
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
    """What the recovery model does in the index: the template goes on with another value filled in."""
    index, text = Index(64), text_of(9)
    index.set_segments([sealed(folder, "template.seg", {1: text}).native])
    session = session_at(index, text[:20], 5)
    session.append(np.array([text[20], 5000], dtype=np.int32), True)
    _, _, followed = session.look(WIDTH)
    assert [token for _, _, token in followed] == [-1, text[22]]
    session.append(np.array([text[22], 5001], dtype=np.int32), True)
    assert session.look(WIDTH)[2][1][2] == text[24]


def test_a_followed_text_that_is_forgotten_or_at_its_end_is_followed_no_more(folder: Path) -> None:
    index, text = Index(64), text_of(10)
    segment = sealed(folder, "ends.seg", {1: text})
    index.set_segments([segment.native])
    ends, forgets = (session_at(index, text[:n], 5 + n) for n in (58, 20))
    ends.append(np.array([5000], dtype=np.int32), True)
    assert ends.look(WIDTH)[2][1][2] == text[59]
    ends.append(np.array([5001], dtype=np.int32), True)
    assert ends.look(WIDTH)[2][1][2] == -1
    forgets.append(np.array([5000], dtype=np.int32), True)
    assert forgets.look(WIDTH)[2][1][2] == text[21]
    segment.forget([1])
    assert forgets.look(WIDTH)[2][1][2] == -1


# ------------------------------------------------------------------------------- whom drafts were taken from


def test_take_drafted_names_the_texts_that_drafts_came_from(folder: Path) -> None:
    index = Index(64)
    texts = {n: text_of(20 + n) for n in range(6)}
    for writer in (2, 3):
        index.add(np.array(texts[writer], dtype=np.int32), 0, writer)
    segment = sealed(folder, "noted.seg", {104: texts[4], 105: texts[5]})
    index.set_segments([segment.native])
    for n in (4, 2, 5, 2, 4):
        assert draft(session_at(index, texts[n][:20], 50 + n))[0] == texts[n][20:24]
    draft(session_at(index, texts[0][:20], 60))
    assert (index.take_drafted(), segment.native.take_drafted()) == ([2], [105, 104])
    assert (index.take_drafted(), segment.native.take_drafted()) == ([], [])
    draft(session_at(index, texts[3][:20], 61))
    assert index.take_drafted() == [3]


def test_of_equal_texts_the_newest_is_noted(folder: Path) -> None:
    """The index must not forget who wrote last what several wrote: such texts would never look used."""
    index, text = Index(64), text_of(30)
    for writer in (2, 3, 4):
        index.add(np.array(text, dtype=np.int32), 0, writer)
        draft(session_at(index, text[:30], 50 + writer))
        assert index.take_drafted() == [writer]
    segment = sealed(folder, "twice.seg", {1: text, 2: text, 9: text})
    sealed_only = Index(64)
    sealed_only.set_segments([segment.native])
    for forgotten, newest in ((7, [9]), (9, [2]), (2, [1]), (1, [])):
        draft(session_at(sealed_only, text[:30], 60))
        segment.forget([forgotten])
        assert segment.native.take_drafted() == newest


def test_own_text_and_unused_drafts_note_nobody(folder: Path) -> None:
    index, text = Index(64), text_of(31)
    session = Session(index, [], new_learner(), 5, 64)
    session.append(np.array(text + text[:20], dtype=np.int32), True)
    assert draft(session) == (text[20:24], [0] * 4)
    index.add(np.array(text_of(32), dtype=np.int32), 0, 6)
    costly = session_at(index, text_of(32)[:20], 7)
    assert costly.draft(8, np.array([1.0] + [1000.0] * 8), False, NUMBERS) is None
    assert index.take_drafted() == []


def test_what_was_drafted_from_is_bounded() -> None:
    index = Index(64)
    texts = [np.array([n, n + 1, n + 2], dtype=np.int32) for n in range(0, 30_000, 10)]
    for writer, text in enumerate(texts, start=2):
        index.add(text, 0, writer)
    for n, text in enumerate(texts):
        draft(session_at(index, text[:2].tolist(), 5000 + n), 1)
    drafted = index.take_drafted()
    assert 500 < len(drafted) <= 1024
    assert drafted == sorted(drafted)
    assert drafted[-1] == len(texts) + 1


def test_writers_have_room_for_a_flag() -> None:
    text = np.array([1, 2], dtype=np.int32)
    with pytest.raises(ValueError, match="2\\*\\*31"):
        Index(64).add(text, 0, 2**31)
    with pytest.raises(ValueError, match="2\\*\\*31"):
        Session(None, [], new_learner(), 2**31, 0)
