"""Helpers of the store's tests: outputs, golden folders, comparisons, damage."""

from __future__ import annotations

import contextlib
import gzip
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lmdb
import numpy as np
import pytest

from suffixsvc.store import LmdbStore
from suffixsvc.store.base import Store
from suffixsvc.store.records import keys, table_records
from suffixsvc.store.records.keys import generated_uuid
from suffixsvc.types import NamespaceRecord, NewOutput, StoredOutput

NS = "acme/qwen2.5-coder/sql-agent"
OTHER = "acme/other"
UUID = bytes(range(16, 32))
GOLDEN = Path(__file__).parents[1] / "golden" / "store"


def make_output(
    tokens: Sequence[int] = (1, 2, 3),
    *,
    namespace: str = NS,
    segments: Sequence[int] | None = None,
    tail: Sequence[int] = (),
    labels: dict[str, str] | None = None,
    **more: Any,
) -> NewOutput:
    """Make an output; its segments default to one."""
    return NewOutput(
        namespace=namespace,
        token_ids=np.asarray(tokens, dtype=np.int32),
        segment_lens=tuple(segments) if segments is not None else (len(tokens),),
        prompt_tail=np.asarray(tail, dtype=np.int32),
        labels=labels or {},
        **more,
    )


def golden_folder(version: str, folder: Path) -> Path:
    """Unpack a data folder that a release of schema ``version`` ("v1" to "v5") wrote."""
    folder.mkdir()
    with gzip.open(GOLDEN / version / "data.mdb.gz") as packed, (folder / "data.mdb").open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked)
    return folder


def plain(output: NewOutput) -> dict[str, Any]:
    """Convert an output to values that compare with ==."""
    return {
        "namespace": output.namespace,
        "token_ids": output.token_ids.tolist(),
        "segment_lens": tuple(n for n in output.segment_lens if n),
        "prompt_tail": output.prompt_tail.tolist(),
        "labels": dict(output.labels),
        "incomplete": output.incomplete,
        "ttl_seconds": output.ttl_seconds,
        "corpus": output.corpus,
    }


def plain_stored(stored: StoredOutput) -> tuple[int, float, dict[str, Any]]:
    """Convert a stored output to values that compare with ==."""
    return stored.output_id, stored.written_at, plain(stored.output)


def scan_ids(store: Store, namespace: str | None = None, from_lsn: int = 0) -> list[int]:
    """Return the ids that a scan yields."""
    return [stored.output_id for stored in store.scan(namespace, from_lsn=from_lsn)]


def node_id_of(store: Store) -> int:
    """Return the id that the store's rows carry; 0 in a folder of an older schema."""
    return store._log.snapshot.node_id


def find(store: Store, namespace: str, uuid: bytes) -> int | None:
    """Return the id of the output with this uuid, or None."""
    with store._log.read() as view:
        record = view.find(view.names.require(namespace), uuid)
        return None if record is None else record.lsn


def uuid_of(store: Store, output_id: int) -> bytes:
    """Return the uuid that the store generates for an output."""
    return generated_uuid(node_id_of(store), output_id)


class Clock:
    """A clock that tests advance."""

    def __init__(self, now: float = 1_700_000_000.25) -> None:
        self.now = now

    def wall(self) -> float:
        """Return the time that was set."""
        return self.now

    def elapsed(self) -> float:
        """Return the time that was set."""
        return self.now


def until_it_works(store: Store, seconds: float = 60.0) -> None:
    """Wait, without writing, until the store reports that appends work."""
    deadline = time.monotonic() + seconds
    while store.failure() is not None:
        assert time.monotonic() < deadline, f"still failing: {store.failure()}"
        time.sleep(0.005)


ROWS = 40

if TYPE_CHECKING:  # lmdb's classes are generic only in its stubs
    Txn = lmdb.Transaction[bytes]
    Db = Callable[[str], lmdb._Database]


def fill(folder: Path, map_bytes_initial: int = 4 << 20) -> list[object]:
    """Create a store with ROWS outputs and a state; return its rows."""
    store = LmdbStore(folder, map_bytes_initial=map_bytes_initial)
    store.add_namespace(NamespaceRecord(NS))
    store.append([make_output(range(i + 1, i + 300), labels={"n": str(i)}) for i in range(ROWS)]).result()
    store.append([make_output([1, 2], ttl_seconds=7), make_output([1, 2])]).result()
    store.forget_many(NS, [3])
    store.put_state(NS, "mixer", bytes(5000))
    rows: list[object] = [plain_stored(stored) for stored in store.scan()]
    store.close()
    return rows


def contents(folder: Path) -> list[object]:
    """Open and check a store made by :func:`fill`; return its rows."""
    store = LmdbStore(folder)
    try:
        store.check()
        assert store.get_state(NS, "mixer") == bytes(5000)
        return [plain_stored(stored) for stored in store.scan()]
    finally:
        store.close()


def refused(folder: Path, error: type[Exception]) -> str:
    """Check that opening fails with ``error`` and changes nothing; return the message."""
    before = (folder / "data.mdb").read_bytes()
    with pytest.raises(error) as caught:
        LmdbStore(folder)
    assert (folder / "data.mdb").read_bytes() == before, "a refused file was changed"
    assert getattr(caught.value, "remedy", None)
    return str(caught.value)


def rewrite(folder: Path, change: Callable[[Txn, Db], object]) -> None:
    """Change a closed store through LMDB, so that only the store's own checks can detect it."""
    size = (folder / "data.mdb").stat().st_size
    with (
        lmdb.open(str(folder), map_size=size, max_dbs=16, lib_version=0) as env,
        env.begin(write=True) as txn,
    ):
        change(txn, lambda name: env.open_db(name.encode(), txn=txn, create=False))
        # as in every transaction of the store, or the first check would detect it
        with contextlib.suppress(lmdb.NotFoundError):
            meta = env.open_db(b"meta", txn=txn, create=False)
            raw = txn.get(keys.COUNTERS_KEY, db=meta)
            if raw is None:
                return
            counters = table_records.decode_counters(raw)
            txn.put(
                keys.COUNTERS_KEY, table_records.encode_counters(replace(counters, txn=txn.id())), db=meta
            )
