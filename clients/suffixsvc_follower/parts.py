"""The parts of a follower that belong to one process: connections, threads and copies."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final
from uuid import uuid4

from suffixsvc.config import Limits
from suffixsvc.errors import PermissionDeniedError, ServiceUnavailableError
from suffixsvc.index import Abandoned
from suffixsvc.runtime.background import PeriodicTask
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc.types import Labels, TokenArray
from suffixsvc.v1 import watch_pb2 as pb
from suffixsvc_client import ClientNamespace, ClientSession, SuffixClient
from suffixsvc_follower.config import FollowerConfig
from suffixsvc_follower.contents.namespace_copy import NamespaceCopy
from suffixsvc_follower.contents.segment_source import SegmentSource
from suffixsvc_follower.session import FollowerSession
from suffixsvc_follower.stream.applier import Applier
from suffixsvc_follower.stream.connection import Connection, FollowState
from suffixsvc_follower.stream.followed import Followed, FollowedTable
from suffixsvc_follower.stream.segment_opener import SegmentOpener
from suffixsvc_follower.stream.use_report import UseReports
from suffixsvc_follower.stream.watch_call import WatchChannel
from suffixsvc_follower.uplink.uplink import Uplink

#: period of the background task, and the number of periods from a report of use to the next
_TICK_SECONDS: Final = 0.25
_TICKS_PER_REPORT: Final = 4
#: limits of local sessions; the service applies its own when it opens them
_LIMITS: Final = Limits()


class FollowerParts(ClosedOnExit):
    """Copies of a service's namespaces, and the sessions that draft from them. Thread-safe.

    Args:
        target: address of the service.
        config: of the follower.
    """

    def __init__(self, target: str, config: FollowerConfig) -> None:
        self._config = config
        self.follower_id = str(uuid4())
        self.client = SuffixClient(target, config.client)
        self._channel = WatchChannel(target, config.client)
        segments = SegmentSource(config.segment_cache, config.max_segment_cache_bytes, self._channel.fetch)
        self.table = FollowedTable(self._new_entry)
        self._opener = SegmentOpener(self.table, segments)
        self.applier = Applier(self.table, self._opener)
        self.uplink = Uplink(self.client, config.max_unsent_tokens)
        self._abandoned: Abandoned = deque()
        self._reports = UseReports(self.table)
        self._ticks = 0
        self._closed = False
        self.connection = Connection(self._channel, self.table, self.applier, self.follower_id)
        self._task = PeriodicTask(
            "suffixsvc-follower-tick",
            self._tick,
            period_seconds=_TICK_SECONDS,
            longest_pause_seconds=4 * _TICK_SECONDS,
        )
        self._task.start()

    def follow(self, path: str, tokenizer: str) -> Followed:
        """The entry of a namespace, which is followed from now on."""
        entry, new = self.table.get_or_create(path, tokenizer)
        if new or isinstance(entry.refused, PermissionDeniedError):  # the right may have been granted since
            self.connection.follow(entry)
        return entry

    def open_session(
        self,
        remote: ClientNamespace,
        tokenizer: str,
        prompt: TokenArray,
        output: TokenArray,
        *,
        labels: Labels,
        reads: Sequence[str],
        private: bool,
    ) -> FollowerSession | ClientSession:
        """See ``FollowerNamespace.open_session``; the arguments are checked."""
        if self._closed:
            raise ServiceUnavailableError("the follower is closed", remedy="Connect again.")
        if self.connection.state is FollowState.REFUSED:
            if private:
                raise ServiceUnavailableError(
                    "a private session needs a follower, and the service does not let this process follow",
                    got=self.connection.refusal,
                    remedy="Connect with mode='remote': the service then gets the text without storing it.",
                )
            return remote.open_session(prompt, output if len(output) else None, labels, reads or None)
        sent = None
        if not private:
            sent = remote.open_session(
                prompt,
                output if len(output) else None,
                labels,
                reads or None,
                str(uuid4()),
                follower_id=self.follower_id,
            )
            if sent.verbs.state.follow_denied:
                return sent
        try:
            entries = [self.follow(path, tokenizer) for path in (remote.path, *self._reads(reads, tokenizer))]
            session = FollowerSession(
                entries[0].copy,
                list(dict.fromkeys(entry.copy for entry in entries[1:] if entry is not entries[0])),
                prompt,
                output,
                labels=labels,
                limits=_LIMITS,
                remote=sent,
                uplink=self.uplink,
                abandoned=self._abandoned,
                lease=self.applier.lease,
            )
        except BaseException:
            if sent is not None:
                sent.close(commit=False)
            raise
        for entry in entries:
            entry.sessions.add(session)
        return session

    def _reads(self, named: Sequence[str], tokenizer: str) -> list[str]:
        """The namespaces that a session reads besides its own: those that it names, then the service's."""
        welcome = self.applier.welcome
        defaults = () if welcome is None else welcome.default_reads
        return [*named, *(each.namespace for each in defaults if tokenizer and each.tokenizer == tokenizer)]

    def _new_entry(self, path: str, tokenizer: str) -> Followed:
        copy = NamespaceCopy(path, hot_limit_bytes=self._config.max_hot_bytes, written=self.uplink.written)
        return Followed(path, tokenizer, copy)

    # ---------------------------------------------------------------------------------------- background

    def _tick(self) -> None:
        self.connection.end_lease()
        while self._abandoned:
            text, index = self._abandoned.popleft()
            text.release()
            index.remove_live(text)
        self._ticks += 1
        if self._ticks % _TICKS_PER_REPORT:
            return
        self.uplink.retry()
        for entry in self.table.take_idle(self._config.idle_seconds):
            self.connection.send(pb.WatchRequest(unfollow=pb.UnfollowNamespace(namespace=entry.path)))
            self.applier.drop(entry)
        self._report()

    def _report(self, *, last: bool = False) -> None:
        position = self.applier.applied
        if position is not None and self.connection.state is FollowState.FOLLOWING:
            report = self._reports.next(position, last=last)
            report.unacknowledged_tokens = self.uplink.unacknowledged_tokens
            self.connection.send(pb.WatchRequest(report=report))

    def close(self) -> None:
        """Send what is being closed, and end the threads. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._task.stop()
        self.uplink.close(self._config.client.call_timeout_s)
        self._report(last=True)
        self.connection.close()
        self._opener.close()
        self._channel.close()
        self.client.close()
