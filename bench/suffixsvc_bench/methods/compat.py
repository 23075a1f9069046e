"""Our drop-in class for Arctic's, called as :mod:`suffixsvc_bench.methods.arctic_worker` calls the original.

It gets only what Arctic's interface has arguments for; in particular, no cost of verification.
"""

from __future__ import annotations

import time

import numpy as np

from suffixsvc.compat.arctic import SuffixDecodingCache
from suffixsvc.engine import SuffixCache
from suffixsvc.types import Draft, DraftSource, TokenArray
from suffixsvc_bench.methods.arctic import DEFAULT
from suffixsvc_bench.methods.base import Method, MethodSpec, Settings

__all__ = ["KEY", "SPECS", "DropIn"]

KEY = "drop-in"
_NAMESPACE = "arctic"
#: vLLM's default
_DEPTH = 24


class DropIn(Method):
    """One unlimited cache that all calls share; every call is a request."""

    def __init__(self, settings: Settings) -> None:
        self._width = settings.max_draft_tokens
        self._engine = SuffixCache(starting_weights=settings.starting_weights)
        self._cache = SuffixDecodingCache(_DEPTH, cache=self._engine, namespace=_NAMESPACE)
        self._request = -1
        self._context = np.empty(0, np.int32)
        self._seconds = 0.0

    def begin(self, prompt: TokenArray, agent: str) -> None:
        """See :class:`Method`."""
        self._request += 1
        self._cache.start_request(self._request, prompt)
        self._context = np.ascontiguousarray(prompt[-_DEPTH:])

    def draft(self) -> Draft:
        """See :class:`Method`."""
        started = time.perf_counter()
        found = self._cache.speculate(
            self._request, self._context, max_spec_tokens=self._width, max_spec_factor=1.0
        )
        self._seconds = time.perf_counter() - started
        n = len(found.token_ids)
        if n == 0:
            return Draft.empty()
        # the class has path probabilities; a Draft has probabilities given the parent
        parents = np.array(found.parents, np.int32)
        paths = np.array([*found.probs, 1.0])
        given_parent = paths[:-1] / np.maximum(paths[parents], np.finfo(np.float32).tiny)
        return Draft(
            np.array(found.token_ids, np.int32),
            parents,
            np.minimum(given_parent, 1.0).astype(np.float32),
            np.full(n, int(DraftSource.NONE), np.uint8),  # the class does not report the source
            np.full(n, found.match_len, np.int32),
        )

    def accept(self, token_ids: TokenArray, accepted: int) -> None:
        """See :class:`Method`."""
        started = time.perf_counter()
        self._cache.add_active_response(self._request, token_ids)
        self._seconds += time.perf_counter() - started
        self._context = np.ascontiguousarray(np.concatenate([self._context, token_ids])[-_DEPTH:])

    def own_seconds(self) -> float:
        """Time of the class's calls alone, as for Arctic: the time that an engine would wait."""
        return self._seconds

    def end(self) -> None:
        """See :class:`Method`."""
        self._cache.stop_request(self._request)

    def memory_bytes(self) -> int:
        """See :class:`Method`."""
        return self._engine.namespace(_NAMESPACE).stats().index_bytes

    def close(self) -> None:
        """See :class:`Method`."""
        self._cache.close()
        self._engine.close()


SPECS = (
    MethodSpec(
        KEY,
        "ours, as Arctic's class",
        "this project with Arctic's interface, called as vLLM calls Arctic: cost unknown, depth 24, "
        "factor 1, a chain",
        _DEPTH,
        DropIn,
        native=True,
        memory="the namespace's index",
        instead_of=DEFAULT,
    ),
)
