"""Reader of an answer: its text to deltas, as it arrives.

reader = model.reader(turn, prompt_ids)
for text in stream:
    deltas = reader.feed(text)
deltas = reader.finish()
reason = reader.reason("stop")    # "tool_calls" if there are calls
"""

from __future__ import annotations

from collections.abc import Sequence

from suffixsvc_openai.chat.reasoning import ReasoningSplit
from suffixsvc_openai.tools.deltas import ArgumentsDelta, CallStart, ContentDelta, Delta, ReasoningDelta
from suffixsvc_openai.tools.parser import ToolCallParser


class AnswerReader:
    """Reads one answer.

    Args:
        parser: finds the calls; None for text only.
        reasoning: of a model that reasons.
        parallel: pass on all calls, otherwise the first one.
        bound: a grammar binds the text to calls.
        named: the request named the function.

    Attributes:
        calls: number of calls so far.
        cut: the last one that was passed on is not complete.
        bound: as given.
        may_call: whether the text may have calls.
    """

    def __init__(
        self,
        parser: ToolCallParser | None,
        reasoning: ReasoningSplit | None = None,
        *,
        parallel: bool = True,
        bound: bool = False,
        named: bool = False,
    ) -> None:
        self._parser, self._reasoning = parser, reasoning
        self._parallel, self._named = parallel, named
        self.bound, self.may_call = bound, parser is not None

    @property
    def calls(self) -> int:
        """See the class."""
        return self._parser.calls if self._parser is not None else 0

    @property
    def cut(self) -> bool:
        """See the class."""
        return self._parser is not None and self._parser.cut and (self._parallel or self.calls == 1)

    def feed(self, text: str) -> list[Delta]:
        """Take a part of the text; return what is known by it."""
        if self._reasoning is None:
            return self._answer(text)
        reasoning, text = self._reasoning.feed(text)
        return [*_reasoned(reasoning), *self._answer(text)]

    def finish(self) -> list[Delta]:
        """Return what was held back, at the end of the text."""
        reasoning, text = self._reasoning.finish() if self._reasoning is not None else ("", "")
        deltas = [*_reasoned(reasoning), *self._answer(text)]
        return deltas if self._parser is None else [*deltas, *self._passed(self._parser.finish())]

    def reason(self, ended: str) -> str:
        """Return ``finish_reason``.

        OpenAI's is "stop" for a function that the request named, and "tool_calls" for other calls.

        Args:
            ended: how the text ended: "stop" or "length".
        """
        return "tool_calls" if ended == "stop" and self.calls and not self._named else ended

    def _answer(self, text: str) -> list[Delta]:
        if self._parser is None or not text:
            return [ContentDelta(text)] if text else []
        return self._passed(self._parser.feed(text))

    def _passed(self, deltas: Sequence[Delta]) -> list[Delta]:
        if self._parallel:
            return list(deltas)
        calls = (CallStart, ArgumentsDelta)
        return [delta for delta in deltas if not isinstance(delta, calls) or delta.index == 0]


def _reasoned(text: str) -> list[Delta]:
    return [ReasoningDelta(text)] if text else []
