"""Copy of one namespace of a service: the index that local sessions draft from and write to.

    hot outputs     rows of the log ──> hot index; by id, with the number of the text
    segments        attached; their outputs leave the hot index (manifest_index.py)
    own writes      live text of a session ──> hot output, once the log has it (own_writes.py)
    mirrors         live text of other processes (mirrors.py)

The copy is complete up to an id, :attr:`NamespaceCopy.seen`: rows come in the order of their ids. So an id up
to it that the copy does not hold was deleted, or must not be held, and what arrives late about it, as a reply
to a close or a row that is sent again, does not bring it back.

Threads. One thread, the stream's, calls ``begin_contents``, ``add_hot``, ``finish_contents``,
``apply_changes``, ``apply_sealed``, ``attach_opened``, ``maintain``, ``clear`` and the mirrors. Every other
method may be called by any thread. A decision about an output (held or not) is made under the namespace's
lock. The stream's thread inserts and removes texts without it, after the id was entered or taken out.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from suffixsvc.core import WriteSignal
from suffixsvc.index import OnCommitted, Sealed
from suffixsvc.log_types import Deletion, NamespaceContents, SealedContents
from suffixsvc.log_wire import PUBLISHED_GENERATION
from suffixsvc.types import NewOutput, OutputId, StoredOutput
from suffixsvc_follower.contents.manifest_index import ManifestIndex
from suffixsvc_follower.contents.mirrors import Mirrors
from suffixsvc_follower.contents.own_writes import Decided, OwnWrite, OwnWrites

log = logging.getLogger(__name__)

#: objects of a hot output besides its tokens, in bytes
_BYTES_PER_OUTPUT: Final = 700
#: memory of a token in the output that is kept beside the index, in bytes
_BYTES_PER_TOKEN: Final = 4
#: ids that :meth:`NamespaceCopy.take_used` returns at most
_MAX_USED: Final = 1 << 16


class _Held(NamedTuple):
    """A hot output and the writer number of its texts (0: they are being inserted)."""

    output: NewOutput
    writer: int


class NamespaceCopy(ManifestIndex):
    """The outputs of a namespace of a service, for sessions of this process.

    Local sessions are ``suffixsvc.index.Session`` objects over it.

    Args:
        path: path of the namespace.
        hot_limit_bytes: limit of the memory of hot outputs; the oldest ones are not held. None: no limit.
        mirror_limit_tokens: limit of the live text of other processes.
        written: is told when local sessions have written tokens.

    Attributes:
        mirrors: live text of other processes; the stream's thread.
        seen: every id up to it that is not held was deleted, or is not to be held.
        dropped_outputs: hot outputs that were not held because of the limit, since the last contents.
    """

    def __init__(
        self,
        path: str,
        *,
        hot_limit_bytes: int | None = None,
        mirror_limit_tokens: int = 1 << 20,
        written: WriteSignal | None = None,
    ) -> None:
        super().__init__(path, written)
        self.mirrors = Mirrors(self, mirror_limit_tokens)
        self.seen: OutputId = 0
        self.dropped_outputs = 0
        self._hot_limit = hot_limit_bytes
        self._hot: dict[OutputId, _Held] = {}
        self._id_of: dict[int, OutputId] = {}  # of hot texts, by their writer number
        self._own = OwnWrites()
        #: outputs that drafts were taken from, in the order of their last use
        self._used: dict[OutputId, None] = {}
        #: contents were begun, and not cleared since
        self._following = False
        #: they are published runs: outputs are not held, those of this process neither
        self._published_only = False
        self._loading = False
        #: outputs from before the contents that are being loaded, which have not come again
        self._unconfirmed: set[OutputId] = set()
        self._oldest: list[OutputId] = []  # heap, with ids that have left; only with a limit

    # ------------------------------------------------------------------------------------------- contents

    def begin_contents(self, contents: NamespaceContents, segments: Sequence[Sealed]) -> None:
        """Begin to replace everything that is held. :meth:`add_hot` and :meth:`finish_contents` follow.

        A copy that is interrupted before the end begins again.

        Args:
            segments: segments of the contents that are not attached, or whose file is another one; those
                that cannot be opened yet are left to :meth:`attach_opened`.
        """
        with self._lock:
            self.tokenizer = contents.tokenizer
            self._following = self._loading = True
            self._published_only = contents.generation == PUBLISHED_GENERATION
            self.seen = self.dropped_outputs = 0
            self._unconfirmed = set(self._hot)
            self._set_manifest(contents.sealed)
            moved = self._attach(segments)
        self._drop(moved)
        # what drafting learned here is newer
        if contents.learned and not self.learner.changed and not self.learner.load(contents.learned):
            log.warning("what the service learned for %s has another format and is not used", self.path)

    def add_hot(self, outputs: Sequence[StoredOutput]) -> None:
        """Add outputs that no segment of the contents holds. Those that are held stay as they are."""
        self._apply(outputs)

    def finish_contents(self, contents: NamespaceContents) -> None:
        """Remove what is not in the contents: outputs, segments and live text of others."""
        with self._lock:
            self._note_used()
            gone = self._take_out(self._unconfirmed)
            self._unconfirmed = set()
            self._keep_segments(self._records)
            self._loading = False
            self.seen = contents.position.lsn
        self._drop(gone)
        self.mirrors.clear()

    def apply_changes(self, outputs: Sequence[StoredOutput], deletions: Sequence[Deletion]) -> None:
        """Apply the log's next changes: outputs, then deletions. Changes that were applied change nothing.

        The deletion of the namespace (id 0) clears the copy: it holds nothing until the next contents.
        """
        self._apply(outputs)
        for deletion in deletions:
            if deletion.output_id:
                self._delete(deletion)
            else:
                self.clear()

    def clear(self) -> None:
        """Hold nothing until the next contents. The text of local sessions that are not closed stays."""
        with self._lock:
            self._following = self._loading = False
            self.seen = 0
            self._unconfirmed = set()
            self._set_manifest(SealedContents())
            self._keep_segments(())
            gone = self._take_out(list(self._hot))
            self._used = {}
        self._drop(gone)
        self.mirrors.clear()

    def _apply(self, outputs: Sequence[StoredOutput]) -> None:
        for stored in outputs:
            self._apply_row(stored.output_id, stored.output)
            if stored.output.session_id:
                self.mirrors.end(stored.output.session_id)

    def _apply_row(self, output_id: OutputId, output: NewOutput) -> None:
        with self._lock:
            held = self._hot.get(output_id)
            other = held is not None and held.output.uuid != output.uuid
            stale = self._take_out([output_id]) if other else []  # of a log that was restored since
            decided = self._own.logged(output.uuid, output_id, self._is_wanted)
            inserts = self._is_wanted(output_id)
            if inserts:
                self._count_locked(output, 1)
                self._hold(output_id, _Held(output, 0))
            self._unconfirmed.discard(output_id)
        self._drop(stale)
        if inserts:
            self._insert_held(output_id, output)
        with self._lock:
            if not self._loading:
                self.seen = max(self.seen, output_id)
        _finish(decided)
        self._enforce_limit()

    def _insert_held(self, output_id: OutputId, output: NewOutput) -> None:
        try:
            writer = self.insert(output)
        except BaseException:
            with self._lock:
                self._take_out([output_id])
            raise
        with self._lock:
            self._hold(output_id, _Held(output, writer))

    def _delete(self, deletion: Deletion) -> None:
        output_id = deletion.output_id
        with self._lock:
            gone = self._take_out([output_id])
            self._forget_sealed(output_id)
            decided = self._own.deleted(deletion.uuid, output_id)
            if not self._loading:
                self.seen = max(self.seen, output_id)
        self._drop(gone)
        _finish(decided)

    # ---------------------------------------------------------------------------------------- hot outputs

    def record_logged(self, output: NewOutput, writer: int, output_id: OutputId) -> None:
        """Hold the text of a local session as that of an output. Called by the session's commit."""
        with self._lock:
            super().record_logged(output, writer, output_id)
            self._hold(output_id, _Held(output, writer))
            if self._loading:
                self._unconfirmed.add(output_id)  # it comes in these contents, or after them

    def _is_wanted(self, output_id: OutputId) -> bool:
        """Whether the copy lacks an output of the log and is to hold it."""
        if not self._following or self._published_only or output_id in self._hot:
            return False
        return output_id > self.seen and not self._is_sealed(output_id)

    def _hold(self, output_id: OutputId, held: _Held) -> None:
        if self._hot_limit is not None and output_id not in self._hot:
            heapq.heappush(self._oldest, output_id)
            if len(self._oldest) > 64 + 2 * len(self._hot):  # most of them have left
                self._oldest = sorted({*self._hot, output_id})
        self._hot[output_id] = held
        if held.writer:
            self._id_of[held.writer] = output_id

    def _take_out(self, output_ids: Iterable[OutputId]) -> list[StoredOutput]:
        """Stop holding those of the outputs that are hot; :meth:`_drop` then removes their texts."""
        gone = []
        for output_id in list(output_ids):
            held = self._hot.pop(output_id, None)
            if held is None:
                continue
            self._id_of.pop(held.writer, None)
            self._count_locked(held.output, -1)
            if held.writer:
                gone.append(StoredOutput(output_id, 0.0, held.output))
        self._changes += len(gone)
        return gone

    def _drop(self, gone: Sequence[StoredOutput]) -> None:
        missing = self.drop_hot(gone)
        if missing:
            log.error("%d outputs of namespace %s were not in the hot index", missing, self.path)

    def _hot_bytes(self) -> int:
        """Memory of the hot outputs, without live text."""
        native = self.index.stats()
        with self._lock:
            share = self._positions / native.tokens if native.tokens else 0.0
            kept = len(self._hot) * _BYTES_PER_OUTPUT + self._positions * _BYTES_PER_TOKEN
        return int(native.used * min(1.0, share)) + kept

    def _enforce_limit(self) -> None:
        """Stop holding the oldest hot outputs while they exceed the limit."""
        while self._hot_limit is not None and self._hot_bytes() > self._hot_limit:
            with self._lock:
                while self._oldest and self._oldest[0] not in self._hot:
                    heapq.heappop(self._oldest)
                if not self._oldest:
                    return
                output_id = self._oldest[0]
                self.dropped_outputs += output_id not in self._unconfirmed
                self._note_used()
                gone = self._take_out([output_id])
            self._drop(gone)

    # ------------------------------------------------------------------------------------------- segments

    def apply_sealed(self, sealed: SealedContents, segments: Sequence[Sealed]) -> None:
        """Use another manifest: attach new segments, detach those that are gone, and forget the deleted.

        At once when the manifest is received, so that it knows every deletion that was applied.

        Args:
            segments: as for :meth:`begin_contents`.
        """
        with self._lock:
            if not self._following:
                return
            self._set_manifest(sealed)
            moved = self._attach(segments)
            self._keep_segments(self._records)
        self._drop(moved)

    def attach_opened(self, segments: Sequence[Sealed]) -> None:
        """Attach segments of the manifest that could not be opened when it was received."""
        with self._lock:
            moved = self._attach(segments)
        self._drop(moved)

    def _attach(self, segments: Sequence[Sealed]) -> list[StoredOutput]:
        """Attach segments of the manifest; returns the hot outputs that they hold, to be dropped."""
        fresh = {each.record.name: each for each in segments if each.record.name in self._records}
        self._note_used()
        kept = [each for each in self.segments.sealed if each.record.name not in fresh]
        self._use([*kept, *fresh.values()])
        ids = np.fromiter(self._hot, np.int64, len(self._hot))
        covered = np.zeros(len(ids), bool)
        for record in self._attached_records():
            covered |= (ids >= record.first_lsn) & (ids <= record.last_lsn)
        return self._take_out(ids[covered].tolist())

    def _keep_segments(self, names: Iterable[str]) -> None:
        """Detach the segments that are not named."""
        self._note_used()
        keep = set(names)
        self._use([each for each in self.segments.sealed if each.record.name in keep])

    # ----------------------------------------------------------------------------------------- own writes

    def begin_own(self, output: NewOutput, on_committed: OnCommitted) -> OwnWrite:
        """Begin to write the output of a local session to the service.

        Args:
            output: with the uuid that the service logs it under.
            on_committed: as for ``suffixsvc.index.Commit``, of which :attr:`OwnWrite.future` is the result.
        """
        with self._lock:
            return self._own.add(output, on_committed, self.seen)

    def acknowledge(self, uuid: bytes, output_id: OutputId | None) -> None:
        """The service has the output of a write under this id, or (None) kept nothing of it."""
        with self._lock:
            if output_id is None:
                decided = self._own.kept_nothing(uuid)
            else:
                decided = self._own.logged(uuid, output_id, self._is_wanted)
        if output_id is None and decided and self.count_refused():
            log.warning("outputs of namespace %s are not stored by the service", self.path)
        _finish(decided)

    def fail(self, uuid: bytes, error: BaseException) -> None:
        """A write could not be sent; its session stays open."""
        with self._lock:
            decided = self._own.failed(uuid, error)
        _finish(decided)

    @property
    def following(self) -> bool:
        """Whether it holds contents, or receives them."""
        return self._following

    @property
    def pending_writes(self) -> int:
        """Number of own writes that are not decided."""
        with self._lock:
            return len(self._own)

    # ------------------------------------------------------------------------------------- use and memory

    def take_used(self) -> list[OutputId]:
        """The outputs that drafts were taken from since the last call, least recent first."""
        with self._lock:
            self._note_used()
            used, self._used = list(self._used), {}
            return used

    def _note_used(self) -> None:
        """Fetch from the core which texts drafts were taken from, before any of them leaves."""
        hot = (self._id_of.get(writer, 0) for writer in self.index.take_recently_used())
        sealed = (i for each in self.segments.sealed for i in each.segment.take_recently_used())
        for output_id in (*hot, *sealed):
            if output_id:
                self._used.pop(output_id, None)
                self._used[output_id] = None
        while len(self._used) > _MAX_USED:
            del self._used[next(iter(self._used))]

    def outputs(self) -> set[OutputId]:
        """The ids that are held, hot and in segments."""
        with self._lock:
            return {*self._hot, *(i for each in self.segments.sealed for i in each.segment.outputs())}

    @property
    def held_bytes(self) -> int:
        """Memory of the copy, live text included, without mapped files."""
        native = self.index.stats()
        with self._lock:
            tables = sum(each.segment.stats().resident_bytes for each in self.segments.sealed)
            kept = len(self._hot) * _BYTES_PER_OUTPUT + self._positions * _BYTES_PER_TOKEN
        held: int = native.bytes + native.session_bytes + tables + kept
        return held


def _finish(decided: Iterable[Decided]) -> None:
    for each in decided:
        each.finish()
