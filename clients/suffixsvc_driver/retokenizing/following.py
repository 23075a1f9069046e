"""Incremental tokenization, in another vocabulary, of a text that grows and is cut back token by token.

    source ids      S0  S1 S2   S3 M S4   S5          M: a marker, which ends a run of text
    text            ----------------|-----------      bytes, whole characters only
    ids             D0   D1  D2  D3 M D4 D5 D6

Most steps change the last few ids only. The text is tokenized again from an earlier position at which both
vocabularies end a token, preferably the end of a word: tokenizers that split texts into words do not depend
on earlier text. The new ids must begin with the former ids there; otherwise the text is tokenized from
further back, at last from the start of its run.
"""

from __future__ import annotations

import codecs
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from suffixsvc_driver.drafts.chain import common_prefix
from suffixsvc_driver.retokenizing.tokenizer import Cutter, TextTokenizer, adds_leading_blank

#: bytes that are tokenized again, and the factor of each further attempt
_REACH: Final = 64
_REACH_FACTOR: Final = 4
#: former ids that must be reproduced
_AGREEING: Final = 6
#: largest length of a word, in source tokens
_WORD_TOKENS: Final = 12
#: ids that are searched backwards for the end of a word
_MAX_SEARCHED: Final = 128


@dataclass(slots=True)
class _Run:
    """Text between two markers.

    Attributes:
        tokens: number of source ids before it.
        start: its byte offset in the text.
        kept: number of ids before it, without those of the marker.
        ids: number of ids before it, with those of the marker.
    """

    tokens: int
    start: int
    kept: int
    ids: int


@dataclass(slots=True)
class _State:
    tokens: list[int] = field(default_factory=list)
    bounds: list[int] = field(default_factory=list)  # length of the text after each source token
    whole: list[bool] = field(default_factory=list)  # whether that token ends at a character boundary
    text: bytearray = field(default_factory=bytearray)
    ids: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)  # byte offset in the text at which each id ends
    runs: list[_Run] = field(default_factory=list)


