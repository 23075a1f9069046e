"""Sampler of one generation: settings, penalties over the text so far, and the state of its grammar.

With a grammar, a token is sampled without it first, and the grammar checks that one token. Only if it refuses
the token, the position's second random number samples again among the permitted tokens:

    logits --bias, penalties--> sample (first number) --permitted--> the token
                                                      `--refused---> sample (second number) among the
                                                                     permitted tokens of the truncated
                                                                     distribution or, if it has none, among
                                                                     all permitted tokens

Let p be the truncated distribution (after top_k, top_p, min_p) and P its permitted share. A permitted token t
has probability p(t) + (1 - P) * p(t) / P = p(t) / P: rejection sampling from p. If P = 0, the settings apply
to the permitted tokens alone. (llama.cpp's common sampler truncates again, among the permitted tokens only,
whenever its first token is refused.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from suffixsvc.errors import GrammarError, InvalidConfigError
from suffixsvc.types import FloatArray
from suffixsvc_driver.sampling.penalties import Penalties
from suffixsvc_driver.sampling.settings import (
    IdArray,
    Sampling,
    WideArray,
    draw,
    largest,
    sample_token,
    truncate,
    uniform,
)
from suffixsvc_driver.settings.checks import require

#: numbers of most probable tokens that greedy sampling checks against the grammar, before
#: the whole vocabulary
_GREEDY_CANDIDATES: Final = (64, 2048)


class Grammar(Protocol):
    """State of a grammar after a text.

    :mod:`suffixsvc_driver.targets.llama.grammar` implements it with llama.cpp,
    :mod:`suffixsvc_driver.targets.llama.structured_grammar` with llguidance.
    """

    def permits(self, ids: IdArray) -> npt.NDArray[np.bool_]:
        """Return which of the tokens may come next."""

    def permits_one(self, token: int) -> bool:
        """Return whether the token may come next."""

    def accept(self, token: int) -> None:
        """Append ``token`` to the text.

        Raises:
            GrammarError: the token is not permitted.
        """

    def allowed(self, drafted: Sequence[int]) -> int:
        """Return the length of the longest prefix of ``drafted`` that may come next, without advancing."""

    def copy(self) -> Grammar:
        """Return an independent copy."""


@runtime_checkable
class ForcingGrammar(Grammar, Protocol):
    """A grammar that knows the text that it leaves no choice about."""

    def forced(self) -> tuple[list[int], int]:
        """Return tokens that must come next, and the number of the first ones that are certain."""

    def copy(self) -> ForcingGrammar:
        """Return an independent copy."""


class Sampler:
    """Samples the tokens of one generation. Not thread-safe.

    Args:
        sampling: the settings.
        vocab_size: of the target.
        prompt_ids: text before the first emitted token, for penalties.
        grammar: initial state; required if and only if the settings have a grammar.

    Raises:
        InvalidConfigError: a bias of a token outside the vocabulary, or ``grammar`` does not
            fit the settings.
    """

    def __init__(
        self,
        sampling: Sampling,
        vocab_size: int,
        prompt_ids: Iterable[int] = (),
        grammar: Grammar | None = None,
    ) -> None:
        condition = "a grammar's text and its state must be given together: both or none"
        require((grammar is None) == (sampling.grammar is None), condition, "one of them")
        bias = dict(sampling.logit_bias)
        if bias and max(bias) >= vocab_size:
            raise InvalidConfigError(
                "token ids of logit_bias must be within the vocabulary",
                expected=f"0 .. {vocab_size - 1}",
                got=max(bias),
            )
        self.sampling = sampling
        self._bias_ids = np.fromiter(bias.keys(), np.int64, len(bias))
        self._bias = np.fromiter(bias.values(), np.float32, len(bias))
        self._prompt = tuple(prompt_ids) if sampling.penalizes else ()
        self._penalties = Penalties(sampling, self._prompt) if sampling.penalizes else None
        self._grammar = grammar
        #: initial state, from which :meth:`rollback` starts again
        self._first_grammar: Grammar | None = None
        self._written: list[int] = []

    def allowed(self, drafted: Sequence[int]) -> int:
        """Return the length of the longest prefix of ``drafted`` that the grammar permits."""
        return len(drafted) if self._grammar is None else self._grammar.allowed(drafted)

    def forcing(self) -> ForcingGrammar | None:
        """Return a copy of the grammar's state, if the grammar knows the text that it forces."""
        return self._grammar.copy() if isinstance(self._grammar, ForcingGrammar) else None

    def accept(self, token: int) -> None:
        """Append ``token`` to the text.

        Raises:
            GrammarError: the grammar forbids the token; the state is unchanged.
        """
        if self._grammar is not None:
            self._first_grammar = self._first_grammar or self._grammar.copy()
            self._grammar.accept(token)
        if self._penalties is not None:
            self._penalties.accept(token)
        self._written.append(token)

    def rollback(self, count: int) -> None:
        """Remove the last ``count`` tokens of the text, which a failed step has appended."""
        if not count:
            return
        written = self._written[: len(self._written) - count]
        self._written = []
        if self._penalties is not None:
            self._penalties = Penalties(self.sampling, self._prompt)
        if self._first_grammar is not None:
            self._grammar = self._first_grammar.copy()
        for token in written:
            self.accept(token)

    def sample(self, logits: FloatArray, position: int) -> int:
        """Return the token of absolute ``position`` (prompt included) from logits float32[n_vocab].

        Raises:
            ModelError: the largest logit is NaN or infinite, or every token is banned.
            GrammarError: every permitted token is banned.
        """
        logits = self.adjusted(logits)
        token = sample_token(logits, self.sampling, position)
        if self._grammar is None or self._grammar.permits_one(token):
            return token
        if self.sampling.greedy:
            return self._best_permitted(logits, self._grammar, position)
        ids, scaled = self.resampling_candidates(logits, position)
        return draw(ids, scaled, uniform(self.sampling.seed, position, second=True))

    def adjusted(self, logits: FloatArray) -> FloatArray:
        """Return the logits with bias and penalties; a copy if there are any."""
        if self._penalties is None and not len(self._bias):
            return logits
        logits = logits.astype(np.float32)
        logits[self._bias_ids] += self._bias
        if self._penalties is not None:
            self._penalties.apply(logits)
        return logits

    def permitted(self, ids: IdArray) -> npt.NDArray[np.bool_]:
        """Return which of the tokens the grammar permits next; all without a grammar."""
        return np.ones(len(ids), np.bool_) if self._grammar is None else self._grammar.permits(ids)

    def resampling_candidates(self, adjusted: FloatArray, position: int) -> tuple[IdArray, WideArray]:
        """Return the candidates after a refusal: ids, ascending, and their logits divided by the temperature.

        Raises:
            GrammarError: there are none.
        """
        ids, scaled = truncate(adjusted, self.sampling)
        keep = self.permitted(ids) & (scaled > -math.inf)
        if keep.any():
            return ids[keep], scaled[keep]
        everything = np.arange(len(adjusted))
        ids = everything[self.permitted(everything) & (adjusted > -math.inf)]
        if not len(ids):
            raise _dead_end(position)
        at, scaled = truncate(adjusted[ids], self.sampling)
        return ids[at], scaled

    def _best_permitted(self, logits: FloatArray, grammar: Grammar, position: int) -> int:
        """Return the permitted token of the largest logit, the lowest id on ties."""
        for count in (*_GREEDY_CANDIDATES, len(logits)):
            ids = largest(logits, min(count, len(logits)))
            ids = ids[logits[ids] > -math.inf]
            ids = ids[grammar.permits(ids)]
            if len(ids):
                return int(ids[logits[ids].argmax()])
        raise _dead_end(position)


def _dead_end(position: int) -> GrammarError:
    return GrammarError(
        f"the grammar permits none of the model's tokens at position {position}",
        expected="a token that continues the grammar, or an end token after its end, that is not banned",
        remedy="Check whether the vocabulary can spell the characters of the grammar.",
    )
