"""Draft model layer: a small model on a draft worker, the most expensive layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from suffixsvc.types import Draft, VerifyCost
from suffixsvc_driver.drafts.events import Feedback
from suffixsvc_driver.layers.worker_layer import WorkerLayer, WorkerOptions
from suffixsvc_driver.workers.client.interface import DraftWorker
from suffixsvc_models.vocabulary import Vocabulary

__all__ = ["DraftModelLayer"]


class DraftModelLayer(WorkerLayer):
    """Drafts with a small model. A failure of the worker is an empty draft, in time. It can continue another
    layer's draft (:class:`~suffixsvc_driver.layers.ContinuingLayer`).

    Args:
        worker: connection to a worker, or to several (a pool); the caller closes it.
        target: the target's vocabulary.
        options: see :class:`~suffixsvc_driver.layers.worker_layer.WorkerOptions`.

    Raises:
        VocabularyMismatchError: the worker's model cannot draft for this target.
        ServiceUnavailableError: no worker replies.
    """

    def __init__(
        self,
        worker: DraftWorker,
        target: Vocabulary,
        name: str = "draft-model",
        **options: Unpack[WorkerOptions],
    ) -> None:
        description = worker.check_vocabulary(target)
        super().__init__(worker, description, name, 1.0, options)
        self.spec = replace(self.spec, checks=description.checks)

    def begin(self, prompt_ids: Sequence[int], cost: VerifyCost) -> None:
        """See the protocol."""
        self._session.set_text(prompt_ids)

    def draft(
        self,
        new_token_ids: Sequence[int],
        budget: int,
        verified: Feedback | None,
        *,
        after: Sequence[int] = (),
        suggested: Sequence[int] = (),
    ) -> Draft:
        """See the protocol."""
        self._session.append(new_token_ids)
        if budget == 0:
            return Draft.empty()
        seconds = self._seconds_for(budget + len(new_token_ids) + len(after) + len(suggested))
        return self._session.draft(budget, seconds, after, suggested)

    def end(self, new_token_ids: Sequence[int], verified: Feedback | None) -> None:
        """See the protocol."""
        self._session.append(new_token_ids)
