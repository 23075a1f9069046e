"""What the log holds of a namespace, which is nothing before its first output."""

from __future__ import annotations

from suffixsvc import SuffixCache
from suffixsvc.types import StoredOutput
from support.engine_parts import parts_of

__all__ = ["stored_outputs"]


def stored_outputs(cache: SuffixCache, namespace: str) -> list[StoredOutput]:
    """The rows, in the order of the log; none where the store does not know the namespace."""
    return [stored for stored in parts_of(cache).store.scan() if stored.output.namespace == namespace]
