"""What the service drafts of an answer it was given."""

from __future__ import annotations

import numpy as np

from suffixsvc import SuffixCache
from suffixsvc_bench.demo.fixture import count_recalled_tokens

PROMPT = list(range(500, 540))
ANSWER = np.random.default_rng(7).integers(0, 400, 60).tolist()


def test_a_stored_answer_is_drafted_and_nothing_is_added() -> None:
    with SuffixCache() as cache:
        namespace = cache.namespace("a")
        with namespace.open_session(PROMPT) as session:
            session.step(ANSWER, max_draft_tokens=0)
        right = count_recalled_tokens(namespace, PROMPT, ANSWER)
        assert 40 < right < 60
        assert namespace.stats().outputs == 1
        assert count_recalled_tokens(namespace, PROMPT, ANSWER) >= 40


def test_unknown_text_is_not_drafted() -> None:
    """Not even where the answer repeats itself: its own text is no memory."""
    with SuffixCache() as cache:
        namespace = cache.namespace("a")
        namespace.add_output([1, 2, 3])
        assert count_recalled_tokens(namespace, PROMPT, ANSWER * 2) == 0
