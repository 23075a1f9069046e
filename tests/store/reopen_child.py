"""Child process of the kill tests: a store on a failing disk (``ioerror.c``), killed while it recovers.

An order (``support.child_runner``):

    {"folder": ..., "kinds": n, "count": n, "point": name, "hits": n}

The point ``refused`` is reached when a caller has received an error, ``closed`` after a close while the disk
still fails. Output lines:

    + N        about to append content N
    = N ID     acknowledged
    ~ N        refused
    ! POINT    about to be killed
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

from store_testing import NS, make_output

from suffixsvc.errors import StoreError
from suffixsvc.runtime.sync_points import with_sync_points
from suffixsvc.store import LmdbStore
from suffixsvc.types import NamespaceRecord
from support.child_runner import kill_hook, report


def live(order: dict[str, Any]) -> None:
    """Run an order; returns if the point is not reached."""
    disk = ctypes.CDLL(None)  # symbols of the preloaded library
    kill = kill_hook(order)
    store = with_sync_points(LmdbStore, kill)(order["folder"], map_bytes_initial=1)
    store.add_namespace(NamespaceRecord(NS))
    first = store.stats().last_lsn + 1
    for number in range(first, first + 8):
        if number == first + 3:
            disk.ioerror_arm(order["kinds"], order["count"])
        report(f"+ {number}")
        try:
            (output_id,) = store.append([make_output([number] * 50)]).result(60)
        except StoreError:
            report(f"~ {number}")
            kill("refused")
        else:
            report(f"= {number} {output_id}")
    if order["point"] != "closed":
        disk.ioerror_arm(0, 0)
    with contextlib.suppress(StoreError):
        store.close()
    kill("closed")
