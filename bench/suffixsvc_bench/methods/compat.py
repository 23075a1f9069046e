"""Our drop-in class for Arctic's, called as :mod:`suffixsvc_bench.methods.arctic_worker` calls the original.

It gets only what Arctic's interface has arguments for; in particular, no cost of verification.
"""

from __future__ import annotations

from suffixsvc.compat.arctic import SuffixDecodingCache
from suffixsvc.engine import SuffixCache
from suffixsvc.types import Draft, TokenArray
from suffixsvc_bench.methods.arctic import DEFAULT, draft_of
from suffixsvc_bench.methods.arctic_worker import Requests
from suffixsvc_bench.methods.base import Method, MethodSpec, Settings

KEY = "drop-in"
_NAMESPACE = "arctic"
#: vLLM's default
_DEPTH = 24


class DropIn(Method):
    """One unlimited cache that all calls share; every call is a request."""

    def __init__(self, settings: Settings) -> None:
        self._engine = SuffixCache(starting_weights=settings.starting_weights)
        self._cache = SuffixDecodingCache(_DEPTH, cache=self._engine, namespace=_NAMESPACE)
        self._requests = Requests(self._cache, _DEPTH, settings.max_draft_tokens, max_spec_factor=1.0)
        self._seconds = 0.0

    def begin(self, prompt: TokenArray, agent: str) -> None:
        """See :class:`Method`."""
        self._requests.begin(prompt)

    def draft(self) -> Draft:
        """See :class:`Method`."""
        answer = self._requests.draft()
        self._seconds = answer["seconds"]
        return draft_of(answer)

    def accept(self, token_ids: TokenArray, accepted: int) -> None:
        """See :class:`Method`."""
        self._requests.accept(token_ids)

    def own_seconds(self) -> float:
        """Time of the class's calls alone, as for Arctic: the time that an engine would wait."""
        return self._seconds

    def end(self) -> None:
        """See :class:`Method`."""
        self._requests.end()

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
