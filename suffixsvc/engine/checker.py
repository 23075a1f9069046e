"""Comparison of a namespace's index and segments with log and manifest, in both directions.

Writes and deletions go on meanwhile. A text is inserted into the index before its row is written and removed
after the row is deleted. So every output that was read from the log is in the index afterwards, and every
output that was deleted from the log has left the index after ``Store.barrier``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from suffixsvc.engine.base.log_rows import rows_of
from suffixsvc.engine.parts import EngineParts
from suffixsvc.errors import IndexCorruptError, UnknownOutputError
from suffixsvc.index import NamespaceIndex
from suffixsvc.index.texts import positions_of, texts_of
from suffixsvc.store.base import Store
from suffixsvc.types import StoredOutput

#: attempts to compare a namespace without a concurrent write
_ATTEMPTS: Final = 3


def check_cache(parts: EngineParts) -> None:
    """Check the store, every index and every segment of a cache. See ``SuffixCache.check``."""
    with parts.exclusive() as sealer, parts.close_guard.while_open():
        parts.outputs.finish_removals()
        parts.store.check()
        folder = parts.store.segment_folder
        for index in parts.catalog.stored():
            if sealer is not None:
                sealer.loader.finish_load(index)
            index.check()
            check_hot(index, parts.store)
            if folder is not None:
                check_segments(index, parts.store, folder)


def check_hot(index: NamespaceIndex, store: Store) -> None:
    """Check that the hot index holds the outputs that no segment covers, and live text, and nothing else.

    Not while outputs change their location.

    Raises:
        IndexCorruptError
    """
    for _ in range(_ATTEMPTS):
        before = index.consistency_snapshot()
        outputs = tokens = positions = 0
        last = store.stats().last_lsn
        index.index.propagate_counts()
        for first, end in index.segments.hot_ranges(last):
            for stored in rows_of(store, index.path, first, end):
                _require_indexed(index, store, stored)
                outputs += 1
                tokens += len(stored.output.token_ids)
                positions += positions_of(stored.output)
        store.barrier()  # deletions that the scan has seen are counted afterwards
        if before is None or before != index.consistency_snapshot():
            continue
        if (before.outputs, before.tokens, before.logged) != (outputs, tokens, positions):
            raise _broken(
                index.path,
                "the hot index must count the outputs of the log",
                f"{outputs} outputs of {tokens} tokens, {positions} positions",
                f"{before.outputs} outputs of {before.tokens} tokens, {before.logged} positions",
            )
        if before.positions != positions + before.live:
            raise _broken(
                index.path,
                "the hot index must hold the text of the log and of live sessions only",
                f"{positions} positions of the log and {before.live} of live sessions",
                f"{before.positions} positions",
            )
        return


def _require_indexed(index: NamespaceIndex, store: Store, stored: StoredOutput) -> None:
    for text, context in texts_of(stored.output):
        end = text[context:][-index.index.max_context :]
        if index.index.count(end):
            continue
        index.index.propagate_counts()  # counts lag during writes
        if index.index.count(end):
            continue
        try:
            store.get(stored.output_id)
        except UnknownOutputError:
            return  # deleted concurrently
        raise _broken(index.path, f"output {stored.output_id} is in the log but not in the index")


def check_segments(index: NamespaceIndex, store: Store, folder: Path) -> None:
    """Compare manifest, files, segments in use and log of a namespace.

    Not while outputs change their location.

    Raises:
        IndexCorruptError
    """
    path, sealed = index.path, index.sealed()
    manifest = store.segments(path)
    if [each.record for each in sealed] != manifest:
        names = [each.record.name for each in sealed]
        raise _broken(path, "the segments in use must be those of the manifest", manifest, names)
    for each in sealed:
        record = each.record
        file = folder / record.name
        if not file.is_file() or file.stat().st_size != record.file_bytes:
            raise _broken(path, f"segment file {file} must be complete", f"{record.file_bytes} bytes")
        drafted = set(each.segment.outputs())
        logged = set(store.output_ids(path, record.first_lsn, record.last_lsn))
        lost = logged - drafted
        store.barrier()
        remaining, outputs = index.remaining_in(record)
        if lost or remaining - logged:
            got = sorted(lost | (remaining - logged))[:5]
            raise _broken(path, f"log and segment {record.name} must hold the same outputs", got=got)
        if len(remaining) != outputs:
            raise _broken(path, f"{record.name} must have an exact count", len(remaining), outputs)


def _broken(path: str, what: str, expected: object = None, got: object = None) -> IndexCorruptError:
    return IndexCorruptError(
        f"namespace {path}: {what}",
        expected=expected,
        got=got,
        remedy="Open the cache again, which rebuilds damaged parts from the log, and report this.",
    )
