"""Incremental scanner of one JSON object: its end, the members of its first level, and the first character
that no JSON object has at its place.

The scanner examines each character once. It checks strings as far as their escapes, and brackets, colons and
commas; numbers and names it takes as runs of characters. The caller parses the text of a complete object.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from typing import Final

#: deeper values are refused, as the recursive parser of Python would further down
_MAX_DEPTH: Final = 128
_SPACE: Final = " \t\n\r"
_IN_STRING: Final = re.compile(r'[^"\\\x00-\x1f]+')
_SCALAR: Final = re.compile(r"[-+.0-9A-Za-z]+")
_SPACES: Final = re.compile(r"[ \t\n\r]+")
_ESCAPED: Final = '"\\/bfnrtu'


class Event(enum.Enum):
    """What the last character completed."""

    #: a key of the first level: :attr:`JsonScanner.key`
    KEY = enum.auto()
    #: the next character begins the value of that key
    VALUE_START = enum.auto()
    #: the value of that key: :attr:`JsonScanner.value`
    VALUE_END = enum.auto()
    #: the object
    DONE = enum.auto()
    #: none: the next character cannot be part of an object
    FAILED = enum.auto()


class JsonScanner:
    """Scanner of one object, which the first character must begin.

    Attributes:
        position: characters that were scanned.
        key: start and end of the last key of the first level, quotes included.
        value: start and end of the last value of the first level.
    """

    def __init__(self) -> None:
        self.position = 0
        self.key = self.value = (0, 0)
        self._start = 0
        self._stack: list[str] = []
        self._state: Callable[[str, int], tuple[int, Event | None]] = self._value_start
        self._is_key = False

    def feed(self, text: str, at: int) -> tuple[int, Event | None]:
        """Scan ``text`` from ``at`` to the next event.

        Returns:
            Position of the first character that was not scanned, and the event; None at the end of the text.
        """
        event = None
        while event is None and at < len(text):
            end, event = self._state(text, at)
            self.position += end - at
            at = end
        return at, event

    # Each state returns the new position and an event, possibly without progress but for a new state.

    def _value_start(self, text: str, at: int) -> tuple[int, Event | None]:
        char = text[at]
        if char in _SPACE and self._stack:
            return self._spaces(text, at)
        scalar = char == '"' or _SCALAR.match(char) is not None
        if not (scalar or char in "{[") or len(self._stack) == _MAX_DEPTH or not (self._stack or char == "{"):
            return at, Event.FAILED
        if len(self._stack) == 1 and self._start == 0:  # once
            self._start = self.position
            return at, Event.VALUE_START
        if scalar:
            self._is_key = False
            self._state = self._string if char == '"' else self._scalar
            return at + (char == '"'), None
        self._stack.append(char)
        self._state = self._first_key if char == "{" else self._first_item
        return at + 1, None

    def _first_item(self, text: str, at: int) -> tuple[int, Event | None]:
        if text[at] == "]":
            return self._closed(at)
        if text[at] in _SPACE:
            return self._spaces(text, at)
        self._state = self._value_start
        return at, None

    def _first_key(self, text: str, at: int) -> tuple[int, Event | None]:
        return self._closed(at) if text[at] == "}" else self._next_key(text, at)

    def _next_key(self, text: str, at: int) -> tuple[int, Event | None]:
        if text[at] in _SPACE:
            return self._spaces(text, at)
        if text[at] != '"':
            return at, Event.FAILED
        self._is_key = True
        if len(self._stack) == 1:
            self.key = (self.position, self.position)
        self._state = self._string
        return at + 1, None

    def _string(self, text: str, at: int) -> tuple[int, Event | None]:
        run = _IN_STRING.match(text, at)
        if run:
            return run.end(), None
        if text[at] == "\\":
            self._state = self._escape
            return at + 1, None
        if text[at] != '"':
            return at, Event.FAILED
        if not self._is_key:
            return at + 1, self._ended(1)
        self._state = self._colon
        if len(self._stack) == 1:
            self.key = (self.key[0], self.position + 1)
            return at + 1, Event.KEY
        return at + 1, None

    def _escape(self, text: str, at: int) -> tuple[int, Event | None]:
        if text[at] not in _ESCAPED:
            return at, Event.FAILED
        self._state = self._string
        return at + 1, None

    def _scalar(self, text: str, at: int) -> tuple[int, Event | None]:
        run = _SCALAR.match(text, at)
        if run:
            return run.end(), None
        return at, self._ended(0)

    def _colon(self, text: str, at: int) -> tuple[int, Event | None]:
        if text[at] in _SPACE:
            return self._spaces(text, at)
        if text[at] != ":":
            return at, Event.FAILED
        if len(self._stack) == 1:
            self._start = 0
        self._state = self._value_start
        return at + 1, None

    def _comma(self, text: str, at: int) -> tuple[int, Event | None]:
        char, inner = text[at], self._stack[-1]
        if char in _SPACE:
            return self._spaces(text, at)
        if char == ",":
            self._state = self._next_key if inner == "{" else self._value_start
            return at + 1, None
        if char == ("}" if inner == "{" else "]"):
            return self._closed(at)
        return at, Event.FAILED

    def _closed(self, at: int) -> tuple[int, Event | None]:
        self._stack.pop()
        if not self._stack:
            return at + 1, Event.DONE
        return at + 1, self._ended(1)

    def _ended(self, characters: int) -> Event | None:
        """Note the end of a value, of which some characters are not counted yet."""
        self._state = self._comma
        if len(self._stack) > 1:
            return None
        self.value = (self._start, self.position + characters)
        return Event.VALUE_END

    def _spaces(self, text: str, at: int) -> tuple[int, Event | None]:
        run = _SPACES.match(text, at)
        return (run.end() if run else at), None
