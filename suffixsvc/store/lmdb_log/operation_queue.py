"""Queue of the store's thread: small operations and bulk loads, batched for group commit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from suffixsvc.runtime.signal_guard import AtomicCondition
from suffixsvc.store.transactions.operations import SLICE_BYTES, SLICE_ROWS, Operation

#: limits of one transaction of small operations: its dirty pages stay far below LMDB's own limit
_BATCH_BYTES: Final = 32 << 20
_BATCH_ROWS: Final = 4096


class OperationQueue:
    """Two FIFO queues served alternately: a bulk load delays small operations by one slice. Thread-safe."""

    def __init__(self) -> None:
        self._small: deque[Operation[Any]] = deque()
        self._bulk: deque[Operation[Any]] = deque()
        self._bulk_was_last = False
        self._wake = AtomicCondition()
        self._closing = False

    def __len__(self) -> int:
        return len(self._small) + len(self._bulk)

    def put(self, operation: Operation[Any]) -> bool:
        """Append an operation; False once closed."""
        with self._wake:
            if self._closing:
                return False
            self._queue_of(operation).append(operation)
            self._wake.notify()
            return True

    def requeue(self, operation: Operation[Any]) -> None:
        """Put an operation with a further slice back to the front of its queue."""
        with self._wake:
            self._queue_of(operation).appendleft(operation)

    def close(self) -> None:
        """Accept no further operations; those queued are still taken."""
        with self._wake:
            self._closing = True
            self._wake.notify()

    def take_batch(self, timeout: Callable[[], float | None]) -> list[Operation[Any]] | None:
        """Wait for operations and remove a batch of one queue, up to the size of a transaction.

        Args:
            timeout: seconds to wait, None for no limit; called before each wait.

        Returns:
            The batch; empty when the timeout is 0; None once closed and drained.
        """
        with self._wake:
            while not (self._small or self._bulk):
                if self._closing:
                    return None
                seconds = timeout()
                if seconds is not None and seconds <= 0.0:
                    return []
                self._wake.wait(seconds)
            is_bulk = bool(self._bulk) and not (self._small and self._bulk_was_last)
            self._bulk_was_last = is_bulk
            queue = self._bulk if is_bulk else self._small
            max_rows, max_bytes = (SLICE_ROWS, SLICE_BYTES) if is_bulk else (_BATCH_ROWS, _BATCH_BYTES)
            batch = [queue.popleft()]
            rows, size = batch[0].rows, batch[0].size
            while queue and not (batch[-1].between_transactions or queue[0].between_transactions):
                rows, size = rows + queue[0].rows, size + queue[0].size
                if rows > max_rows or size > max_bytes:
                    break
                batch.append(queue.popleft())
            return batch

    def _queue_of(self, operation: Operation[Any]) -> deque[Operation[Any]]:
        return self._bulk if operation.bulk else self._small
