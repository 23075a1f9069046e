"""Interface of a tokenizer for conversion between vocabularies, and splitting of texts into tokens."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from suffixsvc.errors import VocabularyMismatchError
from suffixsvc_models.vocabulary import Vocabulary


class TextTokenizer(Protocol):
    """A tokenizer. Used by one thread at a time."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary, with the texts of all ids."""

    @property
    def markers(self) -> Mapping[int, bytes]:
        """Control tokens (of chat templates, say) and their spellings."""

    @property
    def ends(self) -> Sequence[int]:
        """Ids that end a generation, the usual one first."""

    def encode(self, text: str, begins: bool) -> list[int]:
        """Return the token ids of a text, without BOS or EOS; markers that it spells out are plain text.

        Args:
            begins: the text is at the start or follows a marker, where some tokenizers add a blank, which is
                then part of the ids. Otherwise it continues a text, and nothing is added.
        """


class Cutter:
    """Splits texts into tokens.

    Args:
        tokenizer: tokenizer of the ids.
        spelled: markers that are recognised where a text spells them out: those that the source vocabulary
            lacks and cannot express otherwise.
        leaves_out: omit characters that no token represents; their bytes count for the token before them.
            (Small vocabularies lack some control characters.) Otherwise they are an error.
    """

    def __init__(
        self, tokenizer: TextTokenizer, spelled: Iterable[bytes] = (), *, leaves_out: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._leaves_out = leaves_out
        self._texts = tokenizer.vocabulary.texts
        by_text = {text: token for token, text in tokenizer.markers.items()}
        self._spelled = {text.decode(): by_text[text] for text in spelled if _is_text(text)}
        longest_first = sorted(self._spelled, key=len, reverse=True)
        self._marker = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._unknown: dict[str, bool] = {}

    def cut(self, text: str, begins: bool) -> list[tuple[int, int]]:
        """Return the ids, and the number of bytes of the text that each represents.

        Args:
            begins: see :meth:`TextTokenizer.encode`.

        Raises:
            VocabularyMismatchError: the text does not round-trip through the tokenizer.
        """
        if self._marker is None:
            return self._plain(text, begins)
        pieces: list[tuple[int, int]] = []
        at = 0
        for found in self._marker.finditer(text):
            pieces += self._plain(text[at : found.start()], begins)
            pieces.append((self._spelled[found[0]], len(found[0].encode())))
            at, begins = found.end(), True
        return pieces + self._plain(text[at:], begins)

    def _plain(self, text: str, begins: bool) -> list[tuple[int, int]]:
        pieces = self._kept(text, begins)
        if pieces is None and self._leaves_out:
            pieces = self._without_unknown(text, begins)
        if pieces is None:
            raise VocabularyMismatchError(
                "a text does not round-trip through a tokenizer (rule 'round-trip')",
                rule="round-trip",
                expected=repr(text[:40]),
                got=repr(b"".join(self._texts[each] for each in self._tokenizer.encode(text, begins))[:40]),
                remedy="Models with such a tokenizer cannot draft through text.",
            )
        return pieces

    def _kept(self, text: str, begins: bool) -> list[tuple[int, int]] | None:
        """The pieces of a text; None if it does not round-trip."""
        if not text:
            return []
        ids = self._tokenizer.encode(text, begins)
        written, data = [self._texts[token] for token in ids], text.encode()
        whole = b"".join(written)
        lengths = [len(each) for each in written]
        if begins and whole == b" " + data and written[0].startswith(b" "):
            lengths[0] -= 1
        elif whole != data:
            return None
        return list(zip(ids, lengths, strict=True))

    def _without_unknown(self, text: str, begins: bool) -> list[tuple[int, int]] | None:
        pieces: list[tuple[int, int]] = []
        left_out = 0
        for unknown, part in itertools.groupby(text, self._is_unknown):
            written = "".join(part)
            if unknown:
                left_out += len(written.encode())
                continue
            more = self._kept(written, begins)
            if more is None:
                return None
            if left_out and not pieces:
                _grow(more, 0, left_out)
            elif left_out:
                _grow(pieces, -1, left_out)
            pieces += more
            begins, left_out = False, 0
        if left_out and pieces:
            _grow(pieces, -1, left_out)
        return pieces

    def _is_unknown(self, character: str) -> bool:
        found = self._unknown.get(character)
        if found is None:
            found = self._unknown[character] = self._kept(character, True) is None
        return found


def _grow(pieces: list[tuple[int, int]], index: int, size: int) -> None:
    token, before = pieces[index]
    pieces[index] = (token, before + size)


def piece_ends(pieces: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return the offset at which each piece ends -> number of pieces up to it."""
    return {end: count for count, end in enumerate(itertools.accumulate(size for _, size in pieces), 1)}


def adds_leading_blank(tokenizer: TextTokenizer) -> bool:
    """Return whether the tokenizer adds a blank at the start of a text."""
    ids = tokenizer.encode("a", True)
    return bool(ids) and tokenizer.vocabulary.texts[ids[0]].startswith(b" ")


def _is_text(spelling: bytes) -> bool:
    """Whether the spelling of a marker is valid text."""
    try:
        return bool(spelling.decode())
    except UnicodeDecodeError:
        return False
