"""Layer of a draft model with another vocabulary: context and drafts are converted through text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Unpack

from suffixsvc.errors import VocabularyMismatchError
from suffixsvc.types import Draft, DraftSource, Verified, VerifyCost
from suffixsvc_driver.drafts.events import QueryLayer
from suffixsvc_driver.layers.worker_layer import WorkerLayer, WorkerOptions
from suffixsvc_driver.retokenizing import Retokenizer, TextFit, TextTokenizer, compare_texts
from suffixsvc_driver.workers.client.interface import DraftWorker, WorkerDescription

#: weight of the sample's token ratio, in tokens of text
_PRIOR_TOKENS: Final = 64


class RetokenizedLayer(WorkerLayer):
    """Drafts with a small model that has another vocabulary than the target. A failure is an empty draft.

    It costs as much as :class:`~suffixsvc_driver.layers.draft_model.DraftModelLayer`, and a few hundred
    microseconds for the conversion; its drafts are verified like all others. It can continue another layer's
    draft. Budgets and ``spec`` count the target's tokens.

    Args:
        worker: connection to a worker, or to several (a pool); the caller closes it.
        target: the target's tokenizer.
        draft: the tokenizer of the worker's model.
        fit: known fit of the two tokenizers, whose comparison takes a quarter of a second.
        description: of the worker, if its vocabulary was checked before.
        options: see :class:`~suffixsvc_driver.layers.worker_layer.WorkerOptions`.

    Attributes:
        fit: loss of drafting through text with these tokenizers.

    Raises:
        VocabularyMismatchError: the worker's model has another vocabulary than ``draft``, or texts do not
            round-trip through one of the two.
        ServiceUnavailableError: no worker replies.
    """

    def __init__(
        self,
        worker: DraftWorker,
        target: TextTokenizer,
        draft: TextTokenizer,
        name: str = "draft-model",
        *,
        fit: TextFit | None = None,
        description: WorkerDescription | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        description = description or worker.check_vocabulary(draft.vocabulary)
        self.fit = fit or compare_texts(target, draft)
        if not self.fit.works:
            raise VocabularyMismatchError(
                "texts do not round-trip between the vocabularies (rule 'round-trip')",
                rule="round-trip",
                expected="every sample text unchanged, and at least half of the drafted tokens",
                got=f"{self.fit.whole:.0%} of the texts, {self.fit.kept_tokens:.0%} of the tokens",
                remedy="Use another draft model; suffixsvc compat TARGET DRAFT compares them.",
            )
        super().__init__(worker, description, name, self.fit.token_ratio, options)
        self.retokenizer = Retokenizer(target, draft)
        self._text: list[int] = []
        self._sent = 0

    def begin(self, prompt_ids: Sequence[int], cost: VerifyCost) -> None:
        """See the protocol."""
        self._text = list(prompt_ids)

    def draft(self, new_token_ids: Sequence[int], query: QueryLayer) -> Draft:
        """See the protocol."""
        self._text.extend(new_token_ids)
        if query.budget == 0:
            return Draft.empty()
        text = [*self._text, *query.after]
        ids = self.retokenizer.follow(text)
        wanted = math.ceil(query.budget * self._ratio(len(ids), len(text)))
        if self.description.context_size:
            wanted = min(wanted, self.description.context_size - len(ids))
        if not ids or wanted < 1:
            return Draft.empty()
        seconds = self._seconds_for(wanted + max(0, len(ids) - self._sent))
        self.session.set_text(ids)
        self._sent = len(ids)
        return self._translated(self.session.draft(wanted, seconds), query.budget)

    def end(self, new_token_ids: Sequence[int], verified: Verified | None) -> None:
        """See the protocol."""
        self._text.extend(new_token_ids)

    def _ratio(self, ids: int, tokens: int) -> float:
        """Tokens of the draft model per token of the target, in this text."""
        return (ids + _PRIOR_TOKENS * self.fit.token_ratio) / (tokens + _PRIOR_TOKENS)

    def _translated(self, draft: Draft, budget: int) -> Draft:
        if draft.parents.tolist() != list(range(-1, len(draft) - 1)):
            return Draft.empty()  # a tree, which was not requested
        ids, probs = self.retokenizer.translate(draft.token_ids.tolist(), draft.probs.tolist())
        return Draft.chain(ids[:budget], probs[:budget], DraftSource.DRAFT_MODEL) if ids else Draft.empty()
