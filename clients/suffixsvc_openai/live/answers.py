"""An answer as the page shows it: its text, token by token with the source of each, and how it went."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any, Final

from suffixsvc.types import DraftSource
from suffixsvc_driver.decode.detokenize_stream import DetokenizeStream
from suffixsvc_driver.decode.generation import Result
from suffixsvc_driver.decode.requests import Outcome
from suffixsvc_driver.drafts.events import FinishReason
from suffixsvc_openai.engine.observer import Progress
from suffixsvc_openai.engine.plans import Plan
from suffixsvc_openai.live.numbers import Numbers

#: tokens of an answer whose text is kept, the last ones
KEPT_TOKENS: Final = 2048
#: steps whose counts are read at once, so that a viewer who comes late does not delay others
_STEPS_AT_ONCE: Final = 500
#: tokens of the end of a prompt that are shown
_PROMPT_TOKENS: Final = 96
#: state of an answer in the queue
WAITING: Final = "waiting"
#: characters of a name or a label
_NAME_CHARACTERS: Final = 80


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Bytes of every token, and the tokens without text."""

    texts: Callable[[int], bytes]
    eog_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for, as far as it is shown.

    Attributes:
        principal, namespace, agent: who asked.
        prompt_tokens: tokens of the prompt.
        prompt_end: the last ones; empty if the text is not shown.
        stops: texts that end the answer.
        has_text: whether prompt and answer are shown.
        drafts: whether anything is drafted.
    """

    principal: str
    namespace: str
    agent: str
    prompt_tokens: int
    prompt_end: tuple[int, ...]
    stops: tuple[str, ...]
    has_text: bool
    drafts: bool

    @classmethod
    def of(cls, plan: Plan) -> Asked:
        """Return what is shown of a plan: not all of it, since ended answers are kept."""
        caller, prompt = plan.caller, plan.prompt_ids
        return cls(
            caller.principal,
            _short(caller.name),
            _short(caller.labels.get("agent", "")),
            len(prompt),
            prompt[-_PROMPT_TOKENS:] if caller.store else (),
            plan.stops,
            caller.store,
            caller.speculate,
        )


@dataclass(slots=True, eq=False)
class Shown:
    """An answer. The feed guards it with its lock; ``progress`` grows in the scheduler's thread.

    Args:
        number: of the answer.
        asked: what was asked for.
        progress: its tokens and steps.
        began: seconds since the epoch.

    Attributes:
        pieces: (DraftSource, text) of the last tokens.
        read: number of pieces before the end of ``pieces``, those that were dropped included.
        numbers: of its steps so far.
        end: how it ended; None before.
        end_number: position of its end among those of its principal, from 1 on.
    """

    number: int
    asked: Asked
    progress: Progress
    began: float
    pieces: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=KEPT_TOKENS), init=False)
    read: int = field(default=0, init=False)
    numbers: Numbers = field(default_factory=Numbers, init=False)
    end: dict[str, Any] | None = field(default=None, init=False)
    end_number: int = field(default=0, init=False)
    _complete: bool = field(default=False, init=False)  # everything is in pieces
    _stream: DetokenizeStream | None = field(default=None, init=False)
    _tokens: int = field(default=0, init=False)  # of the progress that are in pieces
    _cut: int = field(default=0, init=False)  # tokens before the progress that are not in pieces
    _steps: int = field(default=0, init=False)  # of the progress that are in numbers

    @property
    def state(self) -> str:
        """``waiting`` in the queue, ``prompt``, ``writing``, or the reason of its end."""
        if self.end is not None:
            return str(self.end["reason"])
        if self.progress.sources:
            return "writing"
        ticket = self.progress.ticket
        return WAITING if ticket is None or ticket.running is None else "prompt"

    @property
    def tokens(self) -> int:
        """Tokens so far."""
        return int(self.end["tokens"]) if self.end is not None else len(self.progress.sources)

    def refresh(self, vocabulary: Vocabulary) -> None:
        """Read the new tokens and steps."""
        if self._complete:
            return
        if self._cut:
            self._forget_text(self._cut)
            self._cut = 0
        progress = self.progress
        steps = progress.steps[self._steps : self._steps + _STEPS_AT_ONCE]
        self._steps += len(steps)
        self.numbers.add_steps(steps)
        if self.asked.has_text:
            count = len(progress.sources)  # the last one to be appended
            beyond = count - self._tokens - KEPT_TOKENS
            if beyond > 0:  # later tokens would replace them at once
                self._tokens += beyond
                self._forget_text(beyond)
            tokens = progress.token_ids[self._tokens : count]
            sources = progress.sources[self._tokens : count]
            self._tokens = count
            self._read(tokens, sources, vocabulary)
        if self.end is not None:
            self._complete_text(vocabulary)

    def _forget_text(self, count: int) -> None:
        """Forget the text so far, and the next ``count`` tokens."""
        self.read += count
        self.pieces.clear()
        self._stream = None

    def _read(self, tokens: array[int], sources: bytearray, vocabulary: Vocabulary) -> None:
        stream = self._opened(vocabulary)
        for token, source in zip(tokens, sources, strict=True):
            for piece in stream.add((token,), (source,)):
                self._append(piece.source, piece.text)

    def _opened(self, vocabulary: Vocabulary) -> DetokenizeStream:
        if self._stream is None:
            self._stream = DetokenizeStream(vocabulary.texts, vocabulary.eog_ids, self.asked.stops)
        return self._stream

    def _append(self, source: int, text: str) -> None:
        self.pieces.append((source, text))
        self.read += 1

    def _complete_text(self, vocabulary: Vocabulary) -> None:
        """Show the text that was held back, and free what is no longer needed."""
        if self.asked.has_text:
            for piece in self._opened(vocabulary).finish():
                self._append(piece.source, piece.text)
        self.progress, self._stream, self._complete = Progress(), None, True

    def finish(self, outcome: Outcome, end_number: int) -> None:
        """Record the end, and keep what has not been read of the last tokens."""
        rest = Progress()
        if self.asked.has_text:
            # the pieces are left to refresh: a viewer may be reading them
            self._cut = max(0, len(self.progress.sources) - self._tokens - KEPT_TOKENS)
            rest.token_ids.extend(self.progress.token_ids[self._tokens + self._cut :])
            rest.sources.extend(self.progress.sources[self._tokens + self._cut :])
        self.end, self.end_number = _end_of(outcome, len(self.progress.sources)), end_number
        self.progress, self._tokens, self._steps = rest, 0, 0
        self.numbers = Numbers()

    def describe(self, vocabulary: Vocabulary) -> dict[str, Any]:
        """Return what does not change."""
        asked = self.asked
        found: dict[str, Any] = {
            "id": self.number,
            "namespace": asked.namespace,
            "agent": asked.agent,
            "prompt_tokens": asked.prompt_tokens,
            "began": round(self.began, 1),
            "has_text": asked.has_text,
            "drafts": asked.drafts,
        }
        if asked.has_text:
            tail = b"".join(map(vocabulary.texts, asked.prompt_end))
            found["prompt"] = tail.decode("utf-8", "replace")
        return found


def source_name(source: int) -> str:
    """Return the name of a source on the page."""
    return DraftSource(source).name


def _short(text: str) -> str:
    return text if len(text) <= _NAME_CHARACTERS else f"{text[: _NAME_CHARACTERS - 1]}…"


def _end_of(outcome: Outcome, tokens: int) -> dict[str, Any]:
    if not isinstance(outcome, Result):
        cancelled = isinstance(outcome.error, CancelledError)
        return {"reason": str(FinishReason.CANCELLED) if cancelled else "failed", "tokens": tokens}
    return {
        "reason": str(outcome.finish),
        "tokens": len(outcome.token_ids),
        "steps": outcome.stats.steps,
        "drafted": outcome.stats.drafted,
        "accepted": outcome.stats.accepted,
        "reused": outcome.prefill.reused,
        "prefill_seconds": round(outcome.prefill_seconds, 3),
        "decode_seconds": round(outcome.decode_seconds, 3),
        "sources": {source_name(each): outcome.sources.count(each) for each in sorted(set(outcome.sources))},
    }
