"""Both ways between a target's vocabulary and a draft model's."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from suffixsvc.errors import VocabularyMismatchError
from suffixsvc_driver.retokenizing.following import TextFollower
from suffixsvc_driver.retokenizing.tokenizer import Cutter, TextTokenizer, puts_blank_in_front

__all__ = ["Retokenizer"]

_WORD: Final = "a"


class Retokenizer:
    """What a target writes, for a draft model of another vocabulary, and what that drafts, for the target.

    The text goes over as text. So do drafts: they are cut by the target's tokenizer together with the word
    that the text ends with, or with its last token, and where both come out otherwise than the target wrote
    them (they would merge with what was drafted), nothing can be drafted. Markers that both vocabularies have
    go over as they are, others as their spelling; what ends a generation here ends it there. Not thread-safe.

    Args:
        target, draft: their tokenizers.

    Attributes:
        merged: drafts lost because their beginning would have merged with the last written token, or because
            the target has no tokens for them.
    """

    def __init__(self, target: TextTokenizer, draft: TextTokenizer) -> None:
        of_target, of_draft = set(target.markers.values()), set(draft.markers.values())
        self._follower = TextFollower(target, draft, Cutter(draft, of_draft - of_target, leaves_out=True))
        self._cutter = Cutter(target, of_target - of_draft)
        self._target_markers = {text: token for token, text in target.markers.items()}
        self._target_ends = target.ends
        self._texts = draft.vocabulary.texts
        self._markers, self._ends = draft.markers, frozenset(draft.ends)
        self._blank = puts_blank_in_front(draft)
        self.merged = 0

    def follow(self, token_ids: Sequence[int]) -> list[int]:
        """The text is this one now, in the target's tokens.

        Returns:
            The draft model's ids of it; not to be changed. A character that is not whole yet is left out: a
            draft has to begin with what there is of it.

        Raises:
            VocabularyMismatchError: a tokenizer does not keep the text.
            IndexError: ids outside the vocabulary.
        """
        self._follower.follow(token_ids)
        return self._follower.ids

    def translate(self, draft_ids: Sequence[int], probs: Sequence[float]) -> tuple[list[int], list[float]]:
        """What the draft model drafted behind the text, in the target's tokens.

        Args:
            probs: of each drafted token, given the one before it.

        Returns:
            Target tokens, and the probability of each: those of the drafted tokens whose first byte lies in
            it, multiplied, so that the product is kept. They end in front of an id that means nothing and of
            bytes that are no character.
        """
        answer = _Answer()
        run = _Run(self._follower.pending, bare=self._follower.begins)
        for token, prob in zip(draft_ids, probs, strict=False):
            if not 0 <= token < len(self._texts) or not self._texts[token]:
                break
            same = self._target_markers.get(self._markers.get(token, b""))
            if token in self._ends:
                end = same if same is not None else next(iter(self._target_ends), None)
                if self._put(run, answer) and end is not None:
                    answer.add(end, prob)
                return answer.ids, answer.probs
            if same is None:
                run.add(self._texts[token], prob, without_blank=self._blank)
                continue
            if not self._put(run, answer):
                return answer.ids, answer.probs
            answer.add(same, prob)
            run = _Run(b"", bare=True, first=False)
        self._put(run, answer)
        return answer.ids, answer.probs

    def _put(self, run: _Run, answer: _Answer) -> bool:
        """Add a run in the target's tokens. Whether all of it could be added."""
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
                charged = 1.0
                while start < at:
                    charged *= prob
                    start, prob = next(starts, (len(run.written), 1.0))
                answer.add(token, charged)
        return len(text) == len(run.written)

    def _cut(self, text: str, run: _Run) -> list[tuple[int, int]] | None:
        """A run in the target's tokens, with their sizes; None where the text in front of it would change, or
        the target cannot say it."""
        try:
            return self._cut_as_it_stands(text, run)
        except VocabularyMismatchError:
            return None

    def _cut_as_it_stands(self, text: str, run: _Run) -> list[tuple[int, int]] | None:
        if not run.first:
            return self._cut_behind([], "", text, True, run)
        for word in (True, False):
            tokens, before, begins = self._follower.last(word=word)
            pieces = self._cut_behind(tokens, before, text, begins, run)
            if pieces is not None:
                return pieces
        return None

    def _cut_behind(
        self, tokens: list[int], before: str, text: str, begins: bool, run: _Run
    ) -> list[tuple[int, int]] | None:
        """``text`` behind ``before``, which must come out as ``tokens``."""
        whole = before + text
        found = [self._cutter.cut(whole, begins)]
        size = len(whole.encode())
        blanks = text[len(text.rstrip()) :]
        if blanks:
            # how they are cut depends on what follows them, which the draft model knew when it cut them
            found.append(_up_to(size, self._cutter.cut(whole + _WORD, begins)))
        found = [pieces for pieces in found if [token for token, _ in pieces[: len(tokens)]] == tokens]
        if len(found) > 1:
            first, offset = size - len(blanks.encode()), len(before.encode())
            drafted = {offset + start for start, _ in run.starts if first < offset + start < size}
            found.sort(key=lambda pieces: not drafted <= _ends(pieces))
        return found[0][len(tokens) :] if found else None


def _up_to(size: int, pieces: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The pieces of the first so many bytes; nothing where none ends there."""
    for count, end in enumerate(itertools.accumulate(each for _, each in pieces), 1):
        if end >= size:
            return pieces[:count] if end == size else []
    return []


def _ends(pieces: list[tuple[int, int]]) -> set[int]:
    return set(itertools.accumulate(size for _, size in pieces))


class _Answer:
    """Target tokens so far."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.probs: list[float] = []

    def add(self, token: int, prob: float) -> None:
        self.ids.append(token)
        self.probs.append(prob)


class _Run:
    """Drafted text up to a marker.

    Attributes:
        known: what it has to begin with: bytes that the target has written already.
        written: its bytes.
        starts: where in them each drafted token begins, and its probability.
        first: it goes on behind the text.
    """

    def __init__(self, known: bytes, *, bare: bool, first: bool = True) -> None:
        self.known, self.first = known, first
        self.written = bytearray()
        self.starts: list[tuple[int, float]] = []
        self._bare = bare

    def add(self, written: bytes, prob: float, *, without_blank: bool) -> None:
        """``without_blank``: a blank that begins a text is not part of it."""
        self.starts.append((len(self.written), prob))
        if self._bare and without_blank and len(self.starts) == 1:
            written = written.removeprefix(b" ")
        self.written += written


def _characters(written: bytearray) -> bytes:
    """As far as it consists of whole characters."""
    try:
        written.decode()
    except UnicodeDecodeError as error:
        return bytes(written[: error.start])
    return bytes(written)
