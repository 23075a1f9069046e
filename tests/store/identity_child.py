"""The victim: opens a folder of an older schema, or loads many outputs, and is killed at a named point.

An order (``support.victims``): {"folder": ..., "what": "open" or "bulk", "point": name, "hits": n}
"""

from __future__ import annotations

from typing import Any

from store_testing import make_output
from support.victims import killer

from suffixsvc.store import LmdbStore
from suffixsvc.store.operations import SLICE_ROWS


def live(order: dict[str, Any]) -> None:
    if order["what"] == "open":
        LmdbStore(order["folder"], map_bytes_initial=1, crash_hook=killer(order)).close()
        return
    store = LmdbStore(order["folder"])
    store._writer.set_hook(killer(order))  # opening has transactions of its own
    outputs = [make_output([n]) for n in range(3 * SLICE_ROWS + 10)]
    store.append([make_output([7], uuid=bytes(range(16, 32))), *outputs]).result()
    store.close()
