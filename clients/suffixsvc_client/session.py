"""Sessions of the blocking client: one per generation."""

from __future__ import annotations

from typing import Protocol, TypeVar

from suffixsvc.types import Draft, OutputId, TokenIds, Verified, VerifyCost
from suffixsvc_client.protocol.effects import Procedure
from suffixsvc_client.protocol.procedures import Procedures
from suffixsvc_client.protocol.session_state import SessionState
from suffixsvc_client.protocol.session_values import CloseOptions, Phase, StepArgs

__all__ = ["ClientSession", "ProcedureRunner"]

T = TypeVar("T")


class ProcedureRunner(Protocol):
    """Runs procedures over a client's transport and blocks the calling thread."""

    @property
    def procedures(self) -> Procedures:
        """The procedures of the client's calls, free of I/O."""

    def run(self, procedure: Procedure[T]) -> T:
        """Perform the effects that ``procedure`` yields; its result."""


class ClientSession:
    """One generation; see the embedded engine's ``Session``. Made by :meth:`ClientNamespace.open_session`."""

    def __init__(self, client: ProcedureRunner, state: SessionState) -> None:
        self._client = client
        self.state = state

    def step(
        self,
        new_token_ids: TokenIds,
        max_draft_tokens: int = 16,
        verify_cost: VerifyCost = 0.02,
        tree: bool | str = False,
        at: int | None = None,
        verified: Verified | tuple[int, int, int] | None = None,
    ) -> Draft:
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
        args = self.record_step(new_token_ids, max_draft_tokens, verify_cost, tree, at, verified)
        return self._client.run(self._client.procedures.steps([(self.state, args)]))[0]

    def record_step(
        self,
        new_token_ids: TokenIds,
        max_draft_tokens: int = 16,
        verify_cost: VerifyCost = 0.02,
        tree: bool | str = False,
        at: int | None = None,
        verified: Verified | tuple[int, int, int] | None = None,
    ) -> StepArgs:
        """Check a step's arguments and record its tokens without sending; internal to the package.

        Raises:
            InvalidInputError, AppendError, SessionClosedError: nothing was recorded.
        """
        return self.state.record_step(new_token_ids, max_draft_tokens, verify_cost, tree, at, verified)

    def append_context(self, token_ids: TokenIds) -> None:
        """Append tokens that the model did not write, such as tool results or the next user turn.

        They are sent at once without waiting; tokens that do not arrive are sent with the next step.

        Args:
            token_ids: int32[n] or a sequence of ints.

        Raises:
            InvalidTokensError, SessionClosedError: nothing was appended.
        """
        self.state.record_context(token_ids)
        self._client.run(self._client.procedures.append_context(self.state))

    def close(self, commit: bool = True, *, incomplete: bool = False, wait: bool = True) -> OutputId | None:
        """End the session: store its output, or (``commit=False``) retract it.

        A service that drained or expired the session may have committed its output as incomplete. A discard
        removes that output too. If the service cannot be reached, the discard returns and logs a warning, and
        the incomplete output stays: forget that output, or delete the namespace.

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
        options = CloseOptions(commit, incomplete, wait)
        return self._client.run(self._client.procedures.close(self.state, options))

    @property
    def length(self) -> int:
        """Number of tokens so far (prompt, context and output): the position of the next append."""
        return len(self.state)

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` has succeeded."""
        return self.state.phase is Phase.CLOSED
