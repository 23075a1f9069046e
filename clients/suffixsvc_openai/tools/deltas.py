"""Parts of an answer, as the parser of its text returns them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """Text of the content, which is not empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Text of the reasoning before the answer, which is not empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The start of a call.

    Attributes:
        index: number of the call in the answer, from 0.
        id: of the call, unique.
        name: of a known tool.
    """

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """A part of the arguments of a call, which are JSON text as the model wrote it."""

    index: int
    text: str


Delta = ContentDelta | ReasoningDelta | CallStart | ArgumentsDelta


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A whole call: ``arguments`` is JSON text, unfinished if the answer was cut."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """Content, calls and reasoning of a whole answer."""

    content: str
    calls: tuple[ParsedCall, ...]
    reasoning: str = ""


def assemble(deltas: Iterable[Delta]) -> ParsedAnswer:
    """Join the deltas of a whole answer."""
    content: list[str] = []
    reasoning: list[str] = []
    starts: list[CallStart] = []
    arguments: list[list[str]] = []
    for delta in deltas:
        match delta:
            case ContentDelta(text):
                content.append(text)
            case ReasoningDelta(text):
                reasoning.append(text)
            case CallStart():
                starts.append(delta)
                arguments.append([])
            case ArgumentsDelta(index, text):
                arguments[index].append(text)
    calls = (
        ParsedCall(start.id, start.name, "".join(parts))
        for start, parts in zip(starts, arguments, strict=True)
    )
    return ParsedAnswer("".join(content), tuple(calls), "".join(reasoning))
