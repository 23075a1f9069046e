"""Whether a namespace's index and segments are what log and manifest say."""

from __future__ import annotations

from pathlib import Path

from suffixsvc.errors import IndexCorruptError
from suffixsvc.index import NamespaceIndex
from suffixsvc.index.texts import texts_of
from suffixsvc.types import Store

__all__ = ["check_hot", "check_segments"]


def check_hot(index: NamespaceIndex, store: Store) -> None:
    """What no segment stands for is in the hot index; IndexCorruptError. Not while outputs are forgotten or
    change their place."""
    last = index.commits.settled(store.stats().last_lsn)
    index.index.settle()
    for first, end in index.hot_ranges(last):
        for stored in store.scan(index.path, from_lsn=first):
            if stored.output_id > end:
                break
            for text, context in texts_of(stored.output):
                if index.index.count(text[context:][-index.index.max_context :]) == 0:
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
        kept = store.output_ids(path, record.first_lsn, record.last_lsn)
        if kept != each.segment.outputs():
            lost = sorted(set(kept) ^ set(each.segment.outputs()))
            raise _broken(path, f"log and segment {record.name} do not hold the same outputs", got=lost[:5])
        if len(kept) != each.outputs:
            raise _broken(path, f"outputs of {record.name} are miscounted", len(kept), each.outputs)


def _broken(path: str, what: str, expected: object = None, got: object = None) -> IndexCorruptError:
    return IndexCorruptError(
        f"namespace {path}: {what}",
        expected=expected,
        got=got,
        remedy="Open the cache again; what cannot be used is rebuilt from the log. And report this.",
    )
