"""Choosers for the generations of a llama.cpp model, its grammars kept ready."""

from __future__ import annotations

from typing import Final

from suffixsvc.errors import InvalidConfigError
from suffixsvc.types import TokenIds
from suffixsvc_driver.chooser import Chooser
from suffixsvc_driver.sampling import Sampling
from suffixsvc_driver.targets.llama_grammar import LlamaGrammar
from suffixsvc_driver.targets.llama_model import LlamaModel, check_ids

__all__ = ["Choosers"]

#: grammars kept ready; agents use the same few again and again
_GRAMMARS: Final = 8


class Choosers:
    """Of one model. Not thread-safe."""

    def __init__(self, model: LlamaModel) -> None:
        self._model = model
        self._grammars: dict[str, LlamaGrammar] = {}

    def make(self, sampling: Sampling, prompt_ids: TokenIds) -> Chooser:
        """What chooses the tokens of one generation behind this prompt.

        Raises:
            InvalidTokensError: the prompt.
            InvalidConfigError: a bias for a token outside the vocabulary.
            GrammarError: a grammar that is malformed, or of which this model can write nothing.
        """
        prompt = check_ids(prompt_ids, self._model.vocab_size)
        grammar = None if sampling.grammar is None else self._grammar(sampling.grammar)
        return Chooser(sampling, self._model.vocab_size, prompt, grammar)

    def of(self, choices: Sampling | Chooser) -> Chooser:
        """A chooser as it is, settings as one that knows no text.

        Raises:
            InvalidConfigError: settings that need the text.
        """
        if isinstance(choices, Chooser):
            return choices
        if choices.needs_text:
            raise InvalidConfigError(
                "penalties and grammars need the text of the generation",
                expected="a chooser, from chooser()",
                got="settings",
            )
        return self.make(choices, ())

    def _grammar(self, text: str) -> LlamaGrammar:
        """At its start, the caller's own."""
        ready = self._grammars.pop(text, None) or LlamaGrammar(self._model, text)
        self._grammars[text] = ready
        if len(self._grammars) > _GRAMMARS:
            self._grammars.pop(next(iter(self._grammars)))
        return ready.copy()
