"""A life of a store whose disk fails for a while, under the preloaded ``ioerror.c``.

LD_PRELOAD=ioerror.so python ioerror_child.py FOLDER KINDS COUNT

Prints, as a line of JSON, what callers were told: ids by content of the appends that were acknowledged and
the contents of those that were refused.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any

from store_testing import NS, make_output

from suffixsvc.errors import StoreError
from suffixsvc.store import LmdbStore
from suffixsvc.types import NamespaceRecord

#: a disk that fails until it is told to work
FOR_EVER = 10**6


def main(folder: str, kinds: int, count: int) -> dict[str, Any]:
    disk = ctypes.CDLL(None)  # the preloaded library's names are the process's own
    store = LmdbStore(folder, map_bytes_initial=1)
    store.add_namespace(NamespaceRecord(NS))
    acknowledged: dict[int, int] = {}
    refused: list[int] = []
    failures: list[str] = []
    number = 0

    def append() -> bool:
        nonlocal number
        number += 1
        try:
            acknowledged[number] = store.append([make_output([number] * 50)]).result(60)[0]
        except StoreError as error:
            refused.append(number)
            failures.append(str(error))
            return False
        return True

    def read() -> None:
        """What was acknowledged is served, and nothing else."""
        for content, output_id in acknowledged.items():
            assert store.get(output_id).output.token_ids[0] == content
        assert len(list(store.scan())) == len(acknowledged)

    def await_failure(before: int) -> None:
        deadline = time.monotonic() + 60
        while disk.ioerror_seen() == before:
            assert time.monotonic() < deadline, "the store tries the disk from time to time"
            time.sleep(0.005)

    for _ in range(3):
        append()
    forgotten = acknowledged.pop(1)
    store.forget(NS, forgotten)
    assert not refused
    assert store.failure() is None
    for _ in range(4):  # four bouts of trouble
        disk.ioerror_arm(kinds, count)
        for _ in range(5):
            append()
            if count != FOR_EVER:
                read()  # also while the store is broken: the old file is still open
        seen = disk.ioerror_seen()
        assert seen, "nothing failed"
        if count == FOR_EVER:
            assert store.failure() is not None
            victim = max(acknowledged)
            try:
                store.forget(NS, acknowledged[victim])
            except StoreError:
                pass
            else:
                raise AssertionError("forgotten on a disk that takes nothing")
            read()
            # A trial of the disk that failed left LMDB unusable, for reads too, until the next trial.
            for _ in range(3):
                await_failure(disk.ioerror_seen())
                read()
        disk.ioerror_arm(0, 0)
        deadline = time.monotonic() + 60
        while store.failure() is not None:  # no write: by itself
            assert time.monotonic() < deadline, f"still failing: {store.failure()}"
            time.sleep(0.005)
        read()
        assert append(), "it works again"
        victim = max(acknowledged)
        store.forget(NS, acknowledged.pop(victim))
    store.check()
    stats = store.stats()
    store.close()
    return {
        "acknowledged": acknowledged,
        "refused": refused,
        "failures": failures,
        "reopened": stats.reopened,
        "defects": stats.defects,
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
