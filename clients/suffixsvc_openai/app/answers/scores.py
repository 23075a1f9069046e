"""Scored tokens of an answer: which token is where in its text, with its log probabilities."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from suffixsvc_driver.drafts.events import TokenLogprobs
from suffixsvc_openai.protocol.logprobs import ScoredToken


class TokenScores:
    """Tokens of one answer, held until their text is decided.

    Args:
        texts: bytes of every token.
        silent_ids: tokens without text, which are not reported.
        offset: characters before their text.
    """

    def __init__(self, texts: Sequence[bytes], silent_ids: frozenset[int], offset: int = 0) -> None:
        self._texts, self._silent_ids = texts, silent_ids
        self._held: deque[tuple[int, TokenLogprobs | None]] = deque()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._released = 0
        self._offset = offset

    def add(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]) -> None:
        """Add tokens; None is the log probability of a token that has none."""
        self._held.extend(zip(token_ids, logprobs, strict=True))

    def release(self, count: int) -> list[ScoredToken]:
        """Return the tokens up to the first ``count`` that were not returned yet."""
        found = []
        while self._released < count:
            token, logprobs = self._held.popleft()
            self._released += 1
            if token not in self._silent_ids:
                found.append(self._scored(token, logprobs))
        return found

    def _scored(self, token: int, logprobs: TokenLogprobs | None) -> ScoredToken:
        data, offset = self._texts[token], self._offset
        self._offset += len(self._decoder.decode(data))
        if logprobs is None:
            return ScoredToken(data, offset, None)
        ids, values = logprobs.top_ids.tolist(), logprobs.top_logprobs.tolist()
        top = tuple((self._texts[each], value) for each, value in zip(ids, values, strict=True))
        return ScoredToken(data, offset, logprobs.logprob, top)


def prompt_scores(
    texts: Sequence[bytes], prompt_ids: Sequence[int], text: str, logprobs: Sequence[TokenLogprobs]
) -> list[ScoredToken]:
    """Return the scored tokens of a prompt.

    Args:
        texts: bytes of every token.
        prompt_ids: the prompt.
        text: the prompt's, which lacks what the tokenizer put before it: the BOS token, a blank.
        logprobs: of each token but the first.
    """
    scores = TokenScores(texts, frozenset())
    scores.add(prompt_ids, (None, *logprobs))
    tokens = scores.release(len(prompt_ids))
    before = max(0, len(b"".join(token.data for token in tokens).decode("utf-8", "replace")) - len(text))
    return [replace(token, offset=max(0, token.offset - before)) for token in tokens]
