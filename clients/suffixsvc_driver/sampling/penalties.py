"""Repetition penalties by the rule of llama.cpp's "penalties" sampler.

For every token that occurs among the last n tokens of the text, prompt included:

    logit = logit / repeat  if logit > 0 else  logit * repeat
    logit = logit - (occurrences * frequency + presence)
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

import numpy as np

from suffixsvc.types import FloatArray
from suffixsvc_driver.sampling.settings import Sampling


class Penalties:
    """Counts of the last tokens of one text.

    Args:
        sampling: settings of the penalties and their window.
        text: tokens before the first call of :meth:`accept`.
    """

    def __init__(self, sampling: Sampling, text: Iterable[int] = ()) -> None:
        last = sampling.penalty_last_n
        self._window: deque[int] = deque(maxlen=None if last < 0 else last)
        self._counts: Counter[int] = Counter()
        # float32, as in llama.cpp
        self._repeat = np.float32(sampling.repeat_penalty)
        self._frequency = np.float32(sampling.frequency_penalty)
        self._presence = np.float32(sampling.presence_penalty)
        for token in text:
            self.accept(token)

    def accept(self, token: int) -> None:
        """Append ``token`` to the text."""
        if len(self._window) == self._window.maxlen:
            oldest = self._window[0]
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
        self._window.append(token)
        self._counts[token] += 1

    def apply(self, logits: FloatArray) -> None:
        """Apply the penalties to logits float32[n_vocab] in place."""
        n = len(self._counts)
        ids = np.fromiter(self._counts.keys(), np.int64, n)
        counts = np.fromiter(self._counts.values(), np.float32, n)
        values = logits[ids]
        values = np.where(values <= 0, values * self._repeat, values / self._repeat)
        logits[ids] = values - (counts * self._frequency + self._presence)
