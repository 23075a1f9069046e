"""Drafts, the feedback about them, and the protocols of what produces them."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from suffixsvc.types.outputs import Labels, OutputId, TokenArray, TokenIds

FloatArray = npt.NDArray[np.float32]
#: float: cost of a drafted token in plain decode steps; or a curve c, c[w] the cost of a step of w tokens
VerifyCost = float | Sequence[float] | npt.NDArray[Any]


class DraftSource(enum.IntEnum):
    """Origin of a drafted token. The numbers are part of the wire format.

    The suffix layer drafts from SESSION and NAMESPACE, prompt lookup in the driver from PROMPT_LOOKUP.
    """

    NONE = 0
    #: the session's own prompt and output
    SESSION = 1
    #: other outputs of a namespace that the session reads, those of a corpus included
    NAMESPACE = 2
    #: reserved: no draft has it, because the index does not distinguish a corpus (outputs loaded as pinned,
    #: docs/limits.md) from other outputs
    CORPUS = 3
    #: a draft model
    DRAFT_MODEL = 4
    #: prompt lookup done by the driver in the caller's process
    PROMPT_LOOKUP = 5


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """Tokens proposed for verification: a tree in topological order, a chain being the common case.

    Attributes:
        token_ids: int32[n], the proposed tokens.
        parents: int32[n], the index of each token's parent, -1 at the root; always smaller than the token's.
        probs: float32[n], the calibrated probability that a token is accepted given that its parent is.
        sources: uint8[n], the :class:`DraftSource` of each token.
        match_lens: int32[n], the length in tokens of the longest context that predicted the token.
    """

    token_ids: TokenArray
    parents: TokenArray
    probs: FloatArray
    sources: npt.NDArray[np.uint8]
    match_lens: TokenArray

    def __len__(self) -> int:
        return len(self.token_ids)

    @staticmethod
    def empty() -> Draft:
        """The draft without tokens."""
        return _EMPTY

    @staticmethod
    def unanswered() -> Draft:
        """The draft of a query that timed out: empty, and distinguished from :meth:`empty` by identity."""
        return _UNANSWERED

    @staticmethod
    def chain(
        token_ids: TokenIds,
        probs: Sequence[float] | FloatArray,
        source: DraftSource,
        match_len: int = 0,
    ) -> Draft:
        """A linear draft from one source."""
        ids = np.asarray(token_ids, dtype=np.int32)
        n = len(ids)
        return Draft(
            ids,
            np.arange(-1, n - 1, dtype=np.int32),
            np.asarray(probs, dtype=np.float32),
            np.full(n, int(source), dtype=np.uint8),
            np.full(n, match_len, dtype=np.int32),
        )


_EMPTY = Draft.chain([], [], DraftSource.NONE)
_UNANSWERED = Draft.chain([], [], DraftSource.NONE)


@dataclass(frozen=True, slots=True)
class Verified:
    """What was sent to the target in the last step, where that was not the last draft of this session.

    Attributes:
        width: tokens sent to the target, the last verified one included (1 = no drafted token).
        accepted: drafted tokens that the target accepted.
        source: layer of the draft that was sent.
    """

    width: int
    accepted: int
    source: DraftSource = DraftSource.NONE


@runtime_checkable
class BackendSession(Protocol):
    """One generation that is drafted for: the embedded engine's Session and the client's."""

    def step(
        self,
        new_token_ids: TokenIds,
        max_draft_tokens: int = 16,
        verify_cost: VerifyCost = 0.02,
        tree: bool | str = False,
        at: int | None = None,
        verified: Verified | tuple[int, int, int] | None = None,
    ) -> Draft:
        """Append what the model wrote, learn from it, draft again. See ``suffixsvc.index.Session.step``."""

    def append_context(self, token_ids: TokenIds) -> None:
        """Append text that the model did not write (tool results, the next user turn)."""

    def close(self, commit: bool = True) -> OutputId | None:
        """End the session. Returns the id of the stored output, or None where no output was stored."""


class BackendNamespace(Protocol):
    """A namespace of a backend."""

    def open_session(
        self,
        prompt_token_ids: TokenIds,
        output_token_ids: TokenIds | None = None,
        labels: Labels | None = None,
        reads: Sequence[str] | None = None,
    ) -> BackendSession:
        """Begin a generation. See ``suffixsvc.engine.Namespace.open_session``."""


@runtime_checkable
class Backend(Protocol):
    """A cache to draft from: the embedded engine (SuffixCache) or the client."""

    def namespace(self, path: str, tokenizer: str | None = None) -> BackendNamespace:
        """The namespace at ``path``, bound to the tokenizer fingerprint where one is given."""

    def close(self) -> None:
        """Release the backend's resources. Idempotent."""
