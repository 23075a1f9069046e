"""Prompt lookup: copies the continuation of an earlier occurrence of the last tokens in the same call.

The rule is that of transformers (``prompt_lookup_num_tokens``) and of vLLM (``method="ngram"``): the longest
n-gram at the end of the text, max_n down to min_n tokens, that occurred before; of several occurrences the
EARLIEST; up to K tokens that followed it. Nothing is stored between calls.
"""

from __future__ import annotations

from functools import partial

from suffixsvc.types import Draft, DraftSource, TokenArray
from suffixsvc_bench.methods.base import Method, MethodSpec, Settings, guess

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


SPECS = tuple(
    MethodSpec(
        key,
        f"prompt lookup, {user}",
        f"copies up to {k} tokens that followed an n-gram of {n} tokens in the call's own text",
        k,
        partial(PromptLookup, max_n=max_n, min_n=min_n),
        memory="the longest call's tokens",
    )
    for key, user, k, n, max_n, min_n in (
        ("prompt-lookup", "transformers", 10, "2 or 1", 2, 1),
        ("prompt-lookup-vllm", "vLLM", 5, "5", 5, 5),
    )
)
