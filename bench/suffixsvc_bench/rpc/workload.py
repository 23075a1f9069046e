"""Texts of the benchmark of the wire: repeated phrases, as in agents' queries, with noise in between."""

from __future__ import annotations

import numpy as np

from suffixsvc.types import NewOutput, TokenArray

_PHRASES = 400
_VOCABULARY = 50_000
#: with it a step writes 3 to 4 tokens and drafts about 5, as on recorded agents' traces
_NOISE = 0.12


class Workload:
    """Reproducible from its seed."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._phrases = [
            self._rng.integers(0, _VOCABULARY, self._rng.integers(6, 24)).astype(np.int32)
            for _ in range(_PHRASES)
        ]
        weights = 1.0 / np.arange(1, _PHRASES + 1)
        self._weights = weights / weights.sum()

    def text(self, tokens: int) -> TokenArray:
        """int32[tokens], the next text."""
        parts: list[TokenArray] = []
        length = 0
        while length < tokens:
            parts.append(self._phrases[int(self._rng.choice(_PHRASES, p=self._weights))])
            length += len(parts[-1])
        text = np.concatenate(parts)[:tokens]
        noisy = self._rng.random(tokens) < _NOISE
        text[noisy] = self._rng.integers(0, _VOCABULARY, int(noisy.sum()))
        return text

    def outputs(self, namespace: str, count: int, tokens: int) -> list[NewOutput]:
        """``count`` outputs of ``tokens`` tokens each."""
        return [
            NewOutput(namespace, self.text(tokens), (tokens,), np.empty(0, np.int32)) for _ in range(count)
        ]
