"""Queue of waiting requests that is fair between namespaces.

The next request is the oldest one of the namespace that has been served the fewest tokens, and whose last
turn was longest ago among equals. This is the virtual token counter of Sheng et al., "Fairness in Serving
Large Language Models" (OSDI 2024). A namespace that floods the queue delays itself, not the others. One that
was idle is lifted to the lowest counter of those that wait, or to that of the namespace that was served last,
so that it cannot save up.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

T = TypeVar("T")

#: counters of idle namespaces are dropped when there are more than this, and more than of others
_MAX_IDLE: Final = 64


class FairQueue(Generic[T]):
    """Waiting items by namespace. Not thread-safe."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[T]] = {}
        self._served: dict[str, int] = {}
        self._turn: dict[str, int] = {}  # when an item of the namespace was last removed
        self._turns = 0
        self._lowest = 0  # counter of the namespace of the last item, when it was removed

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def waiting(self, namespace: str) -> int:
        """Return the number of waiting items of a namespace."""
        return len(self._waiting.get(namespace, ()))

    def push(self, namespace: str, item: T) -> None:
        """Append an item."""
        if namespace not in self._waiting:
            lowest = min((self._served[name] for name in self._waiting), default=self._lowest)
            self._served[namespace] = max(lowest, self._served.get(namespace, 0))
            self._waiting[namespace] = deque()
        self._waiting[namespace].append(item)

    def pop(self) -> T | None:
        """Remove and return the next item; None if nothing waits."""
        if not self._waiting:
            return None
        namespace = min(self._waiting, key=lambda name: (self._served[name], self._turn.get(name, 0)))
        item = self._waiting[namespace].popleft()
        self._drop_empty(namespace)
        self._turns += 1
        self._turn[namespace] = self._turns
        self._lowest = max(self._lowest, self._served[namespace])
        self._drop_counters()
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
        """Count tokens that a namespace was served; negative ones take a count back."""
        self._served[namespace] = self._served.get(namespace, self._lowest) + tokens

    def forget_idle(self) -> None:
        """Drop the counters, when no request waits or runs: all namespaces are equal again."""
        self._served.clear()
        self._turn.clear()
        self._lowest = 0

    def _drop_empty(self, namespace: str) -> None:
        if not self._waiting[namespace]:
            del self._waiting[namespace]

    def _drop_counters(self) -> None:
        """Drop the counters that the next push would lift: those of idle namespaces, so far behind."""
        if len(self._served) > 2 * len(self._waiting) + _MAX_IDLE:
            self._served = {
                name: served
                for name, served in self._served.items()
                if name in self._waiting or served > self._lowest
            }
            self._turn = {name: turn for name, turn in self._turn.items() if name in self._served}
