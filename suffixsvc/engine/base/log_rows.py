"""Rows of a namespace in the log: those of a range, and batches of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from suffixsvc.store.base import Store
from suffixsvc.types import NewOutput, OutputId, StoredOutput


def rows_of(store: Store, path: str, first: OutputId, last: OutputId) -> Iterator[StoredOutput]:
    """The log's rows of a namespace and range, read lazily."""
    if not store.output_ids(path, first, last, limit=1):
        return
    for stored in store.scan(path, from_lsn=first):
        if stored.output_id > last:
            return
        yield stored


def batches(
    rows: Iterable[StoredOutput],
    tokens: int,
    size_of: Callable[[NewOutput], int] = lambda output: len(output.token_ids),
) -> Iterator[tuple[list[StoredOutput], bool]]:
    """Successive rows that have this many tokens together, and whether the batch is full.

    Args:
        rows: the rows.
        tokens: minimum number of tokens of all batches but the last.
        size_of: number of tokens of an output.
    """
    batch: list[StoredOutput] = []
    size = 0
    for stored in rows:
        batch.append(stored)
        size += size_of(stored.output)
        if size >= tokens:
            yield batch, True
            batch, size = [], 0
    if batch:
        yield batch, False
