"""``truncation: "auto"``: a conversation that leaves no room for an answer loses its oldest messages.

A *round* is a message of the user, or a message of the model with the results of its calls. The conversation
is cut before a round; the user's message of the turn that is cut stays:

    S  u1 (a1 r1) (a2 r2) (a3 r3)  u2 (a4 r4) ..
    S  u1         (a2 r2) (a3 r3)  u2 (a4 r4) ..       cut before a2
    S  u1                 (a3 r3)  u2 (a4 r4) ..       before a3
    S                              u2 (a4 r4) ..       before u2

So a conversation begins with the user, as most templates require, and an agent that runs long after a single
message goes on. Results stay with their calls, also where rounds overlap. System messages are never dropped,
nor is the last message of the user, nor the last round.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Final

from suffixsvc_openai.chat.turn import ChatTurn
from suffixsvc_openai.engine.plans import Prompt

#: characters that a template adds to a message, about
_FRAME: Final = 8
#: characters of a token in the first estimate. Few texts have more, so that less is hardly ever enough
_CHARACTERS: Final = 8
#: a prompt whose unused part of the room is at most 1 / _SPARE is not made longer
_SPARE: Final = 16


def truncated_prompt(
    prompt_of: Callable[[ChatTurn], Prompt], turn: ChatTurn, context: int, answer: int | None
) -> Prompt:
    """Return the prompt of a turn, without its oldest messages if they leave no room for the answer.

    The prompt may still be too long, if what is never dropped is. Few prompts are made: the next cut is
    estimated by the tokens of the last prompt, every other time the range of possible cuts is halved.

    Args:
        prompt_of: makes a prompt, which is the shorter the later the cut.
        turn: the whole conversation.
        context: tokens of a prompt and its answer together.
        answer: tokens to leave for the answer, a quarter of the context at most; None for that.
    """
    room = context - min(answer or context, context // 4)
    cuts = _cuts(turn.messages)
    sizes = _sizes_from(turn.messages, cuts)
    shortest = len(cuts) - 1
    low, high = 0, len(cuts)  # the first cut that fits is among cuts[low:high], if any does
    at = min(_first_within(sizes, room * _CHARACTERS), shortest)
    halve, found = False, None
    while True:
        prompt = prompt_of(_cut(turn, cuts[at]))
        tokens = len(prompt.token_ids)
        if tokens <= room:
            found, high = prompt, at
            if room - tokens <= room // _SPARE:
                return found
        else:
            low = at + 1
        if low >= high:
            return found or prompt  # of the shortest one, which does not fit
        middle, estimate = (low + high) // 2, _first_within(sizes, sizes[at] * room // max(1, tokens))
        at = min(max(low, middle if halve else estimate), high - 1)
        halve = not halve


def _cuts(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the positions before which the conversation may be cut, 0 and those of rounds, in order."""
    apart = _separable(messages)
    cuts, begun = [0], False  # begun: the current turn has a round after its user's message
    for at, message in enumerate(messages):
        if message["role"] == "user":
            # a message without one of the user before it is dropped with what precedes it
            if at and apart[at]:
                cuts.append(at)
            begun = False
        elif message["role"] == "assistant":
            # after the user's message itself, the cut would drop nothing more than the one before it
            if begun and apart[at]:
                cuts.append(at)
            begun = True
    return cuts


def _separable(messages: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Return for each position whether no result after it belongs to a call before it, or the reverse."""
    crossing = [0] * (len(messages) + 1)  # differences of the number of pairs that a position separates
    calls: dict[Any, int] = {}
    early: dict[Any, int] = {}
    for at, message in enumerate(messages):
        for call in message.get("tool_calls") or ():
            calls[call["id"]] = at  # an id may be used again
            first = early.pop(call["id"], at)
            crossing[first + 1] += 1
            crossing[at + 1] -= 1
        if message["role"] == "tool":
            name = message["tool_call_id"]
            call_at = calls.get(name)
            if call_at is None:
                early.setdefault(name, at)
                continue
            crossing[call_at + 1] += 1
            crossing[at + 1] -= 1
    return [not open_pairs for open_pairs in accumulate(crossing[:-1])]


def _sizes_from(messages: Sequence[Mapping[str, Any]], cuts: Sequence[int]) -> list[int]:
    """Return the characters of the messages from each cut on, about."""
    before = [0, *accumulate(_characters(message) for message in messages)]
    return [before[-1] - before[cut] for cut in cuts]


def _characters(message: Mapping[str, Any]) -> int:
    calls = (call["function"] for call in message.get("tool_calls") or ())
    called = sum(len(call["name"]) + len(call["arguments"]) + _FRAME for call in calls)
    return len(message["content"] or "") + called + _FRAME


def _first_within(sizes: Sequence[int], most: int) -> int:
    """Return the index of the first of descending sizes that is at most ``most``."""
    return len(sizes) - bisect_right(sizes[::-1], most)


def _cut(turn: ChatTurn, cut: int) -> ChatTurn:
    """Return a turn without the messages before a cut; see the module for what stays."""
    messages = turn.messages
    if not cut:
        return turn
    keeps = -1  # the user's message of the turn that is cut
    if messages[cut]["role"] != "user":
        keeps = next((at for at in range(cut - 1, -1, -1) if messages[at]["role"] == "user"), -1)
    kept = [
        message
        for at, message in enumerate(messages[:cut])
        if at == keeps or message["role"] in ("system", "developer")
    ]
    return replace(turn, messages=[*kept, *messages[cut:]])
