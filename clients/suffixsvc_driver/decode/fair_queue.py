"""Queue of waiting requests that is fair between namespaces.

The next request is the oldest one of the namespace that has been served the fewest tokens: the virtual token
counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024). A namespace that floods the
queue delays itself, not the others. One that was idle is lifted to the lowest counter of those that wait, so
that it cannot save up.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Waiting items by namespace. Not thread-safe."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[T]] = {}
        self._served: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def push(self, namespace: str, item: T) -> None:
        """Append an item."""
        if namespace not in self._waiting:
            lowest = min((self._served[name] for name in self._waiting), default=0)
            self._served[namespace] = max(lowest, self._served.get(namespace, 0))
            self._waiting[namespace] = deque()
        self._waiting[namespace].append(item)

    def pop(self) -> T | None:
        """Remove and return the next item; None if nothing waits."""
        if not self._waiting:
            return None
        namespace = min(self._waiting, key=self._served.__getitem__)
        item = self._waiting[namespace].popleft()
        self._drop_empty(namespace)
        return item

    def remove(self, namespace: str, item: T) -> bool:
        """Remove an item; return whether it waited."""
        if item not in self._waiting.get(namespace, ()):
            return False
        self._waiting[namespace].remove(item)
        self._drop_empty(namespace)
        return True

    def drain(self) -> list[T]:
        """Remove and return all items."""
        items = [item for queue in self._waiting.values() for item in queue]
        self._waiting.clear()
        return items

    def charge(self, namespace: str, tokens: int) -> None:
        """Count tokens that a namespace was served."""
        self._served[namespace] = self._served.get(namespace, 0) + tokens

    def forget_idle(self) -> None:
        """Drop the counters, when no request waits or runs: all namespaces are equal again."""
        self._served.clear()

    def _drop_empty(self, namespace: str) -> None:
        if not self._waiting[namespace]:
            del self._waiting[namespace]
