"""Incremental detokenization with stop strings.

A stop string may begin in the middle of a token and end in another one, so it is searched in the bytes. Text
that could be the beginning of a stop string, or of a character, is held back until the next tokens decide.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from suffixsvc.errors import InvalidConfigError

#: token id -> its bytes
TokenBytes = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of consecutive tokens of one source; a character of several tokens belongs to the last of them."""

    text: str
    source: int


class StopStrings:
    """Stop rule (:data:`suffixsvc_driver.targets.StopRule`) that ends a generation after one of some strings.

    Not thread-safe; a call with fewer tokens than before starts another generation.

    Args:
        texts: the stop strings, not empty; without any the rule never holds.
        token_bytes: bytes of a token.

    Raises:
        InvalidConfigError: an empty string.
    """

    def __init__(self, texts: Sequence[str], token_bytes: TokenBytes) -> None:
        if any(not text for text in texts):
            raise InvalidConfigError("a stop string must have at least one character")
        self.texts = tuple(text.encode() for text in texts)
        self._token_bytes = token_bytes
        self._longest = max(map(len, self.texts), default=1)
        self._seen = 0
        self._end = b""  # end of the text that may begin a stop string

    def __call__(self, written: Sequence[int]) -> bool:
        """Return whether the tokens since the last call complete a stop string."""
        if not self.texts:
            return False
        if len(written) < self._seen:  # another generation
            self._seen, self._end = 0, b""
        fresh = b"".join(self._token_bytes(token) for token in written[self._seen :])
        self._seen = len(written)
        text = self._end + fresh
        self._end = text[max(0, len(text) - self._longest + 1) :]
        return find_first(text, self.texts) is not None


def find_first(text: bytes, wanted: Collection[bytes]) -> tuple[int, bytes] | None:
    """Return the position of the first wanted string and the longest one that begins there."""
    found = [(text.find(each), -len(each), each) for each in wanted if each in text]
    if not found:
        return None
    at, _, which = min(found)
    return at, which


class DetokenizeStream:
    """Text of one generation, piece by piece.

    Args:
        token_bytes: bytes of a token.
        skipped_ids: tokens without text, such as end-of-generation tokens.
        stops: the text ends before the first of these strings.

    Attributes:
        text: all text returned so far.
        stopped_at: the stop string that was found; "" before.
        released: number of tokens whose text was returned; tokens from a stop string on are not counted.
    """

    def __init__(
        self, token_bytes: TokenBytes, skipped_ids: Collection[int] = (), stops: Sequence[str] = ()
    ) -> None:
        self._token_bytes = token_bytes
        self._silent_ids = skipped_ids
        self._stops = tuple(text.encode() for text in stops)
        self._held: list[tuple[bytes, int]] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._last_source = 0
        self.text = ""
        self.stopped_at = ""
        self.released = 0

    def add(self, token_ids: Sequence[int], sources: Sequence[int]) -> list[Piece]:
        """Add emitted tokens, each with its DraftSource; returns the text that is decided."""
        for token, source in zip(token_ids, sources, strict=True):
            if not self.stopped_at:
                data = b"" if token in self._silent_ids else self._token_bytes(token)
                self._held.append((data, source))
                self._find_stop()
        return list(self._release(self._decided_bytes()))

    def finish(self) -> list[Piece]:
        """End the text and return what was held back; an incomplete character becomes U+FFFD."""
        pieces = list(self._release(sum(len(part) for part, _ in self._held)))
        rest = self._decoder.decode(b"", final=True)
        if rest:
            self.text += rest
            pieces.append(Piece(rest, self._last_source))
        return pieces

    def _find_stop(self) -> None:
        found = find_first(b"".join(part for part, _ in self._held), self._stops)
        if found is None:
            return
        at, which = found
        self.stopped_at = which.decode()
        kept: list[tuple[bytes, int]] = []
        for part, source in self._held:
            if at <= 0:
                break
            kept.append((part[:at], source))
            at -= len(part)
        self._held = kept

    def _decided_bytes(self) -> int:
        """Return the number of held bytes that cannot be part of a stop string."""
        held = b"".join(part for part, _ in self._held)
        if self.stopped_at:
            return len(held)
        longest = max((_overlap(held, stop) for stop in self._stops), default=0)
        return len(held) - longest

    def _release(self, count: int) -> Iterator[Piece]:
        """Yield the next ``count`` held bytes as pieces, merging neighbours of the same source."""
        out: list[Piece] = []
        while self._held and (count > 0 or not self._held[0][0]):
            part, source = self._held.pop(0)
            now, later = part[:count], part[count:]
            count -= len(now)
            if later:
                self._held.insert(0, (later, source))
            else:
                self.released += 1
            text = self._decoder.decode(now)
            self._last_source = source
            if text and out and out[-1].source == source:
                out[-1] = Piece(out[-1].text + text, source)
            elif text:
                out.append(Piece(text, source))
        self.text += "".join(piece.text for piece in out)
        yield from out


def _overlap(text: bytes, stop: bytes) -> int:
    """Return the length of the longest suffix of ``text`` that is a proper prefix of ``stop``."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
