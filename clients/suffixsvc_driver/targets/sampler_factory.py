"""Factory of samplers for the generations of a llama.cpp model, with a cache of compiled grammars."""

from __future__ import annotations

from typing import Final

from suffixsvc.errors import InvalidConfigError
from suffixsvc.types import TokenIds
from suffixsvc_driver.sampling.sampler import Sampler
from suffixsvc_driver.sampling.settings import Sampling
from suffixsvc_driver.targets.llama.grammar import LlamaGrammar
from suffixsvc_driver.targets.llama.model import LlamaModel, check_ids

__all__ = ["SamplerFactory"]

#: compiled grammars in the cache; agents use the same few repeatedly
_GRAMMARS: Final = 8


class SamplerFactory:
    """Makes samplers for one model. Not thread-safe."""

    def __init__(self, model: LlamaModel) -> None:
        self._model = model
        self._grammars: dict[str, LlamaGrammar] = {}

    def make(self, sampling: Sampling, prompt_ids: TokenIds) -> Sampler:
        """Return the sampler of one generation after this prompt.

        Raises:
            InvalidTokensError: the prompt has ids outside the vocabulary.
            InvalidConfigError: a bias for a token outside the vocabulary.
            GrammarError: a grammar that is malformed or that this vocabulary cannot produce.
        """
        prompt = check_ids(prompt_ids, self._model.vocab_size)
        grammar = None if sampling.grammar is None else self._grammar(sampling.grammar)
        return Sampler(sampling, self._model.vocab_size, prompt, grammar)

    def of(self, choices: Sampling | Sampler) -> Sampler:
        """Return a sampler unchanged, or make one without a prompt from settings.

        Raises:
            InvalidConfigError: settings that need the text.
        """
        if isinstance(choices, Sampler):
            return choices
        if choices.needs_text:
            raise InvalidConfigError(
                "penalties and grammars need the text of the generation",
                expected="a sampler, from sampler()",
                got="settings",
            )
        return self.make(choices, ())

    def _grammar(self, text: str) -> LlamaGrammar:
        """A copy of the compiled grammar, at its start."""
        ready = self._grammars.pop(text, None) or LlamaGrammar(self._model, text)
        self._grammars[text] = ready
        if len(self._grammars) > _GRAMMARS:
            self._grammars.pop(next(iter(self._grammars)))
        return ready.copy()
