"""A session that drafts from the copies in this process, and whose text goes to the service."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from suffixsvc import core
from suffixsvc.config import Limits
from suffixsvc.errors import SessionClosedError
from suffixsvc.index import Abandoned, Session
from suffixsvc.index.pending_commit import CommittedIds
from suffixsvc.types import (
    Draft,
    Labels,
    NewOutput,
    OutputId,
    TokenArray,
    TokenIds,
    Verified,
    VerifyCost,
)
from suffixsvc_client import ClientSession
from suffixsvc_client.transport.interface import Forks
from suffixsvc_follower.contents.namespace_copy import NamespaceCopy
from suffixsvc_follower.stream.lease import Lease
from suffixsvc_follower.uplink.output_sender import OutputSender
from suffixsvc_follower.uplink.sent_session import SentSession
from suffixsvc_follower.uplink.uplink import Uplink


def _admitted(_context: int, _output: int) -> AbstractContextManager[None]:
    """The service admits tokens; here they are bounded by the length of a session alone."""
    return nullcontext()


def _ended(_logged: NewOutput | None) -> None:
    """Nothing is counted per session here."""


class FollowerSession(Session):
    """One generation; see ``suffixsvc.index.Session``. Made by ``FollowerNamespace.open_session``.

    Steps take no call of the service and never fail because of it. A close returns when the service has the
    output durably.

    Args:
        copy: of the namespace that is written to.
        reads: copies of the others.
        remote: the session at the service, opened with the same tokens; None: nothing leaves this process.
        uplink: sends what is written.
        lease: drafts are empty after its end, until nothing of others is held.

    In a forked child of the process that opened it, every method raises SessionClosedError.
    """

    def __init__(
        self,
        copy: NamespaceCopy,
        reads: Sequence[NamespaceCopy],
        prompt: TokenArray,
        output: TokenArray,
        *,
        labels: Labels,
        limits: Limits,
        remote: ClientSession | None,
        uplink: Uplink,
        abandoned: Abandoned,
        lease: Lease,
    ) -> None:
        self._forks = Forks.count
        self._lease = lease
        sender = OutputSender(copy, uplink)
        super().__init__(
            copy,
            reads,
            prompt,
            output,
            labels=labels,
            limits=limits,
            commit=sender.commit,
            on_close=_ended,
            abandoned=abandoned,
            admit=_admitted,
            private=remote is None or remote.verbs.state.private,
        )
        self._sender, self._uplink = sender, uplink
        if remote is not None:
            sender.sent = SentSession(self._native, remote)
            uplink.add(sender.sent)
            # as for its text: the collector can run this anywhere
            self._unsent = weakref.finalize(self, uplink.abandoned.append, sender.sent)
            self._unsent.atexit = False

    @property
    def sent(self) -> SentSession | None:
        """The session at the service; None for a private session."""
        return self._sender.sent

    def step(
        self,
        new_token_ids: TokenIds,
        max_draft_tokens: int = 16,
        verify_cost: VerifyCost = 0.02,
        tree: bool | str = False,
        at: int | None = None,
        verified: Verified | tuple[int, int, int] | None = None,
    ) -> Draft:
        """See ``suffixsvc.index.Session.step``."""
        if self._forks != Forks.count:
            raise _forked_error()
        if self._lease.over:
            max_draft_tokens = 0
        return super().step(new_token_ids, max_draft_tokens, verify_cost, tree, at, verified)

    def append_context(self, token_ids: TokenIds) -> None:
        """See ``suffixsvc.index.Session.append_context``."""
        if self._forks != Forks.count:
            raise _forked_error()
        super().append_context(token_ids)

    def draft_after(
        self,
        context: TokenIds,
        max_draft_tokens: int = 16,
        verify_cost: VerifyCost = 0.02,
        tree: bool | str = False,
        bounds: core.DraftBounds | None = None,
    ) -> Draft:
        """See ``suffixsvc.index.Session.draft_after``."""
        if self._forks != Forks.count:
            raise _forked_error()
        if self._lease.over:
            max_draft_tokens = 0
        return super().draft_after(context, max_draft_tokens, verify_cost, tree, bounds)

    def retract(self) -> None:
        """Retract this session's output for good, at the service as well. Idempotent."""
        if self._forks != Forks.count:
            raise _forked_error()
        super().retract()
        if self.sent is not None and not self.sent.closing:
            self._uplink.discard(self.sent)

    def close(
        self, commit: bool = True, *, incomplete: bool = False, wait: bool = True, session_id: str = ""
    ) -> OutputId | None:
        """End the session: store its output at the service, or (``commit=False``) retract it.

        Args:
            commit: store the output.
            incomplete: mark the output as one whose model had not finished.
            wait: return after the service has the output durably. False returns None at once, and the
                output is sent until the service answers.
            session_id: not used: the id at the service is stored.

        Returns:
            The output's id; None if nothing was stored, with ``commit=False`` and with ``wait=False``. A
            second call returns the same.

        Raises:
            ServiceError, StoreError: the session stays open, is drafted from, and can be closed again.
            LimitExceededError, TokenizerMismatchError, UnknownNamespaceError: the service refused the
            session, and its output cannot be stored; close it with ``commit=False``.
        """
        if self._forks != Forks.count:
            raise _forked_error()
        self._sender.waits = wait
        sent = self.sent
        output_id = super().close(
            commit, incomplete=incomplete, wait=wait, session_id="" if sent is None else sent.session_id
        )
        if sent is not None:
            self._unsent.detach()
            if not sent.closing:
                self._uplink.discard(sent)
        return output_id

    @staticmethod
    def _log_failure(future: CommittedIds) -> None:
        """The uplink logs what it gives up."""


def _forked_error() -> SessionClosedError:
    return SessionClosedError(
        "a session must be used in the process that opened it",
        got="a forked child of that process",
        remedy="Open a session in this process.",
    )
