"""Outputs that sessions of this process have closed and that the service has not decided about yet.

    begin ──> pending ──┬─ the log has it, the copy lacks it             ──> the live text becomes the copy's
                        ├─ the log has it, the copy has it or must not   ──> the live text is removed
                        ├─ the service kept nothing of it, or deleted it ──> the live text is removed
                        └─ failed                                        ──> live again

A write is decided once, by the first of: its row in the log, its deletion, the service's reply, a failure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from suffixsvc.errors import InvalidInputError
from suffixsvc.index import OnCommitted
from suffixsvc.runtime.signal_guard import new_future
from suffixsvc.types import NewOutput, OutputId

log = logging.getLogger(__name__)

_UUID_BYTES = 16


@dataclass(frozen=True, slots=True, eq=False)
class OwnWrite:
    """One output on its way to the service.

    Attributes:
        output: with its uuid.
        on_committed: see ``suffixsvc.index.OnCommitted``.
        since: id up to which the copy knew the log when the write began.
        future: see ``suffixsvc.index.Commit``; done after ``on_committed`` was called.
    """

    output: NewOutput
    on_committed: OnCommitted
    since: OutputId
    future: Future[list[OutputId | None]] = field(default_factory=new_future)


@dataclass(frozen=True, slots=True)
class Decided:
    """A write that left the table; :meth:`finish` must be called, without locks.

    Attributes:
        kept: ``on_committed`` was called with the id; otherwise :meth:`finish` calls it with None.
        error: why it failed; None if it did not.
    """

    write: OwnWrite
    output_id: OutputId | None = None
    kept: bool = False
    error: BaseException | None = None

    def finish(self) -> None:
        """Remove the live text unless it was kept, then complete the future."""
        write = self.write
        if not self.kept:
            _call(write, None)
        if self.error is None:
            write.future.set_result([self.output_id])
        else:
            write.future.set_exception(self.error)


class OwnWrites:
    """Pending writes of one namespace by uuid. Not thread-safe: the copy's lock is held around every call."""

    def __init__(self) -> None:
        self._pending: dict[bytes, list[OwnWrite]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._pending.values()))

    def add(self, output: NewOutput, on_committed: OnCommitted, since: OutputId) -> OwnWrite:
        """Add a write. InvalidInputError: the output has no uuid."""
        if len(output.uuid) != _UUID_BYTES:
            raise InvalidInputError(
                f"output.uuid must be {_UUID_BYTES} bytes",
                got=f"{len(output.uuid)} bytes",
                remedy="Close the session with a session_id.",
            )
        write = OwnWrite(output, on_committed, since)
        write.future.set_running_or_notify_cancel()  # callers cannot cancel it
        self._pending.setdefault(output.uuid, []).append(write)
        return write

    def logged(self, uuid: bytes, output_id: OutputId, wanted: Callable[[OutputId], bool]) -> list[Decided]:
        """Decide the writes of a uuid, which the log has.

        Args:
            wanted: whether the copy is to hold the output; the text of the first write that finds it so
                becomes the copy's.
        """
        return [self._logged(write, output_id, wanted) for write in self._pending.pop(uuid, ())]

    def _logged(self, write: OwnWrite, output_id: OutputId, wanted: Callable[[OutputId], bool]) -> Decided:
        kept = wanted(output_id)
        if kept:
            _call(write, output_id)
        return Decided(write, output_id, kept)

    def deleted(self, uuid: bytes, output_id: OutputId) -> list[Decided]:
        """Decide the writes of a uuid whose output was logged and deleted.

        A deletion from before a write began, delivered again, is not that of the write.
        """
        pending = self._pending.pop(uuid, ())
        earlier = [write for write in pending if output_id <= write.since]
        if earlier:
            self._pending[uuid] = earlier
        return [Decided(write, output_id) for write in pending if output_id > write.since]

    def kept_nothing(self, uuid: bytes) -> list[Decided]:
        """Decide the writes of a uuid of which the service kept nothing."""
        return [Decided(write) for write in self._pending.pop(uuid, ())]

    def failed(self, uuid: bytes, error: BaseException) -> list[Decided]:
        """Decide the writes of a uuid that could not be sent."""
        return [Decided(write, error=error) for write in self._pending.pop(uuid, ())]


def _call(write: OwnWrite, output_id: OutputId | None) -> None:
    """The log has decided: an error in the index does not change that."""
    try:
        write.on_committed(output_id)
    except Exception:
        log.exception("the text of an output of namespace %s could not be moved", write.output.namespace)
