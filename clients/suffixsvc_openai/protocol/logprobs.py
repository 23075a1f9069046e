"""Log probabilities of tokens in the forms of OpenAI's chat and text completions.

A token need not be whole characters. ``bytes`` of a chat's token are exact; as text it is spelled with the
escapes ``\\xf0\\x9f`` that OpenAI's API uses, in text completions after ``bytes:``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

#: logarithm of a probability of 0, which JSON cannot express; OpenAI's value
_IMPOSSIBLE: Final = -9999.0


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token with its log probability.

    Attributes:
        data: its bytes.
        offset: characters of the text before it, whole ones.
        logprob: its log probability; None for the first token of a prompt.
        top: the most probable tokens at its position, in order, and their log probabilities.
    """

    data: bytes
    offset: int
    logprob: float | None
    top: tuple[tuple[bytes, float], ...] = ()


def chat_logprobs(tokens: Sequence[ScoredToken] | None) -> dict[str, Any] | None:
    """Return ``logprobs`` of a chat's choice; None if they were not asked for."""
    if tokens is None:
        return None
    content = [
        {
            **_entry(token.data, token.logprob),
            "top_logprobs": [_entry(data, logprob) for data, logprob in token.top],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Sequence[ScoredToken] | None) -> dict[str, Any] | None:
    """Return ``logprobs`` of a text completion's choice; None if they were not asked for.

    ``top_logprobs`` of a token are an object by text, which has the token itself too, as OpenAI's has. Of
    tokens with the same text, it has the most probable one.
    """
    if tokens is None:
        return None
    return {
        "tokens": [_text(token.data, "bytes:") for token in tokens],
        "token_logprobs": [None if token.logprob is None else _finite(token.logprob) for token in tokens],
        "top_logprobs": [_by_text(token) for token in tokens],
        "text_offset": [token.offset for token in tokens],
    }


def _by_text(token: ScoredToken) -> dict[str, float] | None:
    if token.logprob is None:
        return None
    found: dict[str, float] = {}
    for data, logprob in (*token.top, (token.data, token.logprob)):
        found.setdefault(_text(data, "bytes:"), _finite(logprob))
    return found


def _entry(data: bytes, logprob: float | None) -> dict[str, Any]:
    return {
        "token": _text(data),
        "logprob": _finite(logprob if logprob is not None else _IMPOSSIBLE),
        "bytes": list(data),
    }


def _text(data: bytes, mark: str = "") -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return mark + "".join(f"\\x{byte:02x}" for byte in data)


def _finite(logprob: float) -> float:
    return max(logprob, _IMPOSSIBLE)
