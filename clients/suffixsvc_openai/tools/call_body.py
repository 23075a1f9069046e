"""One call of a tool in the text of a model: a JSON object, or ``name[ARGS]`` and an object.

The body examines the text from its first character on, and ends as soon as it is known to be a call or not.

Templates of Qwen 2.5 show calls with doubled outer braces, ``{{"name": .., "arguments": ..}}``, and models
write them so, with one or two braces at the end.
"""

from __future__ import annotations

import enum
import json
import re
from dataclasses import dataclass
from typing import Any, Final

from suffixsvc_openai.tools.definitions import ToolSet
from suffixsvc_openai.tools.json_scanner import Event, JsonScanner
from suffixsvc_openai.tools.schema_check import SchemaChecks

_ARGUMENTS: Final = ("arguments", "parameters")
#: keys of a call that no marker precedes
_KEYS: Final = ("name", "id", "type", "arguments")
#: name, id of the call (which the server replaces), then the arguments
_HEAD: Final = re.compile(r"([A-Za-z0-9_.-]{1,64})(?:\[CALL_ID\][A-Za-z0-9]{1,64})?\[ARGS\]\s*")
_HEAD_CHARACTERS: Final = re.compile(r"[A-Za-z0-9_.\[\]\s-]*")
_MAX_HEAD: Final = 256


class Verdict(enum.Enum):
    """What is known about a body."""

    OPEN = enum.auto()
    CALL = enum.auto()
    #: the next character, or the whole of a complete object, shows that it is content
    CONTENT = enum.auto()


@dataclass(frozen=True, slots=True)
class FoundCall:
    """A complete call; ``arguments`` is JSON text as the model wrote it."""

    name: str
    arguments: str


class CallBody:
    """Parser of one call.

    Args:
        tools: known tools.
        named: the name stands before the arguments.
        marked: a marker precedes it. Without one, the arguments must be there and fit the schema of the tool,
            and no other keys.
        stream: fill ``streamed``.
        checks: of the answer; when they are spent, calls without a marker are content.

    Attributes:
        verdict: of the text so far.
        call: the call, if that is the verdict.
        name: the name, as soon as it is known to be that of a tool; "" before.
        doubled: the first brace was doubled, and one more may follow the object.
        streamed: arguments of the call of ``name`` that were examined since the caller cleared it. The text
            may still turn out to be content.
    """

    def __init__(
        self, tools: ToolSet, *, named: bool, marked: bool, stream: bool, checks: SchemaChecks
    ) -> None:
        self.verdict = Verdict.OPEN
        self.call: FoundCall | None = None
        self.name = ""
        self.streamed = ""
        self.doubled = False
        self._tools = tools
        self._named = named
        self._marked = marked
        self._stream = stream
        self._checks = checks
        self._in_head = named
        self._head = ""
        self._parts: list[str] = []  # of the object
        self._recent: list[str] = []  # of the object, after the member before this one
        self._recent_start = 0
        self._scanner = JsonScanner()
        self._keys: set[str] = set()
        self._key = ""
        self._arguments: str | None = None
        self._streaming = False

    def feed(self, text: str, at: int) -> int:
        """Examine ``text`` from ``at``; return the position of the first character that was not examined: the
        end of the text, unless there is a verdict.
        """
        if self._in_head:
            at = self._feed_head(text, at)
        while at < len(text) and self.verdict is Verdict.OPEN and not self._in_head:
            if text[at] == "{" and self._parts == ["{"] and not (self._named or self.doubled):
                self.doubled = True
                at += 1
                continue
            if self._parts or self._named:
                end, event = self._scanner.feed(text, at)
            else:  # the first brace alone: the next character may be the same
                _, event = self._scanner.feed(text[at], 0)
                end = at + 1
            self._parts.append(text[at:end])
            self._recent.append(text[at:end])
            if self._streaming and self._stream:
                self.streamed += text[at:end]
            at = end
            if event is not None:
                self._take(event, text[at : at + 1])
        return at

    def _feed_head(self, text: str, at: int) -> int:
        run = _HEAD_CHARACTERS.match(text, at)
        end = run.end() if run else at
        self._head += text[at:end]
        if len(self._head) > _MAX_HEAD:
            # the same place, however the text was split
            end -= len(self._head) - _MAX_HEAD
            self.verdict = Verdict.CONTENT
        elif end < len(text):
            head = _HEAD.fullmatch(self._head) if text[end] == "{" else None
            if head is None or head[1] not in self._tools:
                self.verdict = Verdict.CONTENT
            else:
                self.name = head[1]
                self._in_head = False
                self._streaming = True
        return end

    def _take(self, event: Event, following: str) -> None:
        match event:
            case Event.FAILED:
                self.verdict = Verdict.CONTENT
            case Event.KEY if not self._named:
                self._take_key(str(_parsed(self._slice(self._scanner.key))))
            case Event.VALUE_START if not self._named:
                self._streaming = bool(self.name) and self._key == "arguments" and following == "{"
            case Event.VALUE_END:
                self._streaming = self._named
                self._take_value(self._slice(self._scanner.value))
            case Event.DONE:
                self._finish()

    def _take_key(self, key: str) -> None:
        self._key = "arguments" if key in _ARGUMENTS else key
        if self._key in self._keys or not (self._marked or self._key in _KEYS):
            self.verdict = Verdict.CONTENT
        self._keys.add(self._key)

    def _take_value(self, text: str) -> None:
        self._recent, self._recent_start = [], self._scanner.position
        if self._named:
            return
        if self._key == "name":
            name = _parsed(text)
            if isinstance(name, str) and name in self._tools:
                self.name = name
            else:
                self.verdict = Verdict.CONTENT
        elif self._key == "arguments":
            self._arguments = text

    def _finish(self) -> None:
        text = "".join(self._parts)
        arguments = _parsed(text)
        if not self._named and arguments is not None:
            text = self._arguments or ("{}" if self._marked else "")
            arguments = _parsed(text)
            if isinstance(arguments, str):  # JSON in JSON, as some models write it
                text = arguments
                arguments = _parsed(text)
        fits = bool(self.name) and isinstance(arguments, dict)
        if fits and (self._marked or self._tools.fits(self.name, arguments, self._checks)):
            self.call = FoundCall(self.name, text)
        self.verdict = Verdict.CALL if self.call else Verdict.CONTENT

    def _slice(self, span: tuple[int, int]) -> str:
        """Return a part of the current member, which is joined once for its key and once for its value."""
        self._recent = ["".join(self._recent)]
        start = self._recent_start
        return self._recent[0][span[0] - start : span[1] - start]


def _parsed(text: str) -> Any:
    """Return the value of JSON text; None if it is malformed, or has characters without UTF-8."""
    try:
        text.encode()
        return json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError):
        return None


def _refused(name: str) -> None:
    """NaN and Infinity are not JSON."""
    raise ValueError(name)
