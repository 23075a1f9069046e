"""Verbs of a session; see :mod:`suffixsvc_client.protocol.verbs`."""

from __future__ import annotations

from suffixsvc.types import Draft, OutputId, TokenIds, Verified, VerifyCost
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc_client.protocol.effects import Procedure
from suffixsvc_client.protocol.procedures import Procedures
from suffixsvc_client.protocol.session_state import SessionState


class SessionVerbs:
    """The verbs of one session."""

    def __init__(self, procedures: Procedures, state: SessionState) -> None:
        self._procedures = procedures
        self.state = state

    def step(
        self,
        new_token_ids: TokenIds,
        max_draft_tokens: int = 16,
        verify_cost: VerifyCost = 0.02,
        tree: bool | str = False,
        at: int | None = None,
        verified: Verified | tuple[int, int, int] | None = None,
    ) -> Procedure[Draft]:
        """Append the tokens that the model wrote, and draft.

        The draft is empty if the service does not answer within ``ClientConfig.step_timeout_s``.

        Args:
            new_token_ids: accepted tokens and the bonus token, int32[n] or a sequence of ints.
            max_draft_tokens: length limit of the draft; 0 only appends. Clamped to the service's limit.
            verify_cost: float: cost of a drafted token in plain decode steps; or a curve c, c[w] the relative
                cost of a step of w tokens (c[1] = 1, c[0] unused).
            tree: True drafts a tree, "auto" decides by cost.
            at: absolute position (prompt included) of new_token_ids[0]; None = next.
            verified: what the target verified in the last step; None = the whole last draft.

        Raises:
            InvalidInputError, AppendError, SessionClosedError: an argument is wrong; nothing was applied.
            Errors of the service are not raised.
        """
        args = self.state.record_step(new_token_ids, max_draft_tokens, verify_cost, tree, at, verified)
        [draft] = yield from self._procedures.steps([(self.state, args)])
        return draft

    def append_context(self, token_ids: TokenIds) -> Procedure[None]:
        """Append tokens that the model did not write, such as tool results or the next user turn.

        They are sent at once without waiting; tokens that do not arrive are sent with the next step.

        Args:
            token_ids: int32[n] or a sequence of ints.

        Raises:
            InvalidTokensError, SessionClosedError: nothing was appended.
        """
        self.state.record_context(token_ids)
        return self._procedures.post([self.state])

    def close(
        self, commit: bool = True, *, incomplete: bool = False, wait: bool = True
    ) -> Procedure[OutputId | None]:
        """End the session: store its output, or (``commit=False``) retract it.

        A service that drained or expired the session may have committed its output as incomplete. A discard
        removes that output too. If the service cannot be reached, the discard returns and logs a warning, and
        the incomplete output stays: delete that output, or the namespace.

        Args:
            incomplete: mark the output as one that the model had not finished.
            wait: return after the output is durable. False: return once the service has accepted it, unless
                it replaces an incomplete output, which stays until its replacement is durable.

        Returns:
            The output's id; None if there is no output, if it was not stored, with ``commit=False`` and with
            ``wait=False``. A second call returns the same.

        Raises:
            ServiceError, StoreError: the session stays open, and close can be repeated.
            LimitExceededError, TokenizerMismatchError, UnknownNamespaceError: the service refused the
            session, and its output cannot be stored; close it with ``commit=False``.
        """
        commit = commit and not self.state.private
        options = pb.CloseSessionRequest(discard=not commit, incomplete=incomplete, no_wait=not wait)
        return self._procedures.close(self.state, options)
