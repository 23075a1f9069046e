"""Applies the replies of a stream to the copies of the namespaces that are followed."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from suffixsvc import wire
from suffixsvc.log_types import Deletion, LogPosition, NamespaceContents
from suffixsvc.log_wire import output_from_proto, position_from_proto, sealed_from_proto
from suffixsvc.types import SegmentRecord
from suffixsvc.v1 import watch_pb2 as pb
from suffixsvc_follower.contents.mirrors import LivePiece
from suffixsvc_follower.stream.followed import Followed, FollowedTable
from suffixsvc_follower.stream.segment_opener import SegmentOpener

log = logging.getLogger(__name__)


class Applier:
    """State of the copies relative to the log. Its lock is held while copies change.

    Args:
        table: the namespaces.
        opener: opens segment files.

    Attributes:
        lock: held while copies change; the thread of the stream and the one that ends a lease do so.
        position: everything up to here is applied; None: nothing is held.
        welcome: of the present stream; None before it.
        last_message: time (monotonic) of the last reply.
        applied_deletions: deletions were applied since this was last set to False.
    """

    def __init__(self, table: FollowedTable, opener: SegmentOpener) -> None:
        self._table = table
        self._opener = opener
        self.lock = opener.lock
        self.position: LogPosition | None = None
        self.welcome: pb.WatchWelcome | None = None
        self.last_message = time.monotonic()
        self.applied_deletions = False
        self._to_load: list[Followed] = []

    def apply(self, reply: pb.WatchReply) -> None:
        """Apply one reply. ProtocolError: it is malformed; the stream must be begun anew, from nothing."""
        with self.lock:
            match reply.WhichOneof("reply"):
                case "welcome":
                    self.welcome = reply.welcome
                    self._opener.folder = reply.welcome.segment_folder
                case "changes":
                    self._apply_changes(reply.changes)
                case "live":
                    self._apply_live(reply.live)
                case "sealed":
                    self._apply_sealed(reply.sealed)
                case "contents":
                    self._begin_contents(reply.contents)
                case "outputs":
                    self._add_hot(reply.outputs)
                case "refused":
                    self._refuse(reply.refused)
            # a kind of a later version is left out
            self.last_message = time.monotonic()

    def take_to_load(self) -> list[Followed]:
        """The namespaces whose contents must be sent again."""
        taken, self._to_load = self._to_load, []
        return taken

    def clear(self) -> None:
        """Stop drafting from what others wrote: the lease is over, or the stream was malformed."""
        with self.lock:
            self.position = None
            for entry in self._table.values():
                entry.clear()

    # ----------------------------------------------------------------------------------------- contents

    def _begin_contents(self, message: pb.NamespaceContents) -> None:
        entry = self._table.get(message.namespace)
        if entry is None:
            return
        sealed, digests = sealed_from_proto(message.sealed)
        position = position_from_proto(message.position)
        if self.position is None:
            self.position = position
        entry.refused = None
        entry.generation = message.generation
        entry.loading = NamespaceContents(
            message.namespace, message.tokenizer, message.generation, position, sealed, message.learned
        )
        if not entry.copy.learner.changed:
            entry.learned_base = message.learned  # loaded below
        entry.copy.begin_contents(entry.loading, self._opener.open_local(entry, sealed, digests))

    def _add_hot(self, message: pb.HotOutputs) -> None:
        entry = self._table.get(message.namespace)
        if entry is None or entry.loading is None:
            return
        entry.copy.add_hot([output_from_proto(entry.path, each) for each in message.outputs])
        if message.last:
            entry.copy.finish_contents(entry.loading)
            entry.loading, entry.confirmed = None, True
            entry.ready.set()
            self._opener.fetch_missing()

    # ------------------------------------------------------------------------------------------ changes

    def _apply_changes(self, message: pb.LogChanges) -> None:
        for each in message.namespaces:
            entry = self._table.get(each.namespace)
            if entry is None:
                continue
            outputs = [output_from_proto(entry.path, output) for output in each.outputs]
            deletions = [Deletion(entry.generation, d.output_id, d.uuid) for d in each.deletions]
            entry.copy.apply_changes(outputs, deletions)
            self.applied_deletions |= bool(deletions)
            entry.confirmed = True
        self.position = position_from_proto(message.position)

    def _apply_sealed(self, message: pb.SealedContents) -> None:
        entry = self._table.get(message.namespace)
        if entry is not None and entry.generation:
            sealed, digests = sealed_from_proto(message)
            if not _covers(sealed.segments, entry.copy.manifest()):
                # a segment was lost while nobody listened: its outputs are hot again, and were not sent
                entry.generation = 0
                self._to_load.append(entry)
                return
            entry.confirmed = True
            entry.copy.apply_sealed(sealed, self._opener.open_local(entry, sealed, digests))
            self._opener.fetch_missing()

    # -------------------------------------------------------------------------------------------- others

    def _apply_live(self, message: pb.LiveText) -> None:
        entry = self._table.get(message.namespace)
        if entry is None:
            return
        pieces = [LivePiece.from_proto(piece) for piece in message.pieces]
        entry.copy.mirrors.apply(pieces, reset=message.reset)

    def _refuse(self, message: pb.NamespaceRefused) -> None:
        entry = self._table.get(message.namespace)
        if entry is None:
            return
        entry.clear()
        entry.refused = wire.error_from_detail(message.error)
        entry.ready.set()  # nothing will come: waiters end
        log.warning("namespace %s is not followed: %s", entry.path, entry.refused)


def _covers(segments: Iterable[SegmentRecord], before: Iterable[SegmentRecord]) -> bool:
    """Whether every range of an earlier manifest is in one of a later manifest."""
    later = list(segments)
    return all(
        any(each.first_lsn <= old.first_lsn and old.last_lsn <= each.last_lsn for each in later)
        for old in before
    )
