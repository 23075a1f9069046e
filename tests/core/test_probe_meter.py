"""The probing meter against a brute-force account of everything that was drafted and appended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixsvc import Session, SuffixCache
from suffixsvc.core import ProbeMeter
from suffixsvc.errors import LimitExceededError
from suffixsvc.types import Draft, DraftSource

CREDIT = 2.0
DECAY_SECONDS = 600.0
#: texts that share their beginnings, so that drafts are long, short, wrong and of several branches
TEXTS = [[*range(20), *(100 * k + i for i in range(20))] for k in range(1, 6)]


@dataclass
class Account:
    """What the meter must count, by the definition in docs/security.md."""

    drafts: int = 0
    drafted: int = 0
    expected: float = 0.0
    matched: int = 0
    unanswered: int = 0
    #: without decay
    excess: float = 0.0


@dataclass
class Caller:
    """One session: its draft as the set of paths from its root, and what earlier drafts had."""

    session: Session
    account: Account
    #: path of each token -> (probability, whether it is open)
    paths: dict[tuple[int, ...], tuple[float, bool]] = field(default_factory=dict)
    agreed: tuple[int, ...] = ()
    #: length of the text that the next token of the draft has before it
    at: int = -1
    #: the whole text of each token that stayed unanswered, with all tokens before it
    unanswered: set[tuple[int, ...]] = field(default_factory=set)

    def open(self) -> set[tuple[int, ...]]:
        """Open tokens below what was agreed on: their paths from there."""
        n = len(self.agreed)
        return {
            path[n:]
            for path, (_, is_open) in self.paths.items()
            if is_open and len(path) > n and path[:n] == self.agreed
        }

    def expected_after(self, agreed: tuple[int, ...]) -> float:
        """Expected matches of what follows a path, given the path."""
        total = 0.0
        for path, (_, is_open) in self.paths.items():
            if is_open and len(path) > len(agreed) and path[: len(agreed)] == agreed:
                ahead = range(len(agreed) + 1, len(path) + 1)
                total += float(np.prod([self.paths[path[:n]][0] for n in ahead]))
        return total

    def settle(self, contradicted: bool, repeated: int = 0) -> None:
        agreed = [self.agreed[:n] for n in range(1, len(self.agreed) + 1)]
        matched = sum(self.paths[path][1] for path in agreed)
        expected, lost = self.expected_after(()), 0
        if not contradicted:
            expected -= self.expected_after(self.agreed)
            lost = len(self.open()) - repeated
        self.account.matched += matched
        self.account.expected += expected
        self.account.unanswered += lost
        change = expected + lost - CREDIT * matched
        self.account.excess = max(0.0, self.account.excess + change)
        self.paths, self.agreed = {}, ()

    def append(self, tokens: list[int], at: int) -> None:
        if tokens and at != self.at:
            self.settle(contradicted=False)
        for token in tokens:
            path = (*self.agreed, token)
            if path not in self.paths:
                self.settle(contradicted=True)
                break
            self.agreed = path
            self.at += 1

    def offer(self, draft: Draft, at: int) -> None:
        text = tuple(self.session.token_ids().tolist())
        if at != self.at:
            self.unanswered.clear()
        were_open = {text + path for path in self.open()} if at == self.at else set()
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(draft.token_ids.tolist(), draft.parents.tolist(), strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        of_shared = (draft.sources == DraftSource.NAMESPACE).tolist()
        repeated = were_open & {text + path for path in paths}
        is_open = [
            text + path in repeated or (shared and text + path not in self.unanswered)
            for path, shared in zip(paths, of_shared, strict=True)
        ]
        self.settle(contradicted=False, repeated=len(repeated))
        self.unanswered |= were_open - repeated
        self.account.drafts += any(is_open)
        self.account.drafted += sum(is_open) - len(repeated)
        if any(is_open):
            self.paths = dict(zip(paths, zip(draft.probs.tolist(), is_open, strict=True), strict=True))
        self.agreed, self.at = (), at


@pytest.fixture(scope="module")
def cache() -> Iterator[SuffixCache]:
    with SuffixCache() as cache:
        for text in TEXTS:
            cache.namespace("n").add_output(text)
        yield cache


def write_after(cache: SuffixCache, session: Session, number: int) -> Session:
    """A live session that continues the end of the text of another with one of many texts."""
    own = [*range(100 * number + 2000, 100 * number + 2020)]
    written = cache.namespace("n").open_session(
        [1], output_token_ids=[*session.token_ids().tolist()[-8:], *own]
    )
    # after text was removed, sessions look up again what follows theirs
    cache.namespace("n").open_session([1], output_token_ids=[2]).close(commit=False)
    return written


OPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "step",
                "step",
                "step",
                "append",
                "context",
                "reopen",
                "again",
                "again",
                "write",
                "write",
                "discard",
            ]
        ),
        st.integers(0, 2),  # session
        st.integers(0, 12),  # tokens that follow the text or the draft
        st.booleans(),  # then one that does not
        st.sampled_from([1, 3, 16]),
        st.booleans(),  # tree
    ),
    min_size=10,
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(ops=OPS, limit=st.sampled_from([12.0, 1000.0]))
def test_the_meter_is_the_account(
    cache: SuffixCache, ops: list[tuple[str, int, int, bool, int, bool]], limit: float
) -> None:
    meter = ProbeMeter()
    meter.set_limit(limit)
    account = Account()
    started = time.monotonic()

    def opened(number: int) -> Caller:
        session = cache.namespace("n").open_session(TEXTS[number][: 3 + 4 * number], private=True)
        session._stepper.set_meter(meter)
        return Caller(session, account)

    callers = [opened(number) for number in range(3)]
    written: list[Session] = []
    refused = 0
    for kind, number, right, wrong, most, tree in ops:
        caller = callers[number]
        session = caller.session
        at = session.length
        longest = max(caller.paths, key=len, default=())[len(caller.agreed) :]
        follows = list(longest) or TEXTS[number][at : at + 12]
        tokens = [*follows[:right], *([9999] if wrong else [])]
        if kind == "reopen":
            session.close(commit=False)
            caller.settle(contradicted=False)
            callers[number] = opened(number)
            continue
        if kind == "context":
            if tokens:
                session.append_context(tokens)
            continue
        if kind == "write":  # another continuation of the same text, which the next draft may have
            written.append(write_after(cache, session, right % 2))
            continue
        if kind == "discard":
            for each in written:
                each.close(commit=False)
            written.clear()
            continue
        if kind == "again":
            tokens = []
        least = account.excess - (time.monotonic() - started) * limit / DECAY_SECONDS - 1e-3
        refusal: LimitExceededError | None = None
        try:
            draft = session.step(tokens, 0 if kind == "append" else most, 0.0, tree=tree)
        except LimitExceededError as error:
            refusal = error
        if refusal is not None:
            assert account.excess > limit - 1e-3
            assert f"at most {limit:g} unmatched tokens" in str(refusal.expected)
            assert float(str(refusal.got)) <= account.excess + 0.1
            refused += 1
            continue
        assert kind == "append" or least <= limit
        caller.append(tokens, at)
        if kind != "append":
            caller.offer(draft, session.length)
    found = meter.counts()
    assert found.drafts == account.drafts
    assert found.drafted_tokens == account.drafted
    assert found.matched_tokens == account.matched
    assert found.unanswered_tokens == account.unanswered
    assert found.open_tokens == sum(len(caller.open()) for caller in callers)
    assert found.refused_steps == refused
    assert found.expected_matches == pytest.approx(account.expected, abs=1e-4)
    decayed = (time.monotonic() - started) * limit / DECAY_SECONDS
    assert account.excess - decayed - 1e-3 <= found.excess <= account.excess + 1e-3
    for session in (*written, *(caller.session for caller in callers)):
        session.close(commit=False)
    assert meter.counts().open_tokens == 0


def test_sessions_that_stay_open_are_offered_a_bounded_number_of_tokens(cache: SuffixCache) -> None:
    """A draft that is not answered yet is not charged; so many may be open, in all sessions together."""
    meter = ProbeMeter()
    meter.set_limit(4.0)
    sessions = []
    offered = 0
    for _ in range(40):
        session = cache.namespace("n").open_session(TEXTS[0][:5], private=True)
        session._stepper.set_meter(meter)
        sessions.append(session)
        offered += len(session.step([], 8, 0.0))
    counts = meter.counts()
    assert counts.open_tokens == counts.drafted_tokens == offered
    assert 64 * 4 <= offered < 64 * 4 + 8
    assert counts.excess == 0.0
    assert counts.refused_steps > 0
    # a session that goes on as its model wrote makes room
    assert not len(sessions[-1].step([9998], 8, 0.0))
    for session in sessions[:3]:
        session.step([9997], 0)
    assert len(cache.namespace("n").open_session(TEXTS[0][:5]).step([], 8, 0.0))
    assert np.isfinite(meter.counts().excess)
    for session in sessions:
        session.close(commit=False)
    assert meter.counts().excess > 4.0


def test_drafts_at_one_position_are_charged_by_their_tokens_not_by_their_number() -> None:
    """What is drafted there changes with what others write; a path that was offered there counts once."""
    meter = ProbeMeter()
    meter.set_limit(1e9)
    with SuffixCache() as cache:
        session = cache.namespace("n").open_session(range(7000, 7008))
        session._stepper.set_meter(meter)

        def drafted(number: int, most: int = 16) -> tuple[int, int]:
            """Length of the draft with this continuation of the text, and how many of its tokens counted."""
            before = meter.counts().drafted_tokens
            other = write_after(cache, session, number)
            tokens = session.step([], most, 0.0).token_ids.tolist()
            other.close(commit=False)
            assert tokens == [100 * number + 2000 + i for i in range(len(tokens))]
            return len(tokens), meter.counts().drafted_tokens - before

        whole, counted = drafted(0)
        assert whole == counted > 6
        assert drafted(0, 4) == (4, 0)
        assert meter.counts().unanswered_tokens == whole - 4
        assert drafted(0, 6) == (6, 0)  # two of them are unanswered already
        assert meter.counts().open_tokens == 4
        assert drafted(1) == (whole, whole)
        assert meter.counts().unanswered_tokens == whole
        assert drafted(0) == (whole, 0)
        assert meter.counts().unanswered_tokens == 2 * whole
        # 512 unanswered tokens of a position are remembered
        others = 512 // whole
        assert [drafted(number) for number in range(2, 2 + others)] == [(whole, whole)] * others
        assert drafted(0) == (whole, whole)
        session.close(commit=False)
    counts = meter.counts()
    assert counts.unanswered_tokens == counts.drafted_tokens == (others + 3) * whole


def test_a_token_that_only_a_continued_match_has_counts() -> None:
    """After a token that differs, a long match is continued: no context has its next token, but others wrote
    it."""
    meter = ProbeMeter()
    text = np.random.default_rng(2).permutation(1000)[:60].tolist()
    with SuffixCache() as cache:
        for _ in range(2):
            cache.namespace("n").add_output(text)
        session = cache.namespace("own").open_session(text[:4], reads=["n"])
        session._stepper.set_meter(meter)
        for token in text[4:30]:
            session.step([token], 0)
        draft = session.step([5000], 1, 0.0)
        assert draft.token_ids.tolist() == [text[31]]
        assert draft.sources.tolist() == [DraftSource.NAMESPACE]
        assert meter.counts().open_tokens == 1
        session.close(commit=False)
