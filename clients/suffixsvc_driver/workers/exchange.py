"""A conversation with one worker on a thread of its own: one question at a time, answers whenever they come.

Whoever asks waits on a condition, gives up after its own time and goes on. A gRPC deadline covers a whole
stream and a socket's timeout one read: neither can bound an answer.
"""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass

from suffixsvc.errors import ServiceUnavailableError, SuffixError
from suffixsvc.interrupts import AtomicCondition
from suffixsvc.types import Draft

__all__ = ["Answer", "Exchange", "Question"]

_JOIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Question:
    """What a session asks.

    Attributes:
        number: rises with every question of a session.
        context: the text, and drafted tokens to go on behind.
        keep: tokens of it that the worker should hold already.
        max_draft_tokens: 0 only has the context computed.
        wait_seconds: how long it may wait for its start; 0 = what the worker finds right.
        timeout_seconds: how long the answer is waited for; 0 = it is not.
        forget: free what is held for the session instead.
        suggested: what may follow the context.
    """

    number: int
    session_id: str
    context: list[int]
    keep: int
    max_draft_tokens: int
    p_min: float
    top_k: int
    wait_seconds: float
    timeout_seconds: float
    forget: bool = False
    suggested: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker answered.

    Attributes:
        draft: anything may be in it that a Draft can hold.
        length: tokens of the context that the worker holds now.
        busy: nothing was done.
        error: why there is no draft.
    """

    draft: Draft
    length: int = 0
    busy: bool = False
    error: SuffixError | None = None


class Exchange(ABC):
    """Used by one thread at a time, :meth:`start` first; the conversation itself runs on another."""

    def __init__(self, name: str) -> None:
        self._questions: queue.SimpleQueue[Question | None] = queue.SimpleQueue()
        self._changed = AtomicCondition()
        self._asked = 0
        self._answer: Answer | None = None
        self._failed = False
        self._error: SuffixError | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def failed(self) -> bool:
        """The conversation is over; start another one."""
        with self._changed:
            return self._failed

    @property
    def error(self) -> SuffixError | None:
        """Why it failed."""
        with self._changed:
            return self._error

    @property
    def outstanding(self) -> bool:
        """The last question was not answered yet."""
        with self._changed:
            return self._asked > 0 and self._answer is None

    def start(self) -> None:
        """Begin. Never blocks."""
        self._thread.start()

    def send(self, question: Question) -> None:
        """Ask; only when nothing is outstanding and the last answer was taken. Never blocks."""
        with self._changed:
            self._asked = question.number
            self._answer = None
        self._questions.put(question)

    def wait(self, seconds: float) -> bool:
        """Wait for the answer to the last question, no longer than this. Whether it came."""
        with self._changed:
            self._changed.wait_for(lambda: self._failed or self._answer is not None, timeout=seconds)
            return self._answer is not None

    def take_answer(self) -> Answer | None:
        """The answer to the last question, if it has come; once."""
        with self._changed:
            answer, self._answer = self._answer, None
            if answer is not None:
                self._asked = 0
            return answer

    @abstractmethod
    def give_up(self) -> None:
        """The next question is there, and the last one is not answered yet. Never blocks."""

    def end(self) -> None:
        """Have the conversation end. Never blocks."""
        self._questions.put(None)
        self._hang_up()

    def close(self) -> None:
        """End the conversation and its thread."""
        self.end()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)

    @abstractmethod
    def _converse(self) -> None:
        """Take questions, deliver answers, until there is None to take. Raises SuffixError."""

    @abstractmethod
    def _hang_up(self) -> None:
        """Make :meth:`_converse` return soon. Any thread, at any time, more than once."""

    def _next_question(self) -> Question | None:
        return self._questions.get()

    def _deliver(self, number: int, answer: Answer) -> None:
        """The answer to that question; dropped where another one was asked since."""
        with self._changed:
            if number == self._asked:
                self._answer = answer
                self._changed.notify_all()

    def _fail(self, error: SuffixError) -> None:
        with self._changed:
            self._failed = True
            self._error = self._error or error
            self._changed.notify_all()

    def _run(self) -> None:
        error: SuffixError = ServiceUnavailableError("the conversation with the draft worker has ended")
        try:
            self._converse()
        except SuffixError as err:
            error = err
        except Exception as err:  # a mistake in here may cost drafts, never a generation
            error = SuffixError("talking to a draft worker failed", got=repr(err)[:200])
        finally:
            self._fail(error)
