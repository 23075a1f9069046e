"""The dearest layer: a small model on a draft worker."""

from __future__ import annotations

from collections.abc import Sequence

from suffixsvc.types import Draft, VerifyCost
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.events import Feedback
from suffixsvc_driver.layers.worker_layer import WorkerLayer
from suffixsvc_driver.vocabulary import Vocabulary
from suffixsvc_driver.workers.interface import DraftWorker

__all__ = ["DraftModelLayer"]


class DraftModelLayer(WorkerLayer):
    """Drafts with a small model. Whatever goes wrong with the worker is an empty draft in time. It can go on
    behind another layer's draft (:class:`~suffixsvc_driver.layers.ContinuingLayer`).

    Args:
        worker: connected to a worker, or to several (a pool); the caller's to close.
        target: the target's vocabulary.
        p_min: the worker stops before a token less likely than this; None = by what tokens cost.
        curve: what the target's steps cost, for that; without it 0.4 is taken.
        wait_seconds: how long a question may wait for its start where other drivers keep the worker busy;
            0 = what the worker finds right, which is two of its tokens. A driver whose target takes long over
            a step does well to say more: about such a step.
        timeout_seconds: how long to wait for a draft; by default what the worker's own speed
            suggests, three times over.

    Raises:
        VocabularyMismatchError: the worker's model cannot draft for this target.
        ServiceUnavailableError: nobody answers.
    """

    def __init__(
        self,
        worker: DraftWorker,
        target: Vocabulary,
        name: str = "draft-model",
        *,
        p_min: float | None = None,
        curve: CostCurve | None = None,
        top_k: int = 10,
        max_draft_tokens: int = 16,
        wait_seconds: float = 0.0,
        timeout_seconds: float | None = None,
    ) -> None:
        super().__init__(
            worker,
            worker.check_vocabulary(target),
            name,
            token_ratio=1.0,
            p_min=p_min,
            curve=curve,
            top_k=top_k,
            max_draft_tokens=max_draft_tokens,
            wait_seconds=wait_seconds,
            timeout_seconds=timeout_seconds,
        )

    def begin(self, prompt_ids: Sequence[int], cost: VerifyCost) -> None:
        self._session.set_text(prompt_ids)

    def draft(
        self,
        new_token_ids: Sequence[int],
        budget: int,
        verified: Feedback | None,
        *,
        after: Sequence[int] = (),
    ) -> Draft:
        self._session.append(new_token_ids)
        if budget == 0:
            return Draft.empty()
        seconds = self._seconds_for(budget + len(new_token_ids) + len(after))
        return self._session.draft(budget, seconds, after)

    def end(self, new_token_ids: Sequence[int], verified: Feedback | None) -> None:
        self._session.append(new_token_ids)
