"""State of a text in a grammar that llguidance compiled against a model's vocabulary.

A token is permitted if llguidance's mask has its bit. Where the grammar leaves no choice about the next
bytes, the mask has the bit of one token only, the first of their canonical tokens (those of the model's
tokenizer), unless a longer token could follow the grammar too. This is the behaviour of llama.cpp, vLLM and
SGLang with llguidance. End-of-generation tokens are permitted if and only if the text is complete. Control
tokens have no text, so a grammar permits them only by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from suffixsvc.errors import GrammarError
from suffixsvc_driver.sampling.settings import IdArray
from suffixsvc_driver.targets.llama.model import LlamaModel

#: characters of llguidance's reason in an error message
_REASON: Final = 200

_Mask = npt.NDArray[np.bool_]


class Compiled:
    """A compiled grammar.

    Args:
        matcher: llguidance's matcher at the start, which is only copied.
    """

    def __init__(self, matcher: Any) -> None:
        self.matcher = matcher


class StructuredGrammar:
    """A grammar at a point of a text. Not thread-safe. It must not outlive the model.

    Args:
        model: model of the tokens.
        tokenizer: llguidance's tokenizer of the model.
        start: the grammar.
    """

    def __init__(self, model: LlamaModel, tokenizer: Any, start: Compiled) -> None:
        self._model, self._tokenizer, self._start = model, tokenizer, start
        self._matcher = start.matcher.deep_copy()
        self._written: list[int] = []
        self._bits: _Mask | None = None
        eos = model.vocabulary.eos_id
        #: the end token that is drafted
        self._end = eos if eos in model.eog_ids else min(model.eog_ids)

    def copy(self) -> StructuredGrammar:
        """Return an independent copy at the same point."""
        other = object.__new__(StructuredGrammar)
        other._model, other._tokenizer, other._start = self._model, self._tokenizer, self._start
        other._matcher, other._bits, other._end = self._matcher.deep_copy(), self._bits, self._end
        other._written = self._written.copy()
        return other

    def permits(self, ids: IdArray) -> _Mask:
        """Return which of these tokens may come next; end tokens may if the grammar is complete.

        Raises:
            GrammarError: the state exceeds llguidance's limits.
        """
        return self._mask()[ids]

    def permits_one(self, token: int) -> bool:
        """Return whether this token may come next. Raises the error of :meth:`permits`."""
        return 0 <= token < self._model.vocab_size and bool(self._mask()[token])

    def accept(self, token: int) -> None:
        """Append ``token`` to the text; an end token changes nothing.

        Any token whose bytes continue the grammar is accepted, which includes those that the mask excludes
        in favour of a canonical one.

        Raises:
            GrammarError: it is not permitted. Nothing changes.
        """
        if token in self._model.eog_ids:
            if not self._matcher.is_accepting():
                raise self._refused(token)
            return
        if self._valid([token]) != 1:
            raise self._refused(token)
        if not self._matcher.consume_token(token):
            self._restore()
            raise self._refused(token)
        self._written.append(token)
        self._bits = None

    def allowed(self, drafted: Sequence[int]) -> int:
        """Return how many of these tokens may follow in sequence, none after an end token. Changes nothing.

        Where only canonical tokens are permitted, others with the same bytes count as well.
        """
        tokens = [int(token) for token in drafted]
        ends = [at for at, token in enumerate(tokens) if token in self._model.eog_ids]
        text = tokens[: ends[0]] if ends else tokens
        count = self._valid(text)
        return count + 1 if ends and count == len(text) and self._complete_after(text) else count

    def forced(self) -> tuple[list[int], int]:
        """Return the tokens that the grammar leaves no choice about, and how many of them are certain.

        The others are probable: the last canonical tokens of the forced text, which may merge with the text
        after it, and an end token where only end tokens are permitted.
        """
        _ = self._model.handle
        certain = self._matcher.compute_ff_tokens()
        text = self._matcher.compute_ff_bytes()
        tokens: list[int] = self._tokenizer.tokenize_bytes(text) if text else []
        if tokens[: len(certain)] != certain:
            tokens = certain
        if self._valid(tokens) == len(tokens) and self._complete_after(tokens, final=True):
            return [*tokens, self._end], len(certain)
        return tokens, len(certain)

    def _mask(self) -> _Mask:
        if self._bits is None:
            _ = self._model.handle  # the tokenizer of a closed model must not be called
            packed = self._matcher.compute_bitmask()
            if self._matcher.is_error():  # the mask permits the end token then
                reason = self._matcher.get_error()
                self._restore()
                raise GrammarError(
                    f"the grammar must be within the limits of llguidance after {len(self._written)} tokens",
                    got=brief(reason),
                    remedy="Simplify the schema or the grammar.",
                )
            bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
            self._bits = bits[: self._model.vocab_size].view(np.bool_)
        return self._bits

    def _valid(self, tokens: list[int]) -> int:
        """Return how many of these tokens continue the text, end tokens excluded."""
        if not tokens:
            return 0
        if min(tokens) < 0 or max(tokens) >= self._model.vocab_size:
            tokens = tokens[: next(i for i, t in enumerate(tokens) if not 0 <= t < self._model.vocab_size)]
        count = int(self._matcher.validate_tokens(tokens))
        if self._matcher.is_error():
            self._restore()
            return 0
        return count

    def _complete_after(self, tokens: list[int], *, final: bool = False) -> bool:
        """Return whether the text is complete after these valid tokens; with ``final``: and must end."""
        matcher = self._matcher
        complete = bool(not tokens or matcher.consume_tokens(tokens)) and bool(matcher.is_accepting())
        complete = complete and (not final or bool(matcher.is_stopped()))
        if tokens and (matcher.is_error() or not matcher.rollback(len(tokens))):
            self._restore()
            return False
        return complete

    def _restore(self) -> None:
        """Replace a matcher that is in an error state, which it never leaves."""
        self._matcher = self._start.matcher.deep_copy()
        self._matcher.consume_tokens(self._written)
        self._bits = None

    def _refused(self, token: int) -> GrammarError:
        return GrammarError("the grammar must permit the token", expected="a permitted token", got=token)


def brief(reason: str) -> str:
    """Return the first lines of llguidance's reason on one line."""
    return " ".join(reason.split())[:_REASON]
