"""What retokenising asks of a tokenizer, and texts cut with it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from suffixsvc.errors import VocabularyMismatchError
from suffixsvc_driver.vocabulary import Vocabulary

__all__ = ["Cutter", "TextTokenizer", "puts_blank_in_front"]


class TextTokenizer(Protocol):
    """Texts to token ids. Not asked from several threads at once."""

    @property
    def vocabulary(self) -> Vocabulary:
        """With the texts of all ids: what stands in ``texts[id]`` is what the id writes."""

    @property
    def markers(self) -> Mapping[int, bytes]:
        """Control tokens (of chat templates, say) and how they are spelled."""

    @property
    def ends(self) -> Sequence[int]:
        """Ids that end a generation, the usual one first."""

    def encode(self, text: str, begins: bool) -> list[int]:
        """Token ids of a text, without any in front or behind; markers that it spells out are plain text.

        Args:
            begins: nothing stands in front of it, or a marker; some tokenizers write a blank there, which
                the ids then stand for as well. Otherwise the text goes on, and the ids stand for it alone.
        """


class Cutter:
    """Cuts texts with a tokenizer.

    Args:
        tokenizer: to cut with.
        spelled: markers of it that are read as such where a text spells them out: those that the vocabulary
            the text comes from has not, and cannot say otherwise.
        leaves_out: characters that no token stands for are left out; their bytes count as the token's in
            front of them. (Small vocabularies lack some control characters.) Otherwise they are an error.
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
        """Ids, and how many bytes of the text each stands for.

        Args:
            begins: as :meth:`TextTokenizer.encode` has it.

        Raises:
            VocabularyMismatchError: the tokenizer does not keep this text as it is.
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
                "a tokenizer does not keep a text as it is (rule 'round-trip')",
                rule="round-trip",
                expected=repr(text[:40]),
                got=repr(b"".join(self._texts[each] for each in self._tokenizer.encode(text, begins))[:40]),
                remedy="Models with such a tokenizer cannot draft through text.",
            )
        return pieces

    def _kept(self, text: str, begins: bool) -> list[tuple[int, int]] | None:
        """None where the ids do not stand for the text."""
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


def puts_blank_in_front(tokenizer: TextTokenizer) -> bool:
    """Whether it writes a blank in front of a text that begins."""
    ids = tokenizer.encode("a", True)
    return bool(ids) and tokenizer.vocabulary.texts[ids[0]].startswith(b" ")


def _is_text(spelling: bytes) -> bool:
    """Whether a marker can be spelled out in a text at all."""
    try:
        return bool(spelling.decode())
    except UnicodeDecodeError:
        return False
