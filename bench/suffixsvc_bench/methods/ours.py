"""This project's engine, embedded: the drafts that a caller of ``SuffixCache`` gets."""

from __future__ import annotations

from functools import partial
from typing import Final

from suffixsvc.engine import Session, SuffixCache
from suffixsvc.types import Draft, TokenArray, TokenIds
from suffixsvc_bench.methods.base import Method, MethodSpec, Settings

_NOTHING: Final[list[int]] = []
#: K of replays of the embedded engine: wide, because the cost limits drafts
_WIDTH = 64


class Ours(Method):
    """One namespace that all calls share; every call is a session.

    Args:
        settings: K and the cost, passed to every step.
        tree: as in ``Session.step``: False, True or "auto".
        cache: an engine with contents in the namespace "replay"; None starts cold.
    """

    def __init__(
        self, settings: Settings, tree: bool | str = False, cache: SuffixCache | None = None
    ) -> None:
        self._settings, self._tree = settings, tree
        self._borrowed = cache is not None
        self._cache = SuffixCache(starting_weights=settings.starting_weights) if cache is None else cache
        self._namespace = self._cache.namespace("replay")
        self._session: Session | None = None
        self._new: TokenIds = _NOTHING

    def begin(self, prompt: TokenArray, agent: str) -> None:
        """See :class:`Method`."""
        labels = {"agent": agent[:256]} if agent else None
        self._session = self._namespace.open_session(prompt, labels=labels)
        self._new = _NOTHING

    def draft(self) -> Draft:
        """See :class:`Method`."""
        assert self._session is not None
        new, self._new = self._new, _NOTHING
        settings = self._settings
        return self._session.step(new, settings.max_draft_tokens, settings.verify_cost, self._tree)

    def accept(self, token_ids: TokenArray, accepted: int) -> None:
        """See :class:`Method`."""
        self._new = token_ids  # appended by the next step, as a caller would do

    def end(self) -> None:
        """See :class:`Method`."""
        assert self._session is not None
        self._session.step(self._new, max_draft_tokens=0)
        self._session.close()
        self._session = None

    def memory_bytes(self) -> int:
        """See :class:`Method`."""
        return self._namespace.stats().index_bytes

    def close(self) -> None:
        """See :class:`Method`."""
        if not self._borrowed:
            self._cache.close()


SPECS = tuple(
    MethodSpec(
        key,
        title,
        f"this project: {description}",
        _WIDTH,
        partial(Ours, tree=tree),
        cost_aware=True,
        native=True,
        memory="the namespace's index",
        swept=tree != "auto",
    )
    for key, title, description, tree in (
        ("ours-linear", "ours, linear", "one chain of tokens per step", False),
        ("ours-tree", "ours, tree", "a tree of tokens per step", True),
        ("ours-auto", "ours, auto", "chain or tree, by the cost of a drafted token", "auto"),
    )
)
