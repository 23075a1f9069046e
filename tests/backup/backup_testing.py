"""Helpers of the tests of backups, checks and repairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import lmdb
import numpy as np

from suffixsvc import Limits, SuffixCache
from suffixsvc.runtime.sync_points import SyncPoint, with_sync_points
from suffixsvc.store.records import keys, table_records
from suffixsvc.types import NewOutput
from support.engine_parts import parts_of

NS = "acme/m"
#: a few outputs fill a batch
LIMITS = Limits(seal_tokens=60)
#: id -> time, namespace, tokens, runs, prompt tail, labels, time to live, uuid, principal
Contents = dict[int, tuple[Any, ...]]


def open_cache(folder: Path, sync_point: SyncPoint | None = None, **more: Any) -> SuffixCache:
    """A cache without a background thread unless ``background`` is given."""
    kind = SuffixCache if sync_point is None else with_sync_points(SuffixCache, sync_point)
    return kind(folder, **{"limits": LIMITS, "background": False, **more})


def output(random: Random, namespace: str = NS, tokens: int = 0) -> NewOutput:
    """Repetitive tokens, some of them equal to earlier ones, in one or two runs."""
    length = tokens or random.choice([3, 8, 20])
    start, step = random.randrange(4), random.choice([1, 1, 2])
    cut = random.randrange(1, length)
    return NewOutput(
        namespace,
        np.array([(start + i * step) % 13 for i in range(length)], np.int32),
        random.choice([(length,), (cut, length - cut)]),
        np.array([random.randrange(13) for _ in range(random.choice([0, 3]))], np.int32),
        labels=random.choice([{}, {"agent": "a"}]),
        ttl_seconds=random.choice([0, 0, 10_000_000]),
        uuid=random.randbytes(16) if random.random() < 0.3 else b"",
        principal=random.choice(["", "ann", "bob"]),
    )


def contents(cache: SuffixCache) -> Contents:
    """What the log holds, of all namespaces."""
    return {
        stored.output_id: (
            stored.written_at,
            stored.output.namespace,
            stored.output.token_ids.tolist(),
            stored.output.segment_lens,
            stored.output.prompt_tail.tolist(),
            dict(stored.output.labels),
            stored.output.ttl_seconds,
            stored.output.uuid,
            stored.output.principal,
        )
        for stored in parts_of(cache).store.scan()
    }


def contents_of(folder: Path) -> Contents:
    """Open a folder with the whole engine, check it, and return what its log holds."""
    with open_cache(folder) as cache:
        cache.check()
        return contents(cache)


def drafts(cache: SuffixCache, path: str, prompts: Sequence[Sequence[int]]) -> list[Any]:
    """Drafts for prompts: tokens, probabilities and lengths of the matches."""
    found = []
    for prompt in prompts:
        session = cache.namespace(path).open_session(prompt)
        draft = session.step([], max_draft_tokens=8)
        found.append(
            (draft.token_ids.tolist(), draft.probs.tolist(), draft.match_lens.tolist()),
        )
        session.close(commit=False)
    return found


PROMPTS = [[i, (i + 1) % 13, (i + 2) % 13] for i in range(13)] + [[i, (i + 2) % 13] for i in range(13)]


def seal_one(cache: SuffixCache, path: str) -> None:
    """Seal one batch of a namespace."""
    if path in {record.path for record in parts_of(cache).store.namespaces()}:
        with parts_of(cache).exclusive() as sealer:
            assert sealer is not None
            sealer.seal(parts_of(cache).catalog.index_of(path))


def at(points: dict[str, Callable[[], object]]) -> SyncPoint:
    """A sync point that calls the function of its name, once."""

    def hook(name: str) -> None:
        work = points.pop(name, None)
        if work is not None:
            work()

    return hook


def rewrite(folder: Path, change: Callable[[Any, Callable[[str], Any]], object]) -> None:
    """Change a closed data folder through LMDB, so that only the checks of its records can detect it.

    Args: change: called with the transaction, and with what returns the handle of a database.
    """
    size = (folder / "data.mdb").stat().st_size
    with (
        lmdb.open(str(folder), map_size=size, max_dbs=16, lib_version=0) as env,
        env.begin(write=True) as txn,
    ):
        meta = env.open_db(b"meta", txn=txn, create=False)
        counters = table_records.decode_counters(txn.get(keys.COUNTERS_KEY, db=meta) or b"")
        raw = table_records.encode_counters(replace(counters, txn=txn.id()))
        txn.put(keys.COUNTERS_KEY, raw, db=meta)
        change(txn, lambda name: env.open_db(name.encode(), txn=txn, create=False))


def first_row(txn: Any, handle: Any, skip: int = 0) -> tuple[bytes, bytes]:
    """A row of a database: key and value."""
    with txn.cursor(db=handle) as cursor:
        rows = list(cursor.iternext())
    return bytes(rows[skip][0]), bytes(rows[skip][1])


def flip(raw: bytes, place: int = -9) -> bytes:
    """The value with one bit of a byte changed."""
    changed = bytearray(raw)
    changed[place] ^= 1
    return bytes(changed)
