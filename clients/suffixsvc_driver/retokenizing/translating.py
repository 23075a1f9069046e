"""Translation between a target's vocabulary and a draft model's, in both directions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from suffixsvc.errors import VocabularyMismatchError
from suffixsvc_driver.retokenizing.following import TextFollower
from suffixsvc_driver.retokenizing.tokenizer import Cutter, TextTokenizer, adds_leading_blank, piece_ends

_WORD: Final = "a"


class Retokenizer:
    """Translates a target's text for a draft model of another vocabulary, and its drafts for the target.

    Drafts are tokenized by the target's tokenizer together with the last word of the text, or with its last
    token; if that changes the target's tokens (they would merge with the draft), no draft is possible.
    Markers that both vocabularies have are translated to each other, others to their spelling; end tokens to
    end tokens. Not thread-safe.

    Args:
        target, draft: their tokenizers.

    Attributes:
        merged: number of drafts that were lost because their beginning would have merged with the last token
            of the text, or because the target has no tokens for them.
    """

    def __init__(self, target: TextTokenizer, draft: TextTokenizer) -> None:
        of_target, of_draft = set(target.markers.values()), set(draft.markers.values())
        self._follower = TextFollower(target, draft, Cutter(draft, of_draft - of_target, leaves_out=True))
        self._cutter = Cutter(target, of_target - of_draft)
        self._target_markers = {text: token for token, text in target.markers.items()}
        self._target_ends = target.ends
        self._texts = draft.vocabulary.texts
        self._markers, self._ends = draft.markers, frozenset(draft.ends)
        self._blank = adds_leading_blank(draft)
        self.merged = 0

    def follow(self, token_ids: Sequence[int]) -> list[int]:
        """Set the text, in the target's tokens.

        Returns:
            Its ids in the draft model's vocabulary; the caller must not change the list. An incomplete
            character at the end is omitted: a draft has to begin with its first bytes.

        Raises:
            VocabularyMismatchError: the text does not round-trip through a tokenizer.
            IndexError: ids outside the vocabulary.
        """
        self._follower.follow(token_ids)
        return self._follower.ids

    def translate(self, draft_ids: Sequence[int], probs: Sequence[float]) -> tuple[list[int], list[float]]:
        """Translate a draft that follows the text to the target's tokens.

        Args:
            draft_ids: drafted tokens.
            probs: conditional probability of each drafted token.

        Returns:
            Target tokens, and the probability of each: the product of those of the drafted tokens whose first
            byte lies in it, so that the total is preserved. They end before an unused id and before bytes
            that are not a character.
        """
        result: list[tuple[int, float]] = []
        self._translate(draft_ids, probs, result)
        return [token for token, _ in result], [prob for _, prob in result]

    def _translate(
        self, draft_ids: Sequence[int], probs: Sequence[float], result: list[tuple[int, float]]
    ) -> None:
        run = _Run(self._follower.pending, bare=self._follower.begins)
        for token, prob in zip(draft_ids, probs, strict=False):
            if not 0 <= token < len(self._texts) or not self._texts[token]:
                break
            same = self._target_markers.get(self._markers.get(token, b""))
            if token in self._ends:
                end = same if same is not None else next(iter(self._target_ends), None)
                if self._put(run, result) and end is not None:
                    result.append((end, prob))
                return
            if same is None:
                run.add(self._texts[token], prob, without_blank=self._blank)
                continue
            if not self._put(run, result):
                return
            result.append((same, prob))
            run = _Run(b"", bare=True, first=False)
        self._put(run, result)

    def _put(self, run: _Run, result: list[tuple[int, float]]) -> bool:
        """Add a run in the target's tokens; return whether all of it was added."""
        known = len(run.known)
        if not run.written.startswith(run.known):
            return False
        text = _characters(run.written)
        if len(text) > known:
            pieces = self._cut(text.decode(), run)
            if pieces is None:
                self.merged += 1
                return False
            at, starts = known, iter(run.starts)
            start, prob = next(starts)
            for token, size in pieces:
                at += size
                product = 1.0
                while start < at:
                    product *= prob
                    start, prob = next(starts, (len(run.written), 1.0))
                result.append((token, product))
        return len(text) == len(run.written)

    def _cut(self, text: str, run: _Run) -> list[tuple[int, int]] | None:
        """A run in the target's tokens, with their sizes; None if the tokens before it would change, or the
        target has no tokens for it."""
        try:
            if not run.first:
                return self._cut_after([], "", text, True, run)
            for word in (True, False):
                tokens, before, begins = self._follower.last(word=word)
                pieces = self._cut_after(tokens, before, text, begins, run)
                if pieces is not None:
                    return pieces
        except VocabularyMismatchError:
            pass
        return None

    def _cut_after(
        self, tokens: list[int], before: str, text: str, begins: bool, run: _Run
    ) -> list[tuple[int, int]] | None:
        """Tokenize ``text`` after ``before``, which must result in ``tokens``."""
        whole = before + text
        found = [self._cutter.cut(whole, begins)]
        size = len(whole.encode())
        blanks = text[len(text.rstrip()) :]
        if blanks:
            # their tokens depend on the text that follows, which the draft model has accounted for
            found.append(_up_to(size, self._cutter.cut(whole + _WORD, begins)))
        found = [pieces for pieces in found if [token for token, _ in pieces[: len(tokens)]] == tokens]
        if len(found) > 1:
            first, offset = size - len(blanks.encode()), len(before.encode())
            drafted = {offset + start for start, _ in run.starts if first < offset + start < size}
            found.sort(key=lambda pieces: not drafted <= piece_ends(pieces).keys())
        return found[0][len(tokens) :] if found else None


def _up_to(size: int, pieces: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The pieces of the first ``size`` bytes; none if no piece ends there."""
    for count, end in enumerate(itertools.accumulate(each for _, each in pieces), 1):
        if end >= size:
            return pieces[:count] if end == size else []
    return []


class _Run:
    """Drafted text up to a marker.

    Attributes:
        known: bytes that it has to begin with, which the target has emitted already.
        written: its bytes.
        starts: offset and probability of each drafted token.
        first: it continues the text.
    """

    def __init__(self, known: bytes, *, bare: bool, first: bool = True) -> None:
        self.known, self.first = known, first
        self.written = bytearray()
        self.starts: list[tuple[int, float]] = []
        self._bare = bare

    def add(self, written: bytes, prob: float, *, without_blank: bool) -> None:
        """Append the bytes of a token. ``without_blank``: drop a blank at the start of a text."""
        self.starts.append((len(self.written), prob))
        if self._bare and without_blank and len(self.starts) == 1:
            written = written.removeprefix(b" ")
        self.written += written


def _characters(written: bytearray) -> bytes:
    """The longest prefix that consists of whole characters."""
    try:
        written.decode()
    except UnicodeDecodeError as error:
        return bytes(written[: error.start])
    return bytes(written)
