"""Python interface of the native core, ``_ext``: sessions, steps, drafts and prompt lookup.

``segments`` and ``ngram_count`` have the rest; statistics of locks and the word memo are used from ``_ext``.
"""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

from suffixsvc.errors import MissingExtraError
from suffixsvc.types import Draft, DraftSource, ListedDraft, TokenIds, VerifyCost
from suffixsvc.values import as_cost_curve, as_token_array

try:
    from suffixsvc.core._ext import (
        AcceptanceTable,
        Curve,
        DraftBounds,
        Index,
        KalmanFilter,
        Learner,
        ProbeMeter,
        Refusal,
        Session,
        SessionSlot,
        SessionStepper,
        StepCosts,
        StepCounters,
        StepDispatcher,
    )
except ImportError as error:  # pragma: no cover - only in a broken installation
    raise MissingExtraError("server", "suffixsvc.core._ext") from error

from suffixsvc.core.start import new_learner, pack_weights
from suffixsvc.core.write_signal import WriteSignal

__all__ = [
    "WIRE_SOURCES",
    "AcceptanceTable",
    "Curve",
    "DraftBounds",
    "Index",
    "KalmanFilter",
    "Learner",
    "ProbeMeter",
    "PromptLookup",
    "Refusal",
    "Session",
    "SessionSlot",
    "SessionStepper",
    "StepCosts",
    "StepCounters",
    "StepDispatcher",
    "StepStatus",
    "WriteSignal",
    "draft_from",
    "new_learner",
    "pack_weights",
]

#: native source numbers -> DraftSource
WIRE_SOURCES = bytes([DraftSource.SESSION, DraftSource.NAMESPACE])
_LOOKUP = bytes([DraftSource.PROMPT_LOOKUP, DraftSource.NAMESPACE])


class StepStatus(enum.IntEnum):
    """Why a native step was refused; the numbers of StepStatus in csrc/draft/session/session_stepper.h."""

    GAP = 1
    CONFLICT = 2
    FULL = 3
    CLOSED = 4
    FAILED = 5
    INVALID_TOKENS = 6
    CONTEXT_MISMATCH = 7
    UNKNOWN_SESSION = 8
    DUPLICATE_SESSION = 9
    STALE_SEQUENCE = 10
    PROBING = 11
    NOT_ADMITTED = 12


def draft_from(
    session: Session,
    max_tokens: int,
    curve: npt.NDArray[np.float64],
    *,
    tree: bool = False,
    bounds: DraftBounds | None = None,
    names: bytes = WIRE_SOURCES,
) -> Draft:
    """Draft from a native session; ``names`` maps its source numbers to DraftSource."""
    columns = session.draft(max_tokens, curve, tree, names, bounds or DraftBounds())
    return Draft.empty() if columns is None else ListedDraft.of(*columns)


class PromptLookup:
    """Drafts from one generation's own prompt and output, in the caller's process, incrementally.

    Prompt lookup decoding (Saxena 2023) with an index instead of a search of the prompt at every step, and
    with calibrated probabilities instead of a fixed length. Appends and drafts touch O(1) nodes per token.

    Args:
        prompt_token_ids: int32[n] or a sequence of ints.
    """

    def __init__(self, prompt_token_ids: TokenIds) -> None:
        self._session = Session(None, [], new_learner(), 1, 0)
        self._session.append_context(as_token_array(prompt_token_ids, "prompt_token_ids"))

    def append(self, token_ids: TokenIds, step_cost: float = 1.0, written: int | None = None) -> None:
        """Append tokens that the model wrote, and learn from them.

        Args:
            token_ids: accepted tokens and the bonus token, of one step or of several.
            step_cost: cost of the target's last step, in plain decode steps.
            written: maximum number of tokens that this step wrote; None: all of them.
        """
        tokens = as_token_array(token_ids)
        self._session.record_step(step_cost, len(tokens) if written is None else min(written, len(tokens)))
        self._session.append(tokens, True)

    def append_context(self, token_ids: TokenIds) -> None:
        """Append tokens that the model did not write."""
        self._session.append_context(as_token_array(token_ids))

    def draft(self, max_draft_tokens: int, verify_cost: VerifyCost = 0.0) -> Draft:
        """Draft a chain of at most ``max_draft_tokens``, cut where ``verify_cost`` exceeds the expected gain.

        With the default of 0 it is not cut: callers that combine several layers cut the draft themselves.
        """
        width = max(0, max_draft_tokens)
        curve = as_cost_curve(verify_cost, width)[: width + 1]
        return draft_from(self._session, max_draft_tokens, curve, names=_LOOKUP)

    def __len__(self) -> int:
        return len(self._session)
