"""Reading a log on from a position: what readers of it, as followers, apply in its order.

Outputs and deletions take their LSNs from one sequence. A reader that has applied all of them up to a
position holds what the log holds; of an output that is deleted later it needs the deletion only. The log
keeps a bounded number of deletions: a reader behind the oldest begins again, with a snapshot.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from itertools import islice, takewhile
from typing import Final

from suffixsvc.log_types import Deletion, LogChanges, LogPosition
from suffixsvc.store.records import keys, table_records
from suffixsvc.store.transactions.read_view import ReadView
from suffixsvc.types import OutputId, StoredOutput

#: rows of one answer, outputs and deletions each, and tokens after which no output is added to it
_ROWS: Final = 256
_TOKENS: Final = 1 << 20


def position_at(view: ReadView, lsn: OutputId) -> LogPosition:
    """Return the position after an LSN of the view."""
    return LogPosition(view.node_id, lsn, view.history.run_of(lsn))


def leads_on_from(view: ReadView, position: LogPosition) -> bool:
    """Whether a reader at a position needs only what is recorded after it.

    False also if the position is of another log, or of one of which an older backup was restored.
    """
    if not view.tables.has("deletions"):  # a folder of an older schema
        return position == position_at(view, view.counters.last_lsn)
    return view.history.floor <= position.lsn <= view.counters.last_lsn and position == position_at(
        view, position.lsn
    )


def changes_after(view: ReadView, after: OutputId, generations: Collection[int]) -> LogChanges:
    """Return the next changes after an LSN.

    Args:
        generations: the namespaces of the reader; those that do not exist any more have deletions only.
    """
    horizon = view.counters.last_lsn
    rows = islice(view.tables.rows("deletions", keys.log_key(after + 1)), _ROWS)
    logged = [table_records.decode_deletion(raw, key) for key, raw in rows]
    if len(logged) == _ROWS:
        horizon = logged[-1].lsn
    outputs: list[tuple[int, StoredOutput]] = []
    tokens = 0
    for lsn, number in _outputs_after(view, after, horizon, generations):
        stored = view.output(lsn)
        outputs.append((number, stored))
        tokens += len(stored.output.token_ids)
        if len(outputs) == _ROWS or tokens >= _TOKENS:
            horizon = lsn
            break
    deletions = [
        Deletion(row.namespace_id, row.output_id, row.uuid)
        for row in takewhile(lambda row: row.lsn <= horizon, logged)
        if row.namespace_id in generations
    ]
    return LogChanges(outputs, deletions, position_at(view, horizon))


def _outputs_after(
    view: ReadView, after: OutputId, last: OutputId, generations: Collection[int]
) -> Iterator[tuple[OutputId, int]]:
    """Yield (id, namespace number) of outputs, by id; of each namespace at most those of an answer."""
    if last - after < len(generations):  # fewer rows than namespaces: a reader of many, at the end of the log
        for lsn in view.lsns(None, after + 1, last):
            record = view.log_record(lsn)
            if record is not None and record.payload.namespace_id in generations:
                yield lsn, record.payload.namespace_id
        return
    exist = [number for number in generations if number in view.names.by_id]
    yield from heapq.merge(
        *([(lsn, number) for lsn in view.lsns(number, after + 1, last, _ROWS)] for number in exist)
    )
