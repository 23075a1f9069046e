"""The victim: a store whose disk fails, under the preloaded ``ioerror.c``; killed while it recovers.

An order (``support.victims``):

    {"folder": ..., "kinds": n, "count": n, "point": name, "hits": n}

The point ``refused`` is reached when a caller has been told that nothing was kept, ``closed`` after a close
while the disk still fails. A victim says:

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
from support.victims import killer, say

from suffixsvc.errors import StoreError
from suffixsvc.store import LmdbStore
from suffixsvc.types import NamespaceRecord


def live(order: dict[str, Any]) -> None:
    """It returns where the point is not reached."""
    disk = ctypes.CDLL(None)  # the preloaded library's names are the process's own
    kill = killer(order)
    store = LmdbStore(order["folder"], map_bytes_initial=1, crash_hook=kill)
    store.add_namespace(NamespaceRecord(NS))
    first = store.stats().last_lsn + 1
    for number in range(first, first + 8):
        if number == first + 3:
            disk.ioerror_arm(order["kinds"], order["count"])
        say(f"+ {number}")
        try:
            (output_id,) = store.append([make_output([number] * 50)]).result(60)
        except StoreError:
            say(f"~ {number}")
            kill("refused")
        else:
            say(f"= {number} {output_id}")
    if order["point"] != "closed":
        disk.ioerror_arm(0, 0)
    with contextlib.suppress(StoreError):
        store.close()
    kill("closed")
