"""Child process of the I/O error tests: a store on a failing disk, under the preloaded ``ioerror.c``.

An order (``support.child_runner``): {"folder": ..., "kinds": n, "count": n,
"periods": n}. It writes a line of JSON: ids by
content of the acknowledged appends, and the contents of the refused ones.
"""

from __future__ import annotations

import ctypes
import json
import time
from typing import Any

from store_testing import NS, make_output

from suffixsvc.errors import StoreError
from suffixsvc.store import LmdbStore
from suffixsvc.types import NamespaceRecord
from support.child_runner import report

#: the disk fails until it is reset
FOR_EVER = 10**6


def live(order: dict[str, Any]) -> None:
    report(json.dumps(trouble(**order)))


def trouble(folder: str, kinds: int, count: int, periods: int) -> dict[str, Any]:
    disk = ctypes.CDLL(None)  # symbols of the preloaded library
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
        """Check that all acknowledged outputs are served, and no others."""
        for content, output_id in acknowledged.items():
            assert store.get(output_id).output.token_ids[0] == content
        assert len(list(store.scan())) == len(acknowledged)

    def await_failure(before: int) -> None:
        deadline = time.monotonic() + 60
        while disk.ioerror_seen() == before:
            assert time.monotonic() < deadline, "the store probes the disk at intervals"
            time.sleep(0.005)

    for _ in range(3):
        append()
    forgotten = acknowledged.pop(1)
    store.forget_many(NS, [forgotten])
    assert not refused
    assert store.failure() is None
    for _ in range(periods):
        disk.ioerror_arm(kinds, count)
        for _ in range(5):
            append()
            if count != FOR_EVER:
                read()  # also while the store is broken: the old file is still open
        seen = disk.ioerror_seen()
        assert seen, "nothing failed"
        if count == FOR_EVER:
            assert store.failure() is not None
            output = max(acknowledged)
            try:
                store.forget_many(NS, [acknowledged[output]])
            except StoreError:
                pass
            else:
                raise AssertionError("forgotten on a disk that takes nothing")
            read()
            # A failed probe of the disk left LMDB unusable, for reads too, until the next probe.
            for _ in range(3):
                await_failure(disk.ioerror_seen())
                read()
        disk.ioerror_arm(0, 0)
        deadline = time.monotonic() + 60
        while store.failure() is not None:  # recovers without a write
            assert time.monotonic() < deadline, f"still failing: {store.failure()}"
            time.sleep(0.005)
        read()
        assert append(), "it works again"
        output = max(acknowledged)
        store.forget_many(NS, [acknowledged.pop(output)])
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
