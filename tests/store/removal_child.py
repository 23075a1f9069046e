"""Child process of the kill tests: deletes a namespace and is killed at a named point of a transaction.

An order (``support.child_runner``): {"folder": ..., "point": name, "hits": n}
"""

from __future__ import annotations

from typing import Any

from store_testing import NS as OWN
from store_testing import make_output

from suffixsvc.store import LmdbStore
from suffixsvc.store.base import Store
from suffixsvc.types import NamespaceRecord
from support.child_runner import kill_hook
from support.store_parts import store_parts_of

#: outputs of the deleted namespace; two of them are forgotten before
OUTPUTS = 600


def fill_namespaces(store: Store, going: str, staying: str) -> None:
    """Write outputs with shared payloads and TTLs, states, segments and tombstones to both namespaces."""
    store.add_namespace(NamespaceRecord(going))
    store.add_namespace(NamespaceRecord(staying, "xxh3:1"))
    for path, count in ((going, OUTPUTS), (staying, 5)):
        ids = store.append(
            [make_output([i // 2], namespace=path, ttl_seconds=10**6 * (i % 2)) for i in range(count)]
        ).result()
        store.add_segment(path, f"{count}-a", 100, dict.fromkeys(ids[:2], 1))
        store.add_segment(path, f"{count}-b", 100, dict.fromkeys(ids[2:4], 1))
        store.forget_many(path, ids[1:3])
    store.put_state(going, "mixer", b"ours")
    store.put_state(going, "tables", bytes(9000))
    store.put_state(staying, "mixer", b"theirs")


def live(order: dict[str, Any]) -> None:
    """Run an order; returns if the deletion has fewer transactions than the order requires."""
    store = LmdbStore(order["folder"])
    store_parts_of(store).environment.sync_point = kill_hook(order)  # opening has transactions of its own
    store.delete_namespace(OWN)
    store.close()
