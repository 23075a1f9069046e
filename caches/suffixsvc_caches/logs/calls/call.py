"""The model call, result of all log readers."""

from __future__ import annotations

from dataclasses import dataclass

from suffixsvc.types import TokenArray

#: a prompt or a response: text, or token ids int32[n]
Content = str | TokenArray


@dataclass(frozen=True, slots=True)
class LogCall:
    """One model call.

    Attributes:
        response: generated text, or its token ids int32[n]; n may be 0.
        prompt: text, or token ids int32[m]; empty if the log does not have it.
        agent, session, model, kind: names of the agent, the session, the model and the class of text; "" if
            the log does not have them.
        time: seconds since the epoch, or None.
        tokenizer: fingerprint of the tokenizer of the ids; "" for texts, or if unknown.
    """

    response: Content
    prompt: Content = ""
    agent: str = ""
    session: str = ""
    model: str = ""
    kind: str = ""
    time: float | None = None
    tokenizer: str = ""
