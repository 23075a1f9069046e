"""One call of a model, as every reader hands it on."""

from __future__ import annotations

from dataclasses import dataclass

from suffixsvc.types import TokenArray

__all__ = ["Content", "LogCall"]

#: what was written or asked: text, or int32[n] token ids
Content = str | TokenArray


@dataclass(frozen=True, slots=True)
class LogCall:
    """One model call: what it was told, what it wrote.

    Attributes:
        response: what the model wrote, as text or as int32[n] token ids; n may be 0.
        prompt: what stood before it, as text or as int32[m]; empty where the log does not say.
        agent, session, model, kind: who wrote it, in which conversation, with which model, what class of
            text it is; "" where the log does not say.
        time: seconds since the epoch, or None.
        tokenizer: fingerprint of the tokenizer that the ids belong to; "" for texts, and where unknown.
    """

    response: Content
    prompt: Content = ""
    agent: str = ""
    session: str = ""
    model: str = ""
    kind: str = ""
    time: float | None = None
    tokenizer: str = ""
