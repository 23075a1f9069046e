"""``truncation: "auto"``: a conversation that leaves no room for an answer loses its oldest turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from suffixsvc_openai.chat.turn import ChatTurn
from suffixsvc_openai.engine.plans import Prompt


def truncated_prompt(
    prompt_of: Callable[[ChatTurn], Prompt], turn: ChatTurn, context: int, answer: int | None
) -> Prompt:
    """Return the prompt of a turn, without the oldest messages if it leaves no room for the answer.

    What is left begins with a message of the user, besides system messages, so that calls keep their results.
    The last message of the user is never dropped: the prompt may still be too long.

    Args:
        prompt_of: makes a prompt, which is the shorter the more messages are dropped.
        turn: the whole conversation.
        context: tokens of a prompt and its answer together.
        answer: tokens to leave for the answer, a quarter of the context at most; None for that.
    """
    room = context - min(answer or context, context // 4)
    found = prompt_of(turn)
    if len(found.token_ids) <= room:
        return found
    starts = [i for i, message in enumerate(turn.messages) if message["role"] == "user"][1:]
    low, high = 0, len(starts)
    while low < high:  # the first start that fits is among starts[low:high], if any does
        middle = (low + high) // 2
        prompt = prompt_of(_from(turn, starts[middle]))
        if len(prompt.token_ids) <= room:
            found, high = prompt, middle
        else:
            low = middle + 1
            if low == len(starts):  # the shortest one, which may leave less room
                found = prompt
    return found


def _from(turn: ChatTurn, start: int) -> ChatTurn:
    kept = [message for message in turn.messages[:start] if message["role"] in ("system", "developer")]
    return replace(turn, messages=[*kept, *turn.messages[start:]])
