"""The commit of a local session: its output is stored by the service."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from suffixsvc.errors import SuffixError
from suffixsvc.index import OnCommitted
from suffixsvc.index.pending_commit import CommittedIds
from suffixsvc.types import NewOutput, OutputId
from suffixsvc_follower.contents.namespace_copy import NamespaceCopy
from suffixsvc_follower.uplink.sent_session import SentSession
from suffixsvc_follower.uplink.uplink import Uplink


class OutputSender:
    """Sends the output of one session. It does not refer to the session, which can be collected.

    Args:
        copy: of the namespace.
        uplink: sends it.

    Attributes:
        sent: the session at the service; None for a private one, which has no output.
        waits: the close waits for the service.
    """

    def __init__(self, copy: NamespaceCopy, uplink: Uplink) -> None:
        self._copy, self._uplink = copy, uplink
        self.sent: SentSession | None = None
        self.waits = True

    def commit(self, output: NewOutput, on_committed: OnCommitted, _live_bytes: int) -> CommittedIds:
        """See ``suffixsvc.index.pending_commit.Commit``."""
        assert self.sent is not None  # noqa: S101  # only sessions that are not private have outputs
        if not output.uuid:  # the service has not given the session an id yet
            output = replace(output, uuid=uuid4().bytes)
        copy = self._copy
        future = copy.begin_own(output, on_committed).future

        def on_closed(output_id: OutputId | None, error: SuffixError | None) -> None:
            if error is None:
                copy.acknowledge(output.uuid, output_id)
            else:
                copy.fail(output.uuid, error)

        self._uplink.close_session(
            self.sent, incomplete=output.incomplete, waits=self.waits, on_closed=on_closed
        )
        return future
