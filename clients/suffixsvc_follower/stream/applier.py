"""Applies the replies of a stream to the copies of the namespaces that are followed."""

from __future__ import annotations

import logging
import math
from typing import Final

from suffixsvc import wire
from suffixsvc.errors import PermissionDeniedError, ProtocolError, UnsupportedVersionError
from suffixsvc.log_types import Deletion, LogPosition, NamespaceContents, covers
from suffixsvc.log_wire import (
    PUBLISHED_GENERATION,
    WATCH_PROTOCOL,
    output_from_proto,
    position_from_proto,
    sealed_from_proto,
)
from suffixsvc.v1 import watch_pb2 as pb
from suffixsvc_follower.contents.mirrors import LivePiece
from suffixsvc_follower.stream.followed import Followed, FollowedTable
from suffixsvc_follower.stream.lease import Lease
from suffixsvc_follower.stream.segment_opener import SegmentOpener

log = logging.getLogger(__name__)

#: lease of a service that has not been reached yet
_LEASE_SECONDS: Final = 15.0


class Applier:
    """State of the copies relative to the log. Its lock is held while copies change.

    Args:
        table: the namespaces.
        opener: opens segment files.

    Attributes:
        lock: held while copies change; the thread of the stream and the one that ends a lease do so.
        position: everything up to here is applied; None: nothing is held.
        welcome: of the present stream; None before it.
        lease: renewed by every reply.
        report_due: deletions were applied, or the position became one of all namespaces, since this was last
            set to False.
    """

    def __init__(self, table: FollowedTable, opener: SegmentOpener) -> None:
        self._table = table
        self._opener = opener
        self.lock = opener.lock
        self.position: LogPosition | None = None
        self.welcome: pb.WatchWelcome | None = None
        self.lease = Lease(_LEASE_SECONDS)
        self.report_due = False
        #: the last position that held for every namespace: another stream begins there
        self.complete: LogPosition | None = None
        #: namespaces that are held, and that the present stream has not continued yet
        self._not_continued: set[str] = set()
        self._to_load: list[Followed] = []

    def apply(self, reply: pb.WatchReply, received_at: float) -> None:
        """Apply one reply, received at a time (monotonic).

        Raises:
            ProtocolError: it is malformed; the stream must be begun anew, from nothing.
            UnsupportedVersionError: the service speaks another version.
        """
        with self.lock:
            match reply.WhichOneof("reply"):
                case "welcome":
                    self.welcome = _checked(reply.welcome)
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
                case "drafting":
                    self._set_drafting(reply.drafting)
            # a kind of a later version is left out
            self.lease.renew(received_at, self.lease_seconds)

    @property
    def lease_seconds(self) -> float:
        """Time without a message after which nothing of others is drafted from."""
        return _LEASE_SECONDS if self.welcome is None else self.welcome.lease_seconds

    @property
    def applied(self) -> LogPosition | None:
        """The position that every namespace is at, which may be reported; None: there is none.

        A stream tells positions before it has continued the last of the namespaces that are held.
        """
        with self.lock:
            return None if self._not_continued else self.position

    def begin_stream(self) -> None:
        """Another stream begins."""
        with self.lock:
            self._not_continued = {entry.path for entry in self._table.values() if entry.generation}

    def take_to_load(self) -> list[Followed]:
        """The namespaces whose contents must be sent again."""
        taken, self._to_load = self._to_load, []
        return taken

    def clear(self) -> None:
        """Stop drafting from what others wrote: the lease is over, or the stream was malformed."""
        with self.lock:
            self.position = self.complete = None
            for entry in self._table.values():
                entry.clear()
            self._not_continued = set()

    def discard(self) -> None:
        """Hold nothing of what others wrote, on the disk neither: this process has lost its identity."""
        self.clear()
        for entry in self._table.values():
            self._opener.discard(entry.path)

    # ----------------------------------------------------------------------------------------- contents

    def _begin_contents(self, message: pb.NamespaceContents) -> None:
        entry = self._table.get(message.namespace)
        if entry is None:
            return
        sealed, digests = sealed_from_proto(message.sealed)
        position = position_from_proto(message.position)
        if self.position is None or position.lsn < self.position.lsn:  # the log was restored
            self.position = position
        entry.refused = None
        self._not_continued.add(entry.path)
        entry.generation = message.generation
        entry.loading = NamespaceContents(
            message.namespace, message.tokenizer, message.generation, position, sealed, message.learned
        )
        if not entry.copy.learner.changed:
            entry.learned_base = message.learned  # loaded below
        if message.generation == PUBLISHED_GENERATION:
            self._opener.discard(entry.path)  # what was published before, or all of it
        opened = self._opener.open_local(entry, sealed, digests, again=True)
        entry.copy.begin_contents(entry.loading, opened)

    def _add_hot(self, message: pb.HotOutputs) -> None:
        entry = self._table.get(message.namespace)
        if entry is None or entry.loading is None:
            return
        entry.copy.add_hot([output_from_proto(entry.path, each) for each in message.outputs])
        if message.last:
            entry.copy.finish_contents(entry.loading)
            entry.loading = None
            self._continued(entry.path)
            entry.ready.set()
            self._opener.fetch_missing(entry)

    # ------------------------------------------------------------------------------------------ changes

    def _apply_changes(self, message: pb.LogChanges) -> None:
        for each in message.namespaces:
            entry = self._table.get(each.namespace)
            if entry is None:
                continue
            outputs = [output_from_proto(entry.path, output) for output in each.outputs]
            deletions = [Deletion(entry.generation, d.output_id, d.uuid) for d in each.deletions]
            entry.copy.apply_changes(outputs, deletions)
            self.report_due |= bool(deletions)
        self.position = position_from_proto(message.position)
        if not self._not_continued:
            self.complete = self.position

    def _apply_sealed(self, message: pb.SealedContents) -> None:
        entry = self._table.get(message.namespace)
        if entry is not None and entry.generation:
            sealed, digests = sealed_from_proto(message)
            if not covers(sealed.segments, entry.copy.manifest()):
                # a segment was lost between two streams: its outputs are hot again, and were not sent
                entry.generation = 0
                self._to_load.append(entry)
                return
            entry.copy.apply_sealed(sealed, self._opener.open_local(entry, sealed, digests))
            self._opener.fetch_missing(entry)

    # -------------------------------------------------------------------------------------------- others

    def _apply_live(self, message: pb.LiveText) -> None:
        entry = self._table.get(message.namespace)
        if entry is None or not entry.copy.following:
            return  # the end of a lease overtook it: the text comes again with the contents
        pieces = [LivePiece.from_proto(piece) for piece in message.pieces]
        entry.copy.mirrors.apply(pieces, reset=message.reset)
        if message.reset:  # after the changes that it missed
            self._continued(entry.path)

    def _continued(self, path: str) -> None:
        if path in self._not_continued:
            self._not_continued.discard(path)
            if not self._not_continued:
                self.complete, self.report_due = self.position, True

    def drop(self, entry: Followed) -> None:
        """Hold nothing of a namespace."""
        with self.lock:
            entry.clear()
            self._continued(entry.path)

    def _set_drafting(self, message: pb.NamespaceDrafting) -> None:
        entry = self._table.get(message.namespace)
        if entry is None:
            return
        entry.copy.set_drafting(not message.off)
        log.warning("drafting from namespace %s is %s", entry.path, "off" if message.off else "on again")

    def _refuse(self, message: pb.NamespaceRefused) -> None:
        entry = self._table.get(message.namespace)
        if entry is None:
            return
        self.drop(entry)
        entry.refused = wire.error_from_detail(message.error)
        if isinstance(entry.refused, PermissionDeniedError):
            self._opener.discard(entry.path)
        entry.ready.set()  # nothing will come: waiters end
        log.warning("namespace %s is not followed: %s", entry.path, entry.refused)


def _checked(welcome: pb.WatchWelcome) -> pb.WatchWelcome:
    if welcome.protocol != WATCH_PROTOCOL:
        older = "follower" if welcome.protocol > WATCH_PROTOCOL else "service"
        raise UnsupportedVersionError(
            "protocol of a welcome must be the one of this follower",
            expected=WATCH_PROTOCOL,
            got=welcome.protocol,
            remedy=f"Upgrade the {older}, which is the older one of the two.",
        )
    if not (math.isfinite(welcome.lease_seconds) and welcome.lease_seconds > 0):
        raise ProtocolError(
            "a reply is malformed: lease_seconds", expected="a positive number", got=welcome.lease_seconds
        )
    return welcome
