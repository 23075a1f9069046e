"""Draft model layer: a small model on a draft worker, the most expensive layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from suffixsvc.types import Draft, Verified, VerifyCost
from suffixsvc_driver.drafts.events import QueryLayer
from suffixsvc_driver.layers.worker_layer import WorkerLayer, WorkerOptions
from suffixsvc_driver.workers.client.interface import DraftWorker, WorkerDescription
from suffixsvc_models.vocabulary import Vocabulary


class DraftModelLayer(WorkerLayer):
    """Drafts with a small model. A failure of the worker is an empty draft, in time. It can continue another
    layer's draft.

    Args:
        worker: connection to a worker, or to several (a pool); the caller closes it.
        target: the target's vocabulary.
        description: of the worker, if its vocabulary was checked before.
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
        *,
        description: WorkerDescription | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        description = description or worker.check_vocabulary(target)
        super().__init__(worker, description, name, 1.0, options)
        self.spec = replace(self.spec, max_suggested=description.checks)

    def begin(self, prompt_ids: Sequence[int], cost: VerifyCost) -> None:
        """See the protocol."""
        self.session.set_text(prompt_ids)

    def draft(self, new_token_ids: Sequence[int], query: QueryLayer) -> Draft:
        """See the protocol."""
        self.session.append(new_token_ids)
        if query.budget == 0:
            return Draft.empty()
        read = len(new_token_ids) + len(query.after) + len(query.suggested)
        seconds = self._seconds_for(query.budget + read)
        return self.session.draft(query.budget, seconds, query.after, query.suggested)

    def end(self, new_token_ids: Sequence[int], verified: Verified | None) -> None:
        """See the protocol."""
        self.session.append(new_token_ids)
