"""What the tests of the store share: outputs to write, and how to compare what comes back."""

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
from suffixsvc.store import records as r
from suffixsvc.types import NamespaceRecord, NewOutput, Store, StoredOutput

NS = "acme/qwen2.5-coder/sql-agent"
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
    return NewOutput(
        namespace=namespace,
        token_ids=np.asarray(tokens, dtype=np.int32),
        segment_lens=tuple(segments) if segments is not None else (len(tokens),),
        prompt_tail=np.asarray(tail, dtype=np.int32),
        labels=labels or {},
        **more,
    )


def golden_folder(version: str, folder: Path) -> Path:
    """Makes ``folder`` a store as a release of schema ``version`` ("v1", "v2") wrote it."""
    folder.mkdir()
    with gzip.open(GOLDEN / version / "data.mdb.gz") as packed, (folder / "data.mdb").open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked)
    return folder


def plain(output: NewOutput) -> dict[str, Any]:
    """An output as values that compare with ==."""
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
    return stored.output_id, stored.written_at, plain(stored.output)


class Clock:
    """Time that moves when the test says so."""

    def __init__(self, now: float = 1_700_000_000.25) -> None:
        self.now = now

    def wall(self) -> float:
        return self.now

    def elapsed(self) -> float:
        return self.now


def until_it_works(store: Store, seconds: float = 60.0) -> None:
    """Wait until the store says that appends work, without any write."""
    deadline = time.monotonic() + seconds
    while store.failure() is not None:
        assert time.monotonic() < deadline, f"still failing: {store.failure()}"
        time.sleep(0.005)


ROWS = 40

if TYPE_CHECKING:  # lmdb's classes are generic only in its stubs
    Txn = lmdb.Transaction[bytes]
    Db = Callable[[str], lmdb._Database]


def fill(folder: Path, map_bytes_initial: int = 4 << 20) -> list[object]:
    store = LmdbStore(folder, map_bytes_initial=map_bytes_initial)
    store.add_namespace(NamespaceRecord(NS))
    store.append([make_output(range(i + 1, i + 300), labels={"n": str(i)}) for i in range(ROWS)]).result()
    store.append([make_output([1, 2], ttl_seconds=7), make_output([1, 2])]).result()
    store.forget(NS, 3)
    store.put_state(NS, "mixer", bytes(5000))
    rows: list[object] = [plain_stored(stored) for stored in store.scan()]
    store.close()
    return rows


def contents(folder: Path) -> list[object]:
    store = LmdbStore(folder)
    try:
        store.check()
        assert store.get_state(NS, "mixer") == bytes(5000)
        return [plain_stored(stored) for stored in store.scan()]
    finally:
        store.close()


def refused(folder: Path, error: type[Exception]) -> str:
    before = (folder / "data.mdb").read_bytes()
    with pytest.raises(error) as caught:
        LmdbStore(folder)
    assert (folder / "data.mdb").read_bytes() == before, "a refused file was changed"
    assert getattr(caught.value, "remedy", None)
    return str(caught.value)


def rewrite(folder: Path, change: Callable[[Txn, Db], object]) -> None:
    """Change a store behind its back, through LMDB, so that only our own checks can notice."""
    size = (folder / "data.mdb").stat().st_size
    with (
        lmdb.open(str(folder), map_size=size, max_dbs=16, lib_version=0) as env,
        env.begin(write=True) as txn,
    ):
        change(txn, lambda name: env.open_db(name.encode(), txn=txn, create=False))
        # like every transaction of ours, or the forgery would be noticed at once
        with contextlib.suppress(lmdb.NotFoundError):
            meta = env.open_db(b"meta", txn=txn, create=False)
            raw = txn.get(r.COUNTERS_KEY, db=meta)
            if raw is None:
                return
            counters = r.decode_counters(raw)
            txn.put(r.COUNTERS_KEY, r.encode_counters(replace(counters, txn=txn.id())), db=meta)
