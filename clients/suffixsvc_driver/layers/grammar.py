"""Grammar layer: the text that a structured-output grammar leaves no choice about; the cheapest layer.

The grammar forces bytes, and the layer drafts their canonical tokens, those of the model's tokenizer, with
probability 1. The last tokens of a forced text may merge with the text after it, and several end tokens may
be permitted: such tokens have a lower raw probability, which calibrates them apart from the certain ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from suffixsvc.types import Draft, DraftSource, Verified, VerifyCost
from suffixsvc_driver.drafts.events import QueryLayer
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.sampling.sampler import ForcingGrammar
from suffixsvc_driver.sampling.settings import Sampling
from suffixsvc_driver.settings.driver_config import LayerKind, LayerSpec
from suffixsvc_driver.targets import TargetShape

#: raw probability of forced text whose tokens are not certain
_PROBABLE: Final = 0.9


class GrammarLayer:
    """Drafts what the grammar forces. Give it as the first layer of a generation with this grammar.

    Args:
        grammar: state at the start of the text, which is not changed.
    """

    def __init__(self, grammar: ForcingGrammar, name: str = "grammar", *, max_draft_tokens: int = 64) -> None:
        self.spec = LayerSpec(name, LayerKind.GRAMMAR, max_draft_tokens=max_draft_tokens)
        self._start = grammar
        self._grammar: ForcingGrammar | None = None
        self._ahead: list[int] = []  # forced tokens that were not emitted yet
        self._certain = 0  # of these, the first ones that are certain

    def begin(self, prompt_ids: Sequence[int], cost: VerifyCost) -> None:
        """See the protocol."""
        self._grammar, self._ahead, self._certain = self._start.copy(), [], 0

    def draft(self, new_token_ids: Sequence[int], query: QueryLayer) -> Draft:
        """See the protocol."""
        grammar = self._grammar
        if grammar is None:
            return Draft.empty()
        self._grammar = None  # a state that has missed a token is of no use
        for token in new_token_ids:
            grammar.accept(token)
            as_forced = self._ahead[:1] == [token]
            self._ahead = self._ahead[1:] if as_forced else []
            self._certain = self._certain - 1 if as_forced and self._certain else 0
        self._grammar = grammar
        if not query.budget:
            return Draft.empty()
        if not self._certain:  # a long forced text is not tokenized again in every step
            self._ahead, self._certain = grammar.forced()
        tokens = self._ahead[: query.budget]
        probs = [1.0 if i < self._certain else _PROBABLE for i in range(len(tokens))]
        return Draft.chain(tokens, probs, DraftSource.GRAMMAR) if tokens else Draft.empty()

    def end(self, new_token_ids: Sequence[int], verified: Verified | None) -> None:
        """See the protocol."""
        self._grammar, self._ahead = None, []


def grammar_layers(target: TargetShape, sampling: Sampling) -> list[Layer]:
    """Return the layer of the settings' grammar; none without a grammar, or for GBNF, which forces nothing.

    Args:
        target: the target of the generation, which compiles the grammar, or has it in its cache.
        sampling: settings of the generation.

    Raises:
        GrammarError: see :meth:`suffixsvc_driver.targets.TargetShape.sampler`.
        MissingExtraError: llguidance is not installed.
    """
    if sampling.grammar is None or isinstance(sampling.grammar, str):
        return []
    grammar = target.sampler(Sampling(grammar=sampling.grammar), ()).forcing()
    return [] if grammar is None else [GrammarLayer(grammar)]
