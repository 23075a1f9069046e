"""Incremental parser of a model's text into content and calls of tools.

    parser = ToolCallParser(ToolFormat.HERMES, tools)
    for text in stream:
        deltas = parser.feed(text)
    deltas = parser.finish()

These are calls:

- in the model's own format, after its marker: a call of a known tool whose arguments are a JSON object
- without a marker: a JSON object {"name", "arguments"} that names a known tool and whose arguments fit its
  schema, at the start of a line, in a fence of code (```json) or in a list. Llama 3 writes its calls so.

Everything else is content, byte for byte. White space next to calls that belongs to the format is dropped:
all before the first one if there is no content, a newline between content and call, all between calls.

A call is held back until it is complete, since it may turn out to be content. A parser for text that a
grammar binds to calls (``bound``) passes on the arguments as they arrive.

A text that was found to be content is not searched again: each character is examined a constant number of
times. The result does not depend on how the text was split.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable
from typing import Final

from suffixsvc_openai.tools.call_body import CallBody, Verdict
from suffixsvc_openai.tools.definitions import ToolSet
from suffixsvc_openai.tools.deltas import ArgumentsDelta, CallStart, ContentDelta, Delta
from suffixsvc_openai.tools.formats import SYNTAX, ToolFormat
from suffixsvc_openai.tools.schema_check import SchemaChecks

_FENCES: Final = ("```json\n", "```\n")
#: what begins a call without a marker
_BARE: Final = ("{", "[", *_FENCES)
_SPACE: Final = " \t\r\n"


def new_call_id() -> str:
    """Return a random id of a call."""
    return f"call_{secrets.token_hex(12)}"


class ToolCallParser:
    """Parser of one answer.

    Args:
        tool_format: of the model (:func:`suffixsvc_openai.tools.formats.format_of`).
        tools: known tools.
        bound: a grammar binds the text to calls (:mod:`suffixsvc_openai.tools.grammar`).
        bare: objects without a marker may be calls; otherwise only those of a format without markers may.
        new_id: makes the ids of calls.

    Attributes:
        calls: number of calls so far.
        cut: the last one is not complete (yet): its last brace is missing.
        work: characters that were examined, each time counted; for tests.
    """

    def __init__(
        self,
        tool_format: ToolFormat,
        tools: ToolSet,
        *,
        bound: bool = False,
        bare: bool = True,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self.calls = 0
        self.work = 0
        self._syntax = SYNTAX[tool_format]
        self._tools = tools
        self._checks = SchemaChecks()
        self._bound = bound
        self._bare = _BARE if bare or not self._syntax.marker else ()
        self._new_id = new_id
        firsts = {opener[0] for opener in (*self._syntax.openers, *self._bare)}
        self._interesting = re.compile(f"[{re.escape(''.join(sorted(firsts)))}]")
        self._state: Callable[[str, int], int] = self._content
        self._deltas: list[Delta] = []
        self._spaces: list[str] = []  # white space at the end of the content, which a call may drop
        self._has_content = False
        self._line_start = True
        self._held: list[str] = []  # text that may turn out to belong to a call
        self._match = ""  # text that may become one of:
        self._possible: list[str] = []
        # the calls after one opener
        self._marked = False
        self._listed = False
        self._closers: list[str] = []
        self._open = False
        self._body: CallBody | None = None
        self._started = False  # the call of the body was passed on

    @property
    def cut(self) -> bool:
        """See the class."""
        return self._started

    def feed(self, text: str) -> list[Delta]:
        """Take a part of the text; return what is known by it."""
        at = 0
        while at < len(text):
            end = self._state(text, at)
            self.work += end - at + 1
            at = end
        return self._taken()

    def finish(self) -> list[Delta]:
        """Return what was held back. The parser must not be used afterwards."""
        after = self._state == self._after or self._cut_closer()
        if self._bound or self._started or (after and not "".join(self._held).strip(_SPACE)):
            self._held, self._match = [], ""
        self._reject()
        if not self._bound and (self._has_content or not self.calls):
            self._flush_spaces()
        return self._taken()

    def _cut_closer(self) -> bool:
        """Whether the text ends within the text that closes a call."""
        return bool(self._match) and any(one.startswith(self._match) for one in self._closers)

    def _taken(self) -> list[Delta]:
        """Return the deltas, texts next to each other joined."""
        joined: list[Delta] = []
        texts: list[str] = []
        for delta in self._deltas:
            if isinstance(delta, ContentDelta):
                texts.append(delta.text)
                continue
            if texts:
                joined.append(ContentDelta("".join(texts)))
                texts = []
            joined.append(delta)
        if texts:
            joined.append(ContentDelta("".join(texts)))
        self._deltas = []
        return joined

    # ------------------------------------------------------- states: return the end of what they examined

    def _content(self, text: str, at: int) -> int:
        found = self._interesting.search(text, at)
        end = found.start() if found else len(text)
        self._say(text[at:end])
        if found is None:
            return end
        openers = (*self._syntax.openers, *self._bare) if self._line_start else self._syntax.openers
        if not self._expect(openers, text[end]):
            self._say(text[end])
            return end + 1
        return end

    def _expect(self, texts: Iterable[str], first: str) -> bool:
        """Examine the text from now on for one of several texts; False if none begins like it."""
        self._match, self._possible = "", [one for one in texts if one[0] == first]
        if self._possible:
            self._state = self._matching
        return bool(self._possible)

    def _matching(self, text: str, at: int) -> int:
        match = self._match + text[at]
        possible = [one for one in self._possible if one.startswith(match)]
        if possible:
            self._match, self._possible = match, possible
            if possible == [match] or match in self._closers:
                self._matched()
            return at + 1
        if self._match in self._possible:  # "[", which no marker became
            self._matched()
            return at
        return self._reject(at)

    def _matched(self) -> None:
        """Take an opener or a closer."""
        match, self._match = self._match, ""
        if match in self._closers:
            del self._closers[: self._closers.index(match) + 1]
            self._open = bool(self._closers)
            self._held = []
            self._state = self._after
            return
        if not (match == "{" and self._open):  # not one more call after the same opener
            self._marked = match in self._syntax.openers
            self._closers = [*self._syntax.closers] if self._marked else ["```"] if match in _FENCES else []
            self._listed = False
            self._open = True
        if match == "{":
            self._begin(named=False)
            self._in_body(match, 0)
            return
        self._held.append(match)
        self._state = self._before_call
        if match == "[":
            self._list()

    def _list(self) -> None:
        self._listed = True
        self._closers.insert(0, "]")

    def _before_call(self, text: str, at: int) -> int:
        """White space and the start of a list, then a call."""
        char = text[at]
        if char in _SPACE or (char == "[" and not self._listed):
            if char == "[":
                self._list()
            self._held.append(char)
            return at + 1
        named = self._marked and self._syntax.named and not self._listed
        if char == "{":
            self._begin(named=False)
        elif named and (char.isalnum() or char in "_.-"):
            self._begin(named=True)
        else:
            return self._reject(at)
        return at

    def _begin(self, *, named: bool) -> None:
        marked = self._marked or self._bound
        self._body = CallBody(
            self._tools, named=named, marked=marked, stream=self._bound, checks=self._checks
        )
        self._state = self._in_body

    def _in_body(self, text: str, at: int) -> int:
        body = self._body
        assert body is not None  # noqa: S101  # set with the state
        end = body.feed(text, at)
        self._held.append(text[at:end])
        if body.streamed:
            self._start(body.name)
            self._deltas.append(ArgumentsDelta(self.calls - 1, body.streamed))
            body.streamed = ""
        if body.verdict is Verdict.CONTENT:
            if self._started:  # what was passed on is not content as well
                self._held = []
                self._started = False
            return self._reject(end)
        if body.call is not None:
            if not self._started:
                self._start(body.call.name)
                self._deltas.append(ArgumentsDelta(self.calls - 1, body.call.arguments))
            self._started = False
            self._held = []
            self._state = self._after
        return end

    def _after(self, text: str, at: int) -> int:
        """White space, separators and closers after a call, then another call or content."""
        char = text[at]
        if char in _SPACE or char in self._syntax.separators:
            self._held.append(char)
            return at + 1
        if char == "}" and self._body is not None and self._body.doubled:
            self._body = None
            return at + 1
        # an object after the same opener is one more call, also if bare ones are not
        bare = self._bare or (("{",) if self._open else ())
        if not self._expect((*self._closers, *self._syntax.openers, *bare), char):
            return self._reject(at)
        return at

    # ------------------------------------------------------------------------------------------- results

    def _start(self, name: str) -> None:
        """Pass on the start of a call, once."""
        if self._started:
            return
        self._started = True
        spaces = "".join(self._spaces)
        self._spaces = []
        if self._has_content and spaces:
            kept = spaces.removesuffix("\n") if self._syntax.newline else spaces
            self._deltas += [ContentDelta(kept)] if kept else []
        self._deltas.append(CallStart(self.calls, self._new_id(), name))
        self.calls += 1

    def _reject(self, at: int = 0) -> int:
        """Make the held text content."""
        held = "".join([*self._held, self._match])
        self._held, self._match = [], ""
        self._closers, self._open = [], False
        self._state = self._content
        self._say(held)
        return at

    def _say(self, text: str) -> None:
        if not text:
            return
        head = text.rstrip(_SPACE)
        if head:
            self._flush_spaces()
            self._deltas.append(ContentDelta(head))
            self._has_content = True
        if len(head) < len(text):
            self._spaces.append(text[len(head) :])
        self._line_start = text.endswith("\n") if self._has_content else True

    def _flush_spaces(self) -> None:
        if self._spaces:
            self._deltas.append(ContentDelta("".join(self._spaces)))
            self._spaces = []
