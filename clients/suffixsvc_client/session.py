"""One generation of the blocking client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suffixsvc.types import Draft, OutputId, TokenIds, Verified, VerifyCost
from suffixsvc_client.state import Closing, Phase, SessionState, StepArgs

if TYPE_CHECKING:
    from suffixsvc_client.client import SuffixClient

__all__ = ["ClientSession"]


class ClientSession:
    """One generation; see the embedded engine's ``Session``. Made by :meth:`ClientNamespace.open_session`."""

    def __init__(self, client: SuffixClient, state: SessionState) -> None:
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
        """Append what the model wrote, draft again; an empty draft when the service does not answer within
        ``ClientConfig.step_timeout_s``.

        Args:
            new_token_ids: accepted tokens and the bonus token, int32[n] or a sequence of ints.
            max_draft_tokens: at most so many; 0 only appends. Clamped to the service's limit.
            verify_cost: a float a (each drafted token costs the target a plain decode steps) or a curve c,
                c[w] the relative cost of a step of w tokens (c[1] = 1, c[0] unused).
            tree: True drafts a tree, "auto" decides by cost.
            at: absolute position (prompt included) of new_token_ids[0]; None = next.
            verified: what was really sent to the target last step; None = the last draft, whole.

        Raises:
            InvalidInputError, AppendError, SessionClosedError: the caller's own arguments, nothing was
            applied. Nothing is raised for the service's sake.
        """
        args = self.accept(new_token_ids, max_draft_tokens, verify_cost, tree, at, verified)
        return self._client.run(self._client.procedures.steps([(self.state, args)]))[0]

    def accept(
        self,
        new_token_ids: TokenIds,
        max_draft_tokens: int = 16,
        verify_cost: VerifyCost = 0.02,
        tree: bool | str = False,
        at: int | None = None,
        verified: Verified | tuple[int, int, int] | None = None,
    ) -> StepArgs:
        """Check a step's arguments and note its tokens without sending anything; for this package only.

        Raises:
            InvalidInputError, AppendError, SessionClosedError: nothing was noted.
        """
        return self.state.accept(new_token_ids, max_draft_tokens, verify_cost, tree, at, verified)

    def append_context(self, token_ids: TokenIds) -> None:
        """Append tokens the model did not write: tool results, the next user turn. Sent at once, not waited
        for; what does not arrive goes along with the next step.

        Args:
            token_ids: int32[n] or a sequence of ints.

        Raises:
            InvalidTokensError, SessionClosedError: nothing was appended.
        """
        self.state.accept_context(token_ids)
        self._client.run(self._client.procedures.append_context(self.state))

    def close(self, commit: bool = True, *, incomplete: bool = False, wait: bool = True) -> OutputId | None:
        """End the session: keep what it wrote, or (``commit=False``) retract it.

        A service that drained or expired the session may have committed its output as incomplete. A discard
        takes that back too. If the service is away then, the discard returns, logs a warning, and the
        incomplete output stays: forget that output, or delete the namespace.

        Args:
            incomplete: mark the output as one whose model had not finished.
            wait: return after the output is durable. False: once the service has taken it over, unless it
                replaces an incomplete output, which stays until its replacement is durable.

        Returns:
            The output's id; None when nothing was written or kept, with ``commit=False``, and when it was
            not waited for. A second call returns the same.

        Raises:
            ServiceError, StoreError: the session stays open, and close can be called again.
            LimitExceededError, TokenizerMismatchError, UnknownNamespaceError: the service refused the
            session, and what it wrote cannot be kept; close it with ``commit=False``.
        """
        how = Closing(commit, incomplete, wait)
        return self._client.run(self._client.procedures.close(self.state, how))

    @property
    def length(self) -> int:
        """Tokens so far: prompt, context and output. Where the next append starts."""
        return len(self.state)

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` has succeeded."""
        return self.state.phase is Phase.CLOSED
