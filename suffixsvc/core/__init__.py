"""The native core as Python sees it. Nothing outside this folder imports ``_ext``."""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

from suffixsvc.errors import MissingExtraError
from suffixsvc.types import Draft, DraftSource, TokenIds, VerifyCost
from suffixsvc.values import CostMemo, as_token_array

try:
    from suffixsvc.core._ext import (
        Curve,
        Desk,
        DeskStream,
        DraftBounds,
        Index,
        IndexStats,
        Learner,
        Refusal,
        Seat,
        Session,
        StepCounters,
        Stepper,
        longest_holds,
        reset_holds,
        step_batch,
    )
except ImportError as error:  # pragma: no cover - only in a broken installation
    raise MissingExtraError("server", "suffixsvc.core._ext") from error

from suffixsvc.core.start import new_learner, pack_weights

__all__ = [
    "UNBOUNDED",
    "WIRE_SOURCES",
    "Curve",
    "Desk",
    "DeskStream",
    "DraftBounds",
    "Index",
    "IndexStats",
    "Learner",
    "PromptLookup",
    "Refusal",
    "Seat",
    "Session",
    "StepCounters",
    "StepStatus",
    "Stepper",
    "draft_from",
    "longest_holds",
    "new_learner",
    "pack_weights",
    "reset_holds",
    "step_batch",
]

#: native source numbers -> DraftSource
WIRE_SOURCES = bytes([DraftSource.SESSION, DraftSource.NAMESPACE])
#: drafts that only their cost and their length bound
UNBOUNDED = DraftBounds()
_LOOKUP = bytes([DraftSource.PROMPT_LOOKUP, DraftSource.NAMESPACE])


class StepStatus(enum.IntEnum):
    """Why a native step was not taken; numbers as in stepper.h."""

    GAP = 1
    CONFLICT = 2
    FULL = 3
    CLOSED = 4
    FAILED = 5
    NOT_TOKENS = 6
    ELSEWHERE = 7


def draft_from(
    session: Session,
    max_tokens: int,
    curve: npt.NDArray[np.float64],
    *,
    tree: bool = False,
    bounds: DraftBounds = UNBOUNDED,
    names: bytes = WIRE_SOURCES,
) -> Draft:
    """What a native session drafts; ``names`` maps its source numbers to DraftSource."""
    columns = session.draft(max_tokens, curve, tree, names, bounds)
    return Draft.empty() if columns is None else Draft(*columns)


class PromptLookup:
    """Drafts from one generation's own prompt and output, in the caller's process, incrementally.

    What prompt lookup decoding (Saxena 2023) does by searching the prompt again at every step, with
    calibrated probabilities instead of a fixed length. Appending and drafting touch O(1) nodes a token.

    Args:
        prompt_token_ids: int32[n] or a sequence of ints.
    """

    def __init__(self, prompt_token_ids: TokenIds) -> None:
        self._session = Session(None, [], new_learner(), 1, 0)
        self._session.append_context(as_token_array(prompt_token_ids, "prompt_token_ids"))
        self._costs = CostMemo()

    def append(self, token_ids: TokenIds, step_cost: float = 1.0, written: int | None = None) -> None:
        """Append what the model wrote, and learn from it.

        Args:
            token_ids: accepted tokens and the bonus token, of one step or of several.
            step_cost: what the last step cost the target, in plain decode steps.
            written: how many tokens that step wrote at most; None = all of them.
        """
        tokens = as_token_array(token_ids)
        self._session.account(step_cost, len(tokens) if written is None else min(written, len(tokens)))
        self._session.append(tokens, True)

    def append_context(self, token_ids: TokenIds) -> None:
        """Append text the model did not write."""
        self._session.append_context(as_token_array(token_ids))

    def draft(self, max_draft_tokens: int, verify_cost: VerifyCost = 0.0) -> Draft:
        """A chain of at most ``max_draft_tokens``, cut where ``verify_cost`` no longer pays.

        With the default of 0 it is not cut: callers that weigh several layers cut for themselves.
        """
        curve = self._costs.curve(verify_cost, max(0, max_draft_tokens))
        return draft_from(self._session, max_draft_tokens, curve, names=_LOOKUP)

    def __len__(self) -> int:
        return len(self._session)
