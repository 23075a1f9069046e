"""From tokens to text while they are written: characters of several tokens, texts that end a generation.

A stop text may begin in the middle of a token and end in another, so it is looked for in the bytes. What
could be the beginning of one is held back until it is known: nobody sees half a stop text.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from suffixsvc.errors import InvalidConfigError

__all__ = ["Piece", "StopTexts", "WrittenText"]

#: what a token spells
TokenBytes = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that tokens of one source spell. A character of several tokens belongs to the last of them."""

    text: str
    source: int


class StopTexts:
    """A :data:`suffixsvc_driver.targets.StopRule`: ends a generation where one of these texts was written. Of
    one generation; not thread-safe.

    Args:
        texts: none of them empty; no text at all never ends anything.
        token_bytes: what a token spells.

    Raises:
        InvalidConfigError: an empty text.
    """

    def __init__(self, texts: Sequence[str], token_bytes: TokenBytes) -> None:
        if any(not text for text in texts):
            raise InvalidConfigError("a text to stop at is empty", expected="at least one character")
        self.texts = tuple(text.encode() for text in texts)
        self._token_bytes = token_bytes
        self._longest = max(map(len, self.texts), default=1)
        self._seen = 0
        self._end = b""  # as much of what was written as the beginning of a stop text can take

    def __call__(self, written: Sequence[int]) -> bool:
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
    """Where the first of the wanted texts begins, and which it is: the longest where several begin there."""
    found = [(text.find(each), -len(each), each) for each in wanted if each in text]
    if not found:
        return None
    at, _, which = min(found)
    return at, which


class WrittenText:
    """What a generation wrote, as text, piece by piece.

    Args:
        token_bytes: what a token spells.
        silent_ids: tokens that are not text, as those that end a generation.
        stops: the text ends before the first of these.

    Attributes:
        text: all that was handed out so far.
        stopped_at: the stop text that was met; "" so far.
    """

    def __init__(
        self, token_bytes: TokenBytes, silent_ids: Collection[int] = (), stops: Sequence[str] = ()
    ) -> None:
        self._token_bytes = token_bytes
        self._silent_ids = silent_ids
        self._stops = tuple(text.encode() for text in stops)
        self._held: list[tuple[bytes, int]] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._last_source = 0
        self.text = ""
        self.stopped_at = ""

    def add(self, token_ids: Sequence[int], sources: Sequence[int]) -> list[Piece]:
        """Tokens were written, each with its DraftSource: what can be shown now."""
        for token, source in zip(token_ids, sources, strict=True):
            if not self.stopped_at:
                spelled = b"" if token in self._silent_ids else self._token_bytes(token)
                self._held.append((spelled, source))
                self._look_for_stops()
        return list(self._release(self._safe()))

    def finish(self) -> list[Piece]:
        """Nothing more comes: what was held back, half a character as U+FFFD."""
        pieces = list(self._release(sum(len(part) for part, _ in self._held)))
        rest = self._decoder.decode(b"", final=True)
        if rest:
            self.text += rest
            pieces.append(Piece(rest, self._last_source))
        return pieces

    def _look_for_stops(self) -> None:
        found = find_first(b"".join(part for part, _ in self._held), self._stops)
        if found is None:
            return
        at, which = found
        self.stopped_at = which.decode()
        kept: list[tuple[bytes, int]] = []
        for part, source in self._held:
            kept.append((part[:at], source))
            at -= len(kept[-1][0])
        self._held = kept

    def _safe(self) -> int:
        """Bytes that are no beginning of a stop text, whatever comes."""
        held = b"".join(part for part, _ in self._held)
        if self.stopped_at:
            return len(held)
        longest = max((_overlap(held, stop) for stop in self._stops), default=0)
        return len(held) - longest

    def _release(self, count: int) -> Iterator[Piece]:
        """The next ``count`` bytes as pieces, neighbours of one source together."""
        out: list[Piece] = []
        while self._held and (count > 0 or not self._held[0][0]):
            part, source = self._held.pop(0)
            now, later = part[:count], part[count:]
            count -= len(now)
            if later:
                self._held.insert(0, (later, source))
            text = self._decoder.decode(now)
            self._last_source = source
            if text and out and out[-1].source == source:
                out[-1] = Piece(out[-1].text + text, source)
            elif text:
                out.append(Piece(text, source))
        self.text += "".join(piece.text for piece in out)
        yield from out


def _overlap(text: bytes, stop: bytes) -> int:
    """Length of the longest end of ``text`` that a stop text begins with."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