class TextFollower:
    """Tokenizes a text of source tokens in another vocabulary, incrementally. Not thread-safe.

    Args:
        source: tokenizer of the text's tokens.
        dest: tokenizer of the wanted ids.
        cutter: splits texts with ``dest``.
    """

    def __init__(self, source: TextTokenizer, dest: TextTokenizer, cutter: Cutter) -> None:
        vocabulary = source.vocabulary
        self._texts = vocabulary.texts
        self._markers = source.markers
        self._bos, self._adds_bos = vocabulary.bos_id, vocabulary.add_bos
        self._blank = adds_leading_blank(source)
        self._cutter = cutter
        self._dest_markers = {text: token for token, text in dest.markers.items()}
        self._first = [dest.vocabulary.bos_id] if dest.vocabulary.add_bos else []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begin()

    @property
    def ids(self) -> list[int]:
        """Ids of the text in the other vocabulary; the caller must not change the list."""
        return self._state.ids

    @property
    def pending(self) -> bytes:
        """Bytes at the end that are not a whole character yet; ``ids`` do not include them."""
        return self._decoder.getstate()[0]

    @property
    def begins(self) -> bool:
        """Whether the text ends with a marker, or is empty."""
        return len(self._state.tokens) == self._state.runs[-1].tokens

    def follow(self, token_ids: Sequence[int]) -> None:
        """Set the text. After an error the text is empty.

        Raises:
            VocabularyMismatchError: the text does not round-trip through the other tokenizer.
            IndexError: ids outside the vocabulary.
        """
        try:
            self._cut_back(common_prefix(self._state.tokens, token_ids))
            for token in token_ids[len(self._state.tokens) :]:
                self._add(int(token))
            self._encode_tail()
        except BaseException:
            self._begin()
            raise

    def last(self, *, word: bool) -> tuple[list[int], str, bool]:
        """Return the last source tokens after the last marker, their text without :attr:`pending`, and
        whether these are all tokens after the marker.

        Args:
            word: return the tokens of the last word; otherwise one token, or those of its first character.
        """
        state, run = self._state, self._state.runs[-1]
        last = len(state.tokens)
        at = max(run.tokens, last - 1)
        while at > run.tokens and not state.whole[at - 1]:
            at -= 1
        if word:
            at = self._word_begins(at, max(run.tokens, last - _WORD_TOKENS))
        start = state.bounds[at - 1] if at > run.tokens else run.start
        return state.tokens[at:], state.text[start:].decode(), at == run.tokens

    def _word_begins(self, at: int, first: int) -> int:
        """The last source token from ``first`` to ``at`` that follows a word; ``first`` if there is none."""
        state = self._state
        while at > first and not (state.whole[at - 1] and self._word_ends_at(state.bounds[at - 1])):
            at -= 1
        return at

    def _begin(self) -> None:
        self._state = _State(runs=[_Run(0, 0, 0, 0)])
        self._decoder.reset()

    def _open(self, token: int) -> None:
        """Add the other vocabulary's BOS, unless the source's tokenizer adds one and this text lacks it."""
        if token == self._bos or not self._adds_bos:
            state = self._state
            state.ids += self._first
            state.ends += [0] * len(self._first)
            state.runs[0].ids = len(self._first)

    def _add(self, token: int) -> None:
        state = self._state
        if not state.tokens:
            self._open(token)
        if token in self._markers:
            self._add_marker(token)
            return
        piece = self._texts[token]
        if self._blank and self.begins:
            piece = piece.removeprefix(b" ")
        state.tokens.append(token)
        state.text += self._decoder.decode(piece).encode()
        state.bounds.append(len(state.text))
        state.whole.append(not self.pending)

    def _add_marker(self, token: int) -> None:
        state = self._state
        state.text += self._decoder.decode(b"", final=True).encode()
        self._encode_tail()
        kept, spelling = len(state.ids), self._markers[token]
        begins = token == self._bos and not state.tokens
        if spelling in self._dest_markers:
            same = self._dest_markers[spelling]
            state.ids += [] if begins and state.ids == [same] else [same]
        elif not begins:  # BOS has no spelling
            state.ids += [each for each, _ in self._cutter.cut(spelling.decode("utf-8", "replace"), True)]
        state.tokens.append(token)
        state.bounds.append(len(state.text))
        state.whole.append(True)
        state.ends += [len(state.text)] * (len(state.ids) - kept)
        state.runs.append(_Run(len(state.tokens), len(state.text), kept, len(state.ids)))

    def _cut_back(self, keep: int) -> None:
        """Remove the source tokens after ``keep``, and earlier ones up to a character boundary."""
        state = self._state
        if keep == len(state.tokens):
            return
        while keep and not state.whole[keep - 1]:
            keep -= 1
        if keep == 0:
            self._begin()
            return
        while state.runs[-1].tokens > keep:
            self._drop_ids(state.runs.pop().kept)
        del state.tokens[keep:], state.bounds[keep:], state.whole[keep:]
        self._decoder.reset()
        del state.text[state.bounds[-1] :]
        # the ids at the new end were computed with other text after them
        count, _ = self._restart(len(state.text) - _REACH)
        self._drop_ids(count)

    def _drop_ids(self, keep: int) -> None:
        del self._state.ids[keep:], self._state.ends[keep:]

    def _encode_tail(self) -> None:
        state, run = self._state, self._state.runs[-1]
        done = state.ends[-1] if len(state.ids) > run.ids else run.start
        if done == len(state.text):
            return
        reach = _REACH
        while True:
            count, at = self._restart(done - reach)
            pieces = self._cutter.cut(state.text[at:].decode(), at == run.start)
            if count == run.ids or self._agree(pieces, count):
                break
            reach *= _REACH_FACTOR
        self._drop_ids(count)
        for each, size in pieces:
            at += size
            state.ids.append(each)
            state.ends.append(at)

    def _agree(self, pieces: list[tuple[int, int]], count: int) -> bool:
        before = self._state.ids[count : count + _AGREEING]
        return len(before) == _AGREEING and [each for each, _ in pieces[:_AGREEING]] == before

    def _restart(self, limit: int) -> tuple[int, int]:
        """The last position up to ``limit`` at which an id and a source token end, after a word if possible:
        the number of ids before it, and its byte offset."""
        state, run = self._state, self._state.runs[-1]
        last = bisect_right(state.ends, limit, run.ids)
        any_place = None
        for count in range(last, max(run.ids, last - _MAX_SEARCHED), -1):
            at = state.ends[count - 1]
            if self._source_ends_at(at):
                if self._word_ends_at(at):
                    return count, at
                any_place = any_place or (count, at)
        return any_place or (run.ids, run.start)

    def _word_ends_at(self, at: int) -> bool:
        """Whether a word ends at ``at``: a letter or digit, then a blank or punctuation. An apostrophe may
        belong to the word before it."""
        before, after = self._state.text[at - 1 : at], self._state.text[at : at + 1]
        return before.isalnum() and after.isascii() and not after.isalnum() and after != b"'"

    def _source_ends_at(self, at: int) -> bool:
        state = self._state
        first = bisect_left(state.bounds, at, state.runs[-1].tokens)
        return first < len(state.bounds) and state.bounds[first] == at and state.whole[first]
