"""Queue of waiting requests that is fair between principals, and within each between its namespaces.

    share ("alice", "sql")        root ── alice ── sql ── items, the oldest first
                                    │       └───── docs
                                    └──── bob ──── sql

An item belongs to a *share*: a path of names. At each level the next one is the child that was served the
fewest tokens, and whose last turn was longest ago among equals. This is the virtual token counter of Sheng et
al., "Fairness in Serving Large Language Models" (OSDI 2024), at every level: a child that floods the queue
delays itself, not the others, under whatever names below it. One that was idle is lifted to the lowest
counter of those that wait, or to that of the child that was served last, so that it cannot save up.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

T = TypeVar("T")

#: path of names, the widest first; all items of a queue have paths of the same length
Share = tuple[str, ...]

#: children of a node whose counters are kept while they have no items: those that were served last
MAX_IDLE: Final = 256


class _Node(Generic[T]):
    """Items of a share and of those below it."""

    def __init__(self) -> None:
        self.size = 0  # items here and below
        self.served = 0  # tokens
        self.turn = 0  # when an item was last removed, in turns of the parent
        self.items: deque[T] = deque()
        self.waiting: dict[str, _Node[T]] = {}  # children with items
        self.idle: OrderedDict[str, _Node[T]] = OrderedDict()  # others, the least recently served first
        self._turns = 0
        self._lowest = 0  # counter of the child of the last item, when that was removed

    def enter(self, name: str) -> _Node[T]:
        """Return a child that gets an item."""
        if name not in self.waiting:
            lowest = min((each.served for each in self.waiting.values()), default=self._lowest)
            child = self.idle.pop(name, None) or _Node[T]()
            child.served = max(lowest, child.served)
            self.waiting[name] = child
        return self.waiting[name]

    def next(self) -> tuple[str, _Node[T]]:
        """Return the child whose turn it is."""
        name, child = min(self.waiting.items(), key=lambda each: (each[1].served, each[1].turn))
        self._turns += 1
        child.turn = self._turns
        self._lowest = max(self._lowest, child.served)
        return name, child

    def leave(self, name: str) -> None:
        """Count an item less of a child."""
        child = self.waiting[name]
        child.size -= 1
        if not child.size:
            del self.waiting[name]
            self._rest(name, child)

    def charge(self, name: str, tokens: int) -> _Node[T]:
        """Count tokens that a child was served, and return it."""
        child = self.waiting.get(name)
        if child is None:
            child = self.idle.pop(name, None)
            if child is None:
                child = _Node()
                child.served = self._lowest
            self._rest(name, child)
        child.served += tokens
        return child

    def _rest(self, name: str, child: _Node[T]) -> None:
        self.idle[name] = child
        if len(self.idle) > MAX_IDLE:
            self.idle.popitem(last=False)


class FairQueue(Generic[T]):
    """Waiting items by share. Not thread-safe."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def __len__(self) -> int:
        return self._root.size

    def waiting(self, share: Sequence[str]) -> int:
        """Return the number of waiting items of a share and of those below it."""
        node = self._find(share)
        return 0 if node is None else node.size

    def push(self, share: Share, item: T) -> None:
        """Append an item."""
        node = self._root
        node.size += 1
        for name in share:
            node = node.enter(name)
            node.size += 1
        node.items.append(item)

    def pop(self) -> T | None:
        """Remove and return the next item; None if nothing waits."""
        if not self._root.size:
            return None
        node, share = self._root, []
        while not node.items:
            name, node = node.next()
            share.append(name)
        item = node.items.popleft()
        self._leave(share)
        return item

    def remove(self, share: Share, item: T) -> bool:
        """Remove an item; return whether it waited."""
        node = self._find(share)
        if node is None or item not in node.items:
            return False
        node.items.remove(item)
        self._leave(share)
        return True

    def drain(self) -> list[T]:
        """Remove and return all items."""
        items = []
        while (item := self.pop()) is not None:
            items.append(item)
        return items

    def charge(self, share: Share, tokens: int) -> None:
        """Count tokens that a share was served, at every level; negative ones take a count back."""
        node = self._root
        for name in share:
            node = node.charge(name, tokens)

    def forget_idle(self) -> None:
        """Drop the counters, when no request waits or runs: all shares are equal again."""
        self._root = _Node()

    def _find(self, share: Sequence[str]) -> _Node[T] | None:
        """Return the node of a share that has items."""
        node: _Node[T] | None = self._root
        for name in share:
            node = None if node is None else node.waiting.get(name)
        return node

    def _leave(self, share: Sequence[str]) -> None:
        """Count an item less at every level."""
        self._root.size -= 1
        node = self._root
        for name in share:
            child = node.waiting[name]
            node.leave(name)
            node = child
