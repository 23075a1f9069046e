"""Prompt lookup: copies the continuation of an earlier occurrence of the last tokens in the same call.

The rule is that of transformers (``prompt_lookup_num_tokens``) and of vLLM (``method="ngram"``): the longest
n-gram at the end of the text, max_n down to min_n tokens, that occurred before; of several occurrences the
EARLIEST; up to K tokens that followed it. Nothing is stored between calls.
"""

from __future__ import annotations

from suffixsvc.types import Draft, DraftSource, TokenArray
from suffixsvc_bench.methods.base import Method, MethodSpec, Settings, guess

__all__ = ["SPECS", "PromptLookup"]

_BYTES = 4  # of a token


class PromptLookup(Method):
    """The rule above. Tokens are stored as bytes, so that the search is memmem's."""

    def __init__(self, settings: Settings, max_n: int, min_n: int) -> None:
        self._k = settings.max_draft_tokens
        self._lengths = range(max_n, min_n - 1, -1)
        self._text = bytearray()
        self._peak = 0

    def begin(self, prompt: TokenArray, agent: str) -> None:
        """See :class:`Method`."""
        self._text = bytearray(prompt.astype("<i4").tobytes())

    def draft(self) -> Draft:
        """See :class:`Method`."""
        text = self._text
        length = len(text) // _BYTES
        for n in self._lengths:
            # a match must have a continuation, so it ends before the last token
            if n >= length:
                continue
            at = self._find(bytes(text[-n * _BYTES :]))
            if at >= 0:
                first = (at + n) * _BYTES
                copied = memoryview(bytes(text[first : first + self._k * _BYTES])).cast("i")
                return guess(copied.tolist(), DraftSource.PROMPT_LOOKUP)
        return Draft.empty()

    def _find(self, pattern: bytes) -> int:
        at = -1
        while True:
            at = self._text.find(pattern, at + 1, len(self._text) - _BYTES)
            if at < 0 or at % _BYTES == 0:
                return at // _BYTES if at >= 0 else -1

    def accept(self, token_ids: TokenArray, accepted: int) -> None:
        """See :class:`Method`."""
        self._text += token_ids.astype("<i4").tobytes()

    def end(self) -> None:
        """See :class:`Method`."""
        self._peak = max(self._peak, len(self._text))
        self._text = bytearray()

    def memory_bytes(self) -> int:
        """Bytes of the longest call."""
        return self._peak


SPECS = (
    MethodSpec(
        "prompt-lookup",
        "prompt lookup, transformers",
        "copies up to 10 tokens that followed an n-gram of 2 or 1 tokens in the call's own text",
        10,
        lambda settings: PromptLookup(settings, max_n=2, min_n=1),
        memory="the longest call's tokens",
    ),
    MethodSpec(
        "prompt-lookup-vllm",
        "prompt lookup, vLLM",
        "copies up to 5 tokens that followed an n-gram of 5 tokens in the call's own text",
        5,
        lambda settings: PromptLookup(settings, max_n=5, min_n=5),
        memory="the longest call's tokens",
    ),
)
