"""Recall test of the service: tokens of an earlier answer that it still drafts, without a model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from suffixsvc.types import BackendNamespace, DraftSource
from suffixsvc_bench.replay import accepted_path

__all__ = ["count_recalled_tokens", "wait_for_recall"]

_DRAFT_TOKENS: Final = 32
#: pause between attempts while the client's circuit breaker is open
_AGAIN_AFTER_SECONDS: Final = 0.1


def count_recalled_tokens(namespace: BackendNamespace, prompt: Sequence[int], answer: Sequence[int]) -> int:
    """Count the tokens of an answer that the service drafts correctly from other outputs.

    The session is discarded afterwards; what the service learned about its draft probabilities remains.
    """
    truth = np.asarray(answer, np.int32)
    session = namespace.open_session(prompt)
    at, right, new = 0, 0, truth[:0]
    try:
        while at < len(truth):
            draft = session.step(new, _DRAFT_TOKENS)
            path = accepted_path(draft, truth[at:])
            right += sum(int(draft.sources[i]) == DraftSource.NAMESPACE for i in path)
            new = truth[at : at + len(path) + 1]
            at += len(new)
    finally:
        session.close(commit=False)
    return right


def wait_for_recall(
    seconds: float, namespace: BackendNamespace, prompt: Sequence[int], answer: Sequence[int]
) -> int:
    """Repeat :func:`count_recalled_tokens` until it is not 0 or ``seconds`` have passed."""
    deadline = time.monotonic() + seconds
    while not (right := count_recalled_tokens(namespace, prompt, answer)) and time.monotonic() < deadline:
        time.sleep(_AGAIN_AFTER_SECONDS)
    return right
