"""Texts of several namespaces that runs are published from: the newest outputs of each principal.

The tokens of a build are limited. The limit is shared: a principal takes what others leave, and nothing of
what they use, so that one that writes much does not displace the outputs of the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from suffixsvc.engine.base.log_rows import rows_of
from suffixsvc.store.base import Store
from suffixsvc.types import NewOutput, OutputId, TokenArray


@dataclass(slots=True)
class _Written:
    """Outputs of one principal: (id, tokens), and the sum of the tokens."""

    outputs: deque[tuple[OutputId, int]] = field(default_factory=deque)
    tokens: int = 0

    def shorten(self, limit: int) -> None:
        """Drop the oldest outputs until the others have at most ``limit`` tokens."""
        while self.tokens > limit:
            self.tokens -= self.outputs.popleft()[1]

    def sort(self) -> None:
        """Order outputs of several namespaces by their age."""
        self.outputs = deque(sorted(self.outputs))


class NewestOutputs:
    """Chooses outputs within a limit on their tokens.

    Args:
        limit: tokens of all principals together.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._written: dict[str, _Written] = {}
        self._tokens = 0

    def add(self, principal: str, output_id: OutputId, tokens: int) -> None:
        """Add an output. In each namespace from the oldest to the newest; memory stays bounded."""
        written = self._written.setdefault(principal, _Written())
        written.outputs.append((output_id, tokens))
        written.tokens += tokens
        self._tokens += tokens
        if self._tokens > 2 * self._limit:
            self._shorten()

    def chosen(self) -> dict[str, list[OutputId]]:
        """The ids of the chosen outputs by principal."""
        self._shorten()
        return {name: [i for i, _ in each.outputs] for name, each in self._written.items() if each.outputs}

    def _shorten(self) -> None:
        share = _equal_share([each.tokens for each in self._written.values()], self._limit)
        for each in self._written.values():
            if each.tokens > share:
                each.sort()
                each.shorten(share)
        self._tokens = sum(each.tokens for each in self._written.values())


def _equal_share(sizes: Sequence[int], limit: int) -> int:
    """The largest share so that all sizes, each cut to it, are at most ``limit`` together."""
    left, share = limit, limit
    for done, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - done)
        if size > share:
            return share
        left -= size
    return limit


@dataclass(frozen=True, slots=True)
class PrincipalTexts:
    """Concatenated texts; the arguments of ``suffixsvc.core._ext.shared_runs``.

    Attributes:
        tokens: int32[n].
        lengths: uint64[m], of each text.
        principals: uint32[m], number of the principal that wrote it.
        count: number of distinct principals.
    """

    tokens: TokenArray
    lengths: np.ndarray
    principals: np.ndarray
    count: int


def read_texts(
    store: Store, paths: Iterable[str], min_principals: int, match: int, limit: int
) -> PrincipalTexts | None:
    """Read the newest outputs of namespaces from the log, without the context that models did not write.

    Args:
        paths: of namespaces in the log.
        min_principals, match: texts that cannot hold a run of so many principals and tokens are left out.
        limit: tokens of all outputs together.

    Returns:
        None: fewer than ``min_principals`` principals have written such texts.
    """
    newest = NewestOutputs(limit)
    of_path = list(paths)
    for path in of_path:
        for outline in store.outline(path):
            if outline.tokens >= match:
                newest.add(outline.principal, outline.output_id, outline.tokens)
    chosen = newest.chosen()
    if len(chosen) < min_principals:
        return None
    ids = {output_id for of_principal in chosen.values() for output_id in of_principal}
    numbers: dict[str, int] = {}
    texts: list[TokenArray] = []
    principals: list[int] = []
    for path in of_path:
        for output in _rows(store, path, ids):
            for text in _runs_of(output):
                if len(text) >= match:
                    texts.append(text)
                    principals.append(numbers.setdefault(output.principal, len(numbers)))
    if len(numbers) < min_principals:
        return None
    return PrincipalTexts(
        np.concatenate(texts),
        np.array([len(text) for text in texts], np.uint64),
        np.array(principals, np.uint32),
        len(numbers),
    )


def _rows(store: Store, path: str, ids: set[OutputId]) -> Iterator[NewOutput]:
    """The outputs of a namespace with these ids."""
    own = sorted(ids.intersection(store.output_ids(path, min(ids), max(ids))))
    if own:
        for stored in rows_of(store, path, own[0], own[-1]):
            if stored.output_id in ids:
                yield stored.output


def _runs_of(output: NewOutput) -> Iterator[TokenArray]:
    """The runs of an output, between which other text was."""
    start = 0
    for length in output.segment_lens:
        yield output.token_ids[start : start + length]
        start += length
