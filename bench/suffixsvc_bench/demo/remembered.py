"""Whether the service still drafts an answer that it was given earlier: asked without a model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from suffixsvc.types import BackendNamespace, DraftSource
from suffixsvc_bench.replay import accepted_path

__all__ = ["drafted_again", "drafted_within"]

_DRAFT_TOKENS: Final = 32
#: a client whose service was away asks again after its breaker's pause
_AGAIN_AFTER_SECONDS: Final = 0.1


def drafted_again(namespace: BackendNamespace, prompt: Sequence[int], answer: Sequence[int]) -> int:
    """Tokens of an answer that the service drafts right from other outputs than the one it sees grow. It
    forgets the text again; what it learned meanwhile about how far drafts can be trusted stays."""
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


def drafted_within(
    seconds: float, namespace: BackendNamespace, prompt: Sequence[int], answer: Sequence[int]
) -> int:
    """The same, tried until something is drafted or the time is over."""
    deadline = time.monotonic() + seconds
    while not (right := drafted_again(namespace, prompt, answer)) and time.monotonic() < deadline:
        time.sleep(_AGAIN_AFTER_SECONDS)
    return right
