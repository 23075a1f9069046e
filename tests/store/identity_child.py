"""Child process of the kill tests: upgrades an old folder, or loads outputs, and is killed at a point.

An order (``support.child_runner``): {"folder": ..., "what": "open" or "bulk", "point": name, "hits": n}
"""

from __future__ import annotations

from typing import Any

from store_testing import make_output

from suffixsvc.runtime.sync_points import with_sync_points
from suffixsvc.store import LmdbStore
from suffixsvc.store.transactions.operations import SLICE_ROWS
from support.child_runner import kill_hook
from support.store_parts import store_parts_of


def live(order: dict[str, Any]) -> None:
    if order["what"] == "open":
        store_class = with_sync_points(LmdbStore, kill_hook(order))
        store_class(order["folder"], map_bytes_initial=1, migrate=True).close()
        return
    store = LmdbStore(order["folder"])
    store_parts_of(store).environment.sync_point = kill_hook(order)  # opening has transactions of its own
    outputs = [make_output([n]) for n in range(3 * SLICE_ROWS + 10)]
    store.append([make_output([7], uuid=bytes(range(16, 32))), *outputs]).result()
    store.close()
