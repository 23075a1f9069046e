"""Reasoning that models write before their answer: ``<think>``, text, ``</think>``.

Some templates end the prompt with ``<think>``, so that the text begins within. White space next to the tags
is dropped.
"""

from __future__ import annotations

import enum
from typing import Final

OPEN: Final = "<think>"
CLOSE: Final = "</think>"
_SPACE: Final = " \t\r\n"


class _Place(enum.Enum):
    START = enum.auto()  # it may begin
    WITHIN = enum.auto()
    AFTER = enum.auto()  # white space is dropped
    ANSWER = enum.auto()


class ReasoningSplit:
    """Splits the text of one answer into reasoning and the rest, as it arrives.

    Args:
        opened: the prompt ends with the tag.
    """

    def __init__(self, *, opened: bool) -> None:
        self._place = _Place.WITHIN if opened else _Place.START
        self._held = ""  # text that may belong to a tag, or be white space next to one
        self._begun = False  # there was reasoning

    def feed(self, text: str) -> tuple[str, str]:
        """Take a part of the text; return the parts of reasoning and answer that are known by it."""
        text, self._held = self._held + text, ""
        reasoning = ""
        if self._place is _Place.START:
            head = text.lstrip(_SPACE)
            if OPEN.startswith(head[: len(OPEN)]) and len(head) < len(OPEN):
                self._held = text
                return "", ""
            opened = head.startswith(OPEN)
            self._place = _Place.WITHIN if opened else _Place.ANSWER
            text = head.removeprefix(OPEN) if opened else text
        if self._place is _Place.WITHIN:
            reasoning, closed, text = text.partition(CLOSE)
            if closed:
                reasoning = reasoning.rstrip(_SPACE)
                self._place = _Place.AFTER
            else:
                end = _end_of_certain(reasoning)
                reasoning, self._held = reasoning[:end], reasoning[end:]
            if not self._begun:
                reasoning = reasoning.lstrip(_SPACE)
                self._begun = bool(reasoning)
        if self._place is _Place.AFTER:
            text = text.lstrip(_SPACE)
            self._place = _Place.ANSWER if text else _Place.AFTER
        return reasoning, text

    def finish(self) -> tuple[str, str]:
        """Return what was held back, at the end of the text."""
        held = self._held
        return (held.rstrip(_SPACE), "") if self._place is _Place.WITHIN else ("", held)


def _end_of_certain(text: str) -> int:
    """Return the length of the text that is reasoning whatever follows."""
    for size in range(min(len(text), len(CLOSE) - 1), 0, -1):
        if CLOSE.startswith(text[-size:]):
            text = text[:-size]
            break
    return len(text.rstrip(_SPACE))
