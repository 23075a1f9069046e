"""A draft model of another vocabulary: text goes to it, and its drafts come back as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Unpack

from suffixsvc.errors import VocabularyMismatchError
from suffixsvc.types import Draft, DraftSource, VerifyCost
from suffixsvc_driver.events import Feedback
from suffixsvc_driver.layers.worker_layer import WorkerLayer, WorkerOptions
from suffixsvc_driver.retokenizing import Retokenizer, TextFit, TextTokenizer, compare_texts
from suffixsvc_driver.workers.interface import DraftWorker

__all__ = ["RetokenizedLayer"]

#: how many tokens of text the sample's ratio of tokens counts as
_PRIOR_TOKENS: Final = 64


class RetokenizedLayer(WorkerLayer):
    """Drafts with a small model that has not the target's vocabulary. Whatever goes wrong is an empty draft.

    It costs what :class:`~suffixsvc_driver.layers.draft_model.DraftModelLayer` costs, and a few hundred
    microseconds for the text; what it drafts is verified like any draft. It can go on behind another layer's
    draft. Budgets and ``spec`` count the target's tokens.

    Args:
        worker: connected to a worker, or to several (a pool); the caller's to close.
        target: the target's tokenizer.
        draft: that of the worker's model.
        fit: of the same two tokenizers, where it is known: a quarter of a second.
        options: see :class:`~suffixsvc_driver.layers.worker_layer.WorkerOptions`.

    Attributes:
        fit: what drafting through text loses with these two.

    Raises:
        VocabularyMismatchError: the worker's model has not this vocabulary, or texts do not survive in one of
            the two.
        ServiceUnavailableError: nobody answers.
    """

    def __init__(
        self,
        worker: DraftWorker,
        target: TextTokenizer,
        draft: TextTokenizer,
        name: str = "draft-model",
        *,
        fit: TextFit | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        description = worker.check_vocabulary(draft.vocabulary)
        self.fit = fit or compare_texts(target, draft)
        if not self.fit.works:
            raise VocabularyMismatchError(
                "texts do not go from one vocabulary to the other and back (rule 'round-trip')",
                rule="round-trip",
                expected="every sample text whole, and at least half of the drafted tokens",
                got=f"{self.fit.whole:.0%} of the texts, {self.fit.kept_tokens:.0%} of the tokens",
                remedy="Use another draft model: suffixsvc compat TARGET DRAFT says which.",
            )
        super().__init__(worker, description, name, self.fit.token_ratio, options)
        self.retokenizer = Retokenizer(target, draft)
        self._text: list[int] = []
        self._told = 0

    def begin(self, prompt_ids: Sequence[int], cost: VerifyCost) -> None:
        self._text = list(prompt_ids)

    def draft(
        self,
        new_token_ids: Sequence[int],
        budget: int,
        verified: Feedback | None,
        *,
        after: Sequence[int] = (),
        suggested: Sequence[int] = (),
    ) -> Draft:
        self._text.extend(new_token_ids)
        if budget == 0:
            return Draft.empty()
        text = [*self._text, *after]
        ids = self.retokenizer.follow(text)
        wanted = math.ceil(budget * self._ratio(len(ids), len(text)))
        if self.description.context_size:
            wanted = min(wanted, self.description.context_size - len(ids))
        if not ids or wanted < 1:
            return Draft.empty()
        seconds = self._seconds_for(wanted + max(0, len(ids) - self._told))
        self._session.set_text(ids)
        self._told = len(ids)
        return self._translated(self._session.draft(wanted, seconds), budget)

    def end(self, new_token_ids: Sequence[int], verified: Feedback | None) -> None:
        self._text.extend(new_token_ids)

    def _ratio(self, ids: int, tokens: int) -> float:
        """Tokens of the draft model for a token of the target, in this text."""
        return (ids + _PRIOR_TOKENS * self.fit.token_ratio) / (tokens + _PRIOR_TOKENS)

    def _translated(self, draft: Draft, budget: int) -> Draft:
        if draft.parents.tolist() != list(range(-1, len(draft) - 1)):
            return Draft.empty()  # a tree: nobody asked for one
        ids, probs = self.retokenizer.translate(draft.token_ids.tolist(), draft.probs.tolist())
        return Draft.chain(ids[:budget], probs[:budget], DraftSource.DRAFT_MODEL) if ids else Draft.empty()
