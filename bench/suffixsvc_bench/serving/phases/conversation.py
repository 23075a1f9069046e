"""A conversation of many turns: how much of its prompts is computed again.

Each turn's prompt is the whole conversation so far. Its new tokens are those after the last turn's prompt and
answer; all others have been computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from suffixsvc_bench.decode.workload.jobs import read_texts
from suffixsvc_bench.serving.servers.subject import ChatSubject

_TEXTS: Final[dict[str, Any]] = read_texts("conversations")["conversation"][0]
QUESTIONS: Final[tuple[str, ...]] = tuple(_TEXTS["questions"])


@dataclass(frozen=True, slots=True)
class Turn:
    """Tokens of one turn.

    Attributes:
        prompt_tokens: of the whole conversation before the answer.
        cached_tokens: of these, reused from the KV cache.
        tokens: of the answer.
        first_seconds: until the first text.
    """

    prompt_tokens: int
    cached_tokens: int
    tokens: int
    first_seconds: float


@dataclass(frozen=True, slots=True)
class Conversation:
    """The turns of a conversation with one subject."""

    turns: tuple[Turn, ...]

    @property
    def computed(self) -> int:
        """Tokens of prompts that were computed."""
        return sum(turn.prompt_tokens - turn.cached_tokens for turn in self.turns)

    @property
    def new(self) -> int:
        """Tokens of prompts that were new."""
        first = self.turns[0].prompt_tokens
        later = zip(self.turns, self.turns[1:], strict=False)
        return first + sum(turn.prompt_tokens - last.prompt_tokens - last.tokens for last, turn in later)

    @property
    def ratio(self) -> float:
        """Computed tokens over new ones; 1 if nothing is computed twice."""
        return self.computed / self.new if self.new > 0 else 0.0


def run_conversation(
    subject: ChatSubject, questions: Sequence[str], max_tokens: int, on_turn: Callable[[int], None]
) -> Conversation:
    """Ask the questions one after the other, with all earlier ones and their answers before them.

    Args:
        max_tokens: of an answer.
        on_turn: called before each question with its number.

    Raises:
        ServiceUnavailableError: the server refuses or fails.
    """
    subject.restart()
    messages = [{"role": "system", "content": _TEXTS["system"]}]
    turns = []
    for number, question in enumerate(questions):
        on_turn(number)
        messages.append({"role": "user", "content": question})
        reply = subject.chat(messages, max_tokens)
        messages.append({"role": "assistant", "content": reply.text})
        turns.append(Turn(reply.prompt_tokens, reply.cached_tokens, reply.tokens, reply.first_seconds))
    return Conversation(tuple(turns))
