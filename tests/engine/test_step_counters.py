"""Counters of steps against what the drafts and the texts say, and the reasons of empty drafts."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffixsvc import SuffixCache, core
from suffixsvc.engine import Session
from suffixsvc.index.namespace_stats import StepCounts
from suffixsvc.types import Draft, DraftSource

TEXT = list(range(100, 160))
#: cost of a drafted token, in plain steps
COST = 0.05


def counts_of(cache: SuffixCache, path: str = "ns") -> StepCounts:
    return StepCounts.of(cache.namespace(path).stats())


def test_reasons_of_empty_drafts() -> None:
    with SuffixCache() as cache:
        namespace = cache.namespace("ns")
        session = namespace.open_session([1, 2, 3])
        assert not len(session.step([4]))
        assert counts_of(cache) == StepCounts(num_steps=1, num_no_context=1)

        namespace.add_output(TEXT)
        reader = namespace.open_session(TEXT[:8])
        assert not len(reader.step(TEXT[8:9], verify_cost=50.0))
        now = counts_of(cache)
        assert (now.num_steps, now.num_no_context, now.num_not_worth_cost) == (2, 1, 1)

        assert not len(reader.draft_after(TEXT[1:9], bounds=core.DraftBounds(0.0, 0.0, 0.0, 0)))
        assert counts_of(cache)._replace(num_steps=0) == now._replace(num_steps=0, num_over_limit=1)

        drafted = reader.step(TEXT[9:10])
        assert len(drafted)
        reader.step([*drafted.token_ids.tolist(), 7], max_draft_tokens=0)
        last = counts_of(cache)
        assert last.num_steps == 4, "a step that requests no draft is none of them"
        assert last.num_drafts == last.num_namespace_drafts == 1
        assert last.num_accepted_tokens == last.num_namespace_accepted_tokens == len(drafted)
        assert last.verify_steps == pytest.approx(0.02 * len(drafted), abs=1e-5)


class Oracle:
    """The counters as they follow from the drafts of one session, all chains."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.floats: Counter[str] = Counter()
        self.last = Draft.empty()

    def wrote(self, tokens: list[int]) -> None:
        if not tokens:
            return
        agreed = 0
        for drafted, written in zip(self.last.token_ids.tolist(), tokens, strict=False):
            if drafted != written:
                break
            agreed += 1
        self.counts["num_accepted_tokens"] += agreed
        for source in self.last.sources[:agreed].tolist():
            self.counts[f"num_{DraftSource(source).name.lower()}_accepted_tokens"] += 1
        self.floats["verify_steps"] += COST * len(self.last)
        # what agrees as a whole is continued by the next tokens
        self.last = Draft.empty()

    def drafted(self, draft: Draft) -> None:
        self.last = draft
        self.counts["num_steps"] += 1
        self.counts["num_drafts"] += bool(len(draft))
        self.counts["num_draft_tokens"] += len(draft)
        for source, tokens in Counter(draft.sources.tolist()).items():
            name = DraftSource(source).name.lower()
            self.counts[f"num_{name}_drafts"] += 1
            self.counts[f"num_{name}_draft_tokens"] += tokens
        self.floats["expected_tokens"] += float(np.cumprod(draft.probs.astype(float)).sum())


words = st.lists(st.integers(1, 3), min_size=4, max_size=12)


@given(stored=st.lists(words, max_size=3), prompt=words, outputs=st.lists(words, min_size=1, max_size=6))
def test_counters_follow_from_the_drafts(
    stored: list[list[int]], prompt: list[int], outputs: list[list[int]]
) -> None:
    with SuffixCache() as cache:
        namespace = cache.namespace("ns")
        for tokens in stored:
            namespace.add_output(tokens * 3)
        session: Session = namespace.open_session(prompt * 2)
        oracle = Oracle()
        for tokens in outputs:
            # the bonus token is never a drafted one, so that every step ends the draft before it
            written = [*tokens, 9]
            oracle.wrote(written)
            oracle.drafted(session.step(written, verify_cost=COST))
        counts = counts_of(cache)
    for name, value in counts._asdict().items():
        if name in ("expected_tokens", "verify_steps"):
            assert value == pytest.approx(oracle.floats[name], abs=1e-4), name
        elif name not in ("avoided_seconds", "verify_seconds", *MISSES):
            assert value == oracle.counts[name], name
    assert counts.num_steps == counts.num_drafts + sum(getattr(counts, name) for name in MISSES)


MISSES = ("num_no_context", "num_not_worth_cost", "num_over_limit")


def test_the_feedback_of_a_caller_that_sent_another_draft() -> None:
    """``verified``: accepted tokens count; those of this session's draft count by their source."""
    with SuffixCache() as cache:
        namespace = cache.namespace("ns")
        namespace.add_output(TEXT)
        session = namespace.open_session(TEXT[:8])
        draft = session.step(TEXT[8:9], max_draft_tokens=4)
        assert len(draft) == 4
        session.step([*draft.token_ids.tolist()[:2], 7, 7], verified=(5, 3, 0))
        counts = counts_of(cache)
        assert counts.num_accepted_tokens == 3
        assert counts.num_namespace_accepted_tokens == 2


def test_time_that_drafts_save() -> None:
    pause = 0.02
    with SuffixCache() as cache:
        namespace = cache.namespace("ns")
        namespace.add_output(TEXT)
        session = namespace.open_session(TEXT[:8])
        written = 8
        for _ in range(4):
            draft = session.step(TEXT[written : written + 1], max_draft_tokens=3, verify_cost=COST)
            time.sleep(pause)
            written += 1 + len(draft)
            session.step(draft.token_ids, max_draft_tokens=0)
        counts = counts_of(cache)
    assert counts.num_accepted_tokens == 12
    # the median of a plain step, which moves by a tenth at each observation, is at least this
    least = pause / (1 + 3 * COST) / 1.1
    assert counts.avoided_seconds >= 12 * least
    assert counts.verify_seconds >= counts.verify_steps * least * 0.999


def test_pauses_are_not_priced() -> None:
    """Context between a draft and the next tokens: the caller did something else meanwhile."""
    with SuffixCache() as cache:
        namespace = cache.namespace("ns")
        namespace.add_output(TEXT)
        session = namespace.open_session(TEXT[:8])
        draft = session.step(TEXT[8:9])
        session.append_context([5])
        session.step(draft.token_ids)
        counts = counts_of(cache)
        assert (counts.avoided_seconds, counts.verify_seconds, counts.num_accepted_tokens) == (0, 0, 0)
