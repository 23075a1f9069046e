"""Whether a namespace's index and segments are what log and manifest say, in both directions.

Others write and forget meanwhile. A text is in the index before its row is in the log, and leaves it after
the row; so what is in the log is in the index when one looks at the log first and at the index then, and what
has left the log has left the index after ``Store.barrier``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from suffixsvc.errors import IndexCorruptError, UnknownOutputError
from suffixsvc.index import NamespaceIndex
from suffixsvc.index.texts import positions_of, texts_of
from suffixsvc.types import Store, StoredOutput

__all__ = ["check_hot", "check_segments"]

#: looks at a namespace that is written to, until nothing came in between
_LOOKS: Final = 3


def check_hot(index: NamespaceIndex, store: Store) -> None:
    """What no segment stands for is in the hot index, and nothing else but live text; IndexCorruptError. Not
    while outputs change their place."""
    for _ in range(_LOOKS):
        before = index.balance()
        outputs = tokens = positions = 0
        last = store.stats().last_lsn
        index.index.settle()
        for first, end in index.hot_ranges(last):
            for stored in store.scan(index.path, from_lsn=first):
                if stored.output_id > end:
                    break
                _require_indexed(index, store, stored)
                outputs += 1
                tokens += len(stored.output.token_ids)
                positions += positions_of(stored.output)
        store.barrier()  # a deletion that was seen in the log has been counted
        if before is None or before != index.balance():
            continue
        if (before.outputs, before.tokens, before.logged) != (outputs, tokens, positions):
            raise _broken(
                index.path,
                "the hot index counts other outputs than the log holds",
                f"{outputs} outputs of {tokens} tokens, {positions} positions",
                f"{before.outputs} outputs of {before.tokens} tokens, {before.logged} positions",
            )
        if before.positions != positions + before.live:
            raise _broken(
                index.path,
                "the hot index holds text that is neither in the log nor live",
                f"{positions} positions of the log and {before.live} of live sessions",
                f"{before.positions} positions",
            )
        return


def _require_indexed(index: NamespaceIndex, store: Store, stored: StoredOutput) -> None:
    for text, context in texts_of(stored.output):
        end = text[context:][-index.index.max_context :]
        if index.index.count(end):
            continue
        index.index.settle()  # counts lag behind while others write
        if index.index.count(end):
            continue
        try:
            store.get(stored.output_id)
        except UnknownOutputError:
            return  # forgotten meanwhile
        raise _broken(index.path, f"output {stored.output_id} is in the log, not in the index")


def check_segments(index: NamespaceIndex, store: Store, folder: Path) -> None:
    """Manifest, files, segments in use and log of a namespace against each other; IndexCorruptError. Not
    while outputs change their place."""
    path, sealed = index.path, index.sealed()
    manifest = store.segments(path)
    if [each.record for each in sealed] != manifest:
        names = [each.record.name for each in sealed]
        raise _broken(path, "the segments in use are not those of the manifest", manifest, names)
    for each in sealed:
        record = each.record
        file = folder / record.name
        if not file.is_file() or file.stat().st_size != record.file_bytes:
            raise _broken(path, f"segment file {file} is not as it was made", f"{record.file_bytes} bytes")
        drafted = set(each.segment.outputs())
        kept = set(store.output_ids(path, record.first_lsn, record.last_lsn))
        lost = kept - drafted
        store.barrier()
        left, outputs = index.left_in(record)
        if lost or left - kept:
            got = sorted(lost | (left - kept))[:5]
            raise _broken(path, f"log and segment {record.name} do not hold the same outputs", got=got)
        if len(left) != outputs:
            raise _broken(path, f"outputs of {record.name} are miscounted", len(left), outputs)


def _broken(path: str, what: str, expected: object = None, got: object = None) -> IndexCorruptError:
    return IndexCorruptError(
        f"namespace {path}: {what}",
        expected=expected,
        got=got,
        remedy="Open the cache again; what cannot be used is rebuilt from the log. And report this.",
    )
