"""The choices of one generation: settings, the text so far, and where its grammar stands.

With a grammar, a token is chosen without a look at it first; the grammar is asked about that one token,
and only where it refuses, the position's second number chooses again among the permitted ones:

    logits --bias, penalties--> choose (first number) --permitted?--> the token
                                                      `--refused--> choose again (second number), among the
                                                                    kept tokens that are permitted; where
                                                                    none is: among all that are permitted

Let p be the distribution over the kept tokens and P the share of it that is permitted. A permitted kept
token comes out with p(t) + (1 - P) * p(t) / P = p(t) / P: sampling from p until the grammar agrees. Where
P = 0, the settings apply to the permitted tokens alone. (llama.cpp's common sampler keeps tokens anew, from
the permitted ones alone, whenever its first choice is refused.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from suffixsvc.errors import GrammarError, InvalidConfigError
from suffixsvc.types import FloatArray
from suffixsvc_driver.penalties import Penalties
from suffixsvc_driver.sampling import IdArray, Sampling, choose, draw, kept, uniform

__all__ = ["Chooser", "Grammar"]

#: how many of the most probable tokens a greedy choice asks the grammar about, at first and then
_FIRST_FEW: Final = (64, 2048)


class Grammar(Protocol):
    """Where a text stands in a grammar. ``targets.llama_grammar`` has llama.cpp's."""

    def permits(self, ids: IdArray) -> npt.NDArray[np.bool_]:
        """Which of these tokens may come next."""

    def permits_one(self, token: int) -> bool:
        """Whether this token may come next."""

    def accept(self, token: int) -> None:
        """The text goes on with ``token``. Raises GrammarError for one that is not permitted."""

    def allowed(self, drafted: Sequence[int]) -> int:
        """How many of these tokens may come next, one behind the other. Nothing changes."""

    def copy(self) -> Grammar:
        """Another text at the same place."""


class Chooser:
    """What the target chooses in one generation. Not thread-safe.

    Args:
        sampling: the settings.
        vocab_size: of the target.
        prompt_ids: the text that penalties see before anything is written.
        grammar: at the start of what is written; it must be given exactly where the settings have one.

    Raises:
        InvalidConfigError: a bias for a token that the target does not have.
    """

    def __init__(
        self,
        sampling: Sampling,
        vocab_size: int,
        prompt_ids: Iterable[int] = (),
        grammar: Grammar | None = None,
    ) -> None:
        if (grammar is None) != (sampling.grammar is None):
            raise InvalidConfigError(
                "a grammar's text and its state go together", expected="both or none", got="one of them"
            )
        bias = dict(sampling.logit_bias)
        if bias and max(bias) >= vocab_size:
            raise InvalidConfigError(
                "logit_bias names a token outside the vocabulary",
                expected=f"0 .. {vocab_size - 1}",
                got=max(bias),
            )
        self.sampling = sampling
        self._bias_ids = np.fromiter(bias.keys(), np.int64, len(bias))
        self._bias = np.fromiter(bias.values(), np.float32, len(bias))
        self._prompt = tuple(prompt_ids) if sampling.penalizes else ()
        self._penalties = Penalties(sampling, self._prompt) if sampling.penalizes else None
        self._grammar = grammar
        #: before anything was written: what :meth:`take_back` begins from again
        self._first_grammar: Grammar | None = None
        self._written: list[int] = []

    @property
    def permit(self) -> Callable[[Sequence[int]], int] | None:
        """:meth:`allowed` where there is a grammar, None where every draft is allowed."""
        return None if self._grammar is None else self._grammar.allowed

    def allowed(self, drafted: Sequence[int]) -> int:
        """How many of the drafted tokens the grammar permits from here. Nothing changes."""
        return len(drafted) if self._grammar is None else self._grammar.allowed(drafted)

    def accept(self, token: int) -> None:
        """The text goes on with ``token``.

        Raises:
            GrammarError: the grammar forbids it; nothing changes.
        """
        if self._grammar is not None:
            self._first_grammar = self._first_grammar or self._grammar.copy()
            self._grammar.accept(token)
        if self._penalties is not None:
            self._penalties.accept(token)
        self._written.append(token)

    def take_back(self, count: int) -> None:
        """The text ends ``count`` tokens earlier: the step that accepted them failed."""
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

    def choose(self, logits: FloatArray, position: int) -> int:
        """The token for absolute ``position`` (prompt included) from logits float32[n_vocab].

        Raises:
            ModelError: the logits hold NaN or infinity where it decides, or every token is banned.
            GrammarError: the grammar permits nothing that is not banned.
        """
        logits = self.adjusted(logits)
        token = choose(logits, self.sampling, position)
        if self._grammar is None or self._grammar.permits_one(token):
            return token
        if self.sampling.greedy:
            return self._best_permitted(logits, self._grammar, position)
        ids, scaled = self.second_candidates(logits, position)
        return draw(ids, scaled, uniform(self.sampling.seed, position, second=True))

    def adjusted(self, logits: FloatArray) -> FloatArray:
        """The logits with bias and penalties; a copy where there are any."""
        if self._penalties is None and not len(self._bias):
            return logits
        logits = logits.astype(np.float32)
        logits[self._bias_ids] += self._bias
        if self._penalties is not None:
            self._penalties.apply(logits)
        return logits

    def permitted(self, ids: IdArray) -> npt.NDArray[np.bool_]:
        """Which of these tokens the grammar permits next; all of them without one."""
        return np.ones(len(ids), np.bool_) if self._grammar is None else self._grammar.permits(ids)

    def second_candidates(
        self, adjusted: FloatArray, position: int
    ) -> tuple[IdArray, npt.NDArray[np.float64]]:
        """What is chosen from where the grammar refuses the first choice: ids, ascending, and their logits
        divided by the temperature.

        Raises:
            GrammarError: nothing.
        """
        ids, scaled = kept(adjusted, self.sampling)
        keep = self.permitted(ids) & (scaled > -math.inf)
        if keep.any():
            return ids[keep], scaled[keep]
        everything = np.arange(len(adjusted))
        ids = everything[self.permitted(everything) & (adjusted > -math.inf)]
        if not len(ids):
            raise _dead_end(position)
        at, scaled = kept(adjusted[ids], self.sampling)
        return ids[at], scaled

    def _best_permitted(self, logits: FloatArray, grammar: Grammar, position: int) -> int:
        """The largest logit that the grammar permits, the lowest id on ties."""
        total = len(logits)
        for few in (*_FIRST_FEW, total):
            if few < total:
                edge = np.partition(logits, total - few)[total - few]
                ids = np.flatnonzero((logits >= edge) & (logits > -math.inf))
            else:
                ids = np.flatnonzero(logits > -math.inf)
            ids = ids[grammar.permits(ids)]
            if len(ids):
                return int(ids[logits[ids].argmax()])
        raise _dead_end(position)


def _dead_end(position: int) -> GrammarError:
    return GrammarError(
        f"the grammar permits none of the model's tokens at position {position}",
        expected="a token that continues the grammar, or an end token where it is complete",
        got="none that is not banned",
        remedy="Does the grammar ask for characters that this vocabulary cannot write?",
    )
