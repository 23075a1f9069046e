"""Learning of starting weights: the initial state of a namespace's draft probabilities.

Every log is replayed into its own index, and all of them into one learner, in a random but fixed order, so
that the weights fit many kinds of text.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from suffixsvc.config import PROMPT_TAIL_TOKENS
from suffixsvc.core import Index, Learner, Session, draft_from, pack_weights
from suffixsvc.index.hot_index import MAX_CONTEXT
from suffixsvc.types import TokenArray
from suffixsvc.values import as_cost_curve
from suffixsvc_bench.replay.logs import Call
from suffixsvc_bench.replay.run import PROMPT_TOKENS, accepted_path

_DRAFT_TOKENS: Final = 64
_COST: Final = 0.05


def learn_weights(
    logs: Mapping[str, Sequence[Call]], *, seed: int = 0, progress: Callable[[Call], None] | None = None
) -> bytes:
    """Weights for ``SuffixCache(starting_weights=...)``.

    Args:
        logs: calls by name of the log. Texts of different tokenizers can be mixed.
        seed: of the order of the logs.
        progress: called after each call.
    """
    learner = Learner()
    names = sorted(logs)
    random.Random(seed).shuffle(names)
    for name in names:
        index = Index(MAX_CONTEXT)
        for writer, call in enumerate(logs[name], start=2):
            session = Session(index, [], learner, writer, PROMPT_TAIL_TOKENS)
            session.append_context(call.prompt[-PROMPT_TOKENS:])
            _generate(session, call.response)
            if progress is not None:
                progress(call)
    return pack_weights(learner)


def _generate(session: Session, response: TokenArray) -> None:
    curve = as_cost_curve(_COST, _DRAFT_TOKENS)
    at = 0
    while at < len(response):
        draft = draft_from(session, _DRAFT_TOKENS, curve, tree=True)
        new = np.ascontiguousarray(response[at : at + len(accepted_path(draft, response[at:])) + 1])
        session.record_step(float(curve[len(draft)]), len(new))
        session.append(new, True)
        at += len(new)
