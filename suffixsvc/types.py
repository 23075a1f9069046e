"""Values that cross package boundaries, and the protocols between packages.

Nothing here computes. The engine, the client, the store and the driver import this module, and it imports
none of them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, Self, get_args, runtime_checkable

import numpy as np
import numpy.typing as npt

TokenArray = npt.NDArray[np.int32]
#: what callers may pass as tokens: a 1-D integer array or a sequence of ints, each in 0 .. 2**31 - 1
TokenIds = npt.NDArray[Any] | Sequence[int]
Labels = Mapping[str, str]
#: who drafts from a service's outputs: "follow": this process, from copies of them; "remote": the service,
#: a call per step; "auto": this process where the service allows that
Mode = Literal["auto", "follow", "remote"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
#: log sequence number of the stored output: unique in a data folder, never reused
OutputId = int
FloatArray = npt.NDArray[np.float32]
#: float: cost of a drafted token in plain decode steps; or a curve c, c[w] the cost of a step of w tokens
VerifyCost = float | Sequence[float] | npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class NewOutput:
    """An output to be stored.

    Attributes:
        namespace: path of its namespace.
        token_ids: int32[n], what the model wrote; n >= 1.
        segment_lens: lengths of its runs, between which context (tool results, user turns) was appended;
            sums to n.
        prompt_tail: int32[<= 64], the tokens before the first output token; context only, never drafted.
        labels: stored with the output.
        incomplete: the session expired or was drained before its model finished.
        ttl_seconds: time to live, counted from the write; 0 = no expiry.
        corpus: part of a pinned corpus.
        uuid: 16 bytes that identify the output, chosen by its writer; b"": the store generates one. An
            output whose uuid exists in its namespace is not logged again.
        session_id: session that wrote it; "" for bulk loads and sessions without an id.
        principal: who wrote it: 1 to 128 letters, digits and . _ - @ :, or "" for the operator.
    """

    namespace: str
    token_ids: TokenArray
    segment_lens: tuple[int, ...]
    prompt_tail: TokenArray
    labels: Labels = field(default_factory=dict)
    incomplete: bool = False
    ttl_seconds: int = 0
    corpus: bool = False
    uuid: bytes = b""
    session_id: str = ""
    principal: str = ""


class AppendedIds(list[OutputId]):
    """The ids of an append, one per output.

    Attributes:
        repeated: positions of the outputs that were in the log before the append.
    """

    def __init__(self, ids: Iterable[OutputId] = (), repeated: Iterable[int] = ()) -> None:
        super().__init__(ids)
        self.repeated: list[int] = list(repeated)


def repeated_in(ids: Sequence[OutputId]) -> Sequence[int]:
    """Positions of the outputs of an append that were in the log before it."""
    return ids.repeated if isinstance(ids, AppendedIds) else ()


@dataclass(frozen=True, slots=True)
class IncompleteOutput:
    """An output of a session that expired or was drained, looked up by the session's id."""

    output_id: OutputId
    namespace: str
    uuid: bytes


@dataclass(frozen=True, slots=True)
class StoredOutput:
    """One output as the store holds it: a :class:`NewOutput` with its id and time."""

    output_id: OutputId
    written_at: float  #: seconds since the epoch, in store time (:mod:`suffixsvc.clock`)
    output: NewOutput


@dataclass(frozen=True, slots=True)
class FollowerName:
    """A follower: a process that keeps a copy of namespaces and drafts from it.

    Attributes:
        follower_id: its UUID.
        description: for operators.
    """

    follower_id: str
    description: str


@dataclass(frozen=True, slots=True)
class DeletionReceipt:
    """Which followers of a namespace have applied a deletion. Both are empty where there are none.

    Attributes:
        acknowledged: they draft from nothing that was deleted.
        silent: they did not answer in time, and may draft from what was deleted until they do, or until their
            lease is over (at most 15 s).
    """

    acknowledged: tuple[FollowerName, ...] = ()
    silent: tuple[FollowerName, ...] = ()


class DeletedOutputs(int):
    """The number of outputs of a deleted namespace.

    Attributes:
        receipt: which followers of the namespace have applied the deletion.
    """

    receipt: DeletionReceipt

    def __new__(cls, outputs: int, receipt: DeletionReceipt | None = None) -> Self:
        """Args: outputs: the number. receipt: None: an empty one."""
        number = super().__new__(cls, outputs)
        number.receipt = receipt or DeletionReceipt()
        return number


@dataclass(frozen=True, slots=True)
class Deletion:
    """Result of a deletion by selection: its first stage is done, no session drafts from what was deleted.

    Attributes:
        outputs: number of stored outputs that were deleted.
        sessions: number of live sessions whose text was retracted.
        namespaces: paths in which there were any, ascending.
        from_disk: the second stage is done as well: no file of the data folder holds what was deleted.
        receipt: which followers of these namespaces have applied the deletion; empty without a service.
    """

    outputs: int = 0
    sessions: int = 0
    namespaces: tuple[str, ...] = ()
    from_disk: bool = False
    receipt: DeletionReceipt = field(default_factory=DeletionReceipt)


@dataclass(frozen=True, slots=True)
class OutputOutline:
    """The fields of a :class:`StoredOutput` that are cheap to read in bulk."""

    output_id: OutputId
    written_at: float  #: seconds since the epoch, in store time
    tokens: int
    ttl_seconds: int
    corpus: bool
    principal: str = ""
    tail_tokens: int = 0  #: of the prompt's tail
    attribute_bytes: int = 0  #: of labels and session id in the row


def _alone() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class NamespaceCreator:
    """Who creates a namespace if it does not exist, and how many it may have.

    Attributes:
        principal: its name; "" is the operator, which has no limit of its own.
        max_namespaces: limit of its policy; None: there is none.
        is_one_of_several: whether there are other principals; it then has at most as many as it leaves.
    """

    principal: str = ""
    max_namespaces: int | None = None
    is_one_of_several: Callable[[], bool] = _alone


#: the embedded engine's
OPERATOR_CREATOR: Final = NamespaceCreator()


@dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """A namespace in the store. ``tokenizer`` is its fingerprint, empty before one is bound."""

    path: str
    tokenizer: str = ""


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """A row of a namespace's manifest: the range of the log that a sealed segment holds.

    Every output of the namespace with first_lsn <= id <= last_lsn is in the file or has a tombstone; ranges
    of a namespace never overlap. ``outputs`` and ``tokens`` count both, so the live part of the range is
    these counts minus its tombstones.
    """

    name: str  #: of the file, in the store's folder of segments
    first_lsn: OutputId
    last_lsn: OutputId
    outputs: int
    tokens: int  #: of those outputs
    file_bytes: int

    def covers(self, output_id: OutputId) -> bool:
        """Whether an output id is in the range of the segment."""
        return self.first_lsn <= output_id <= self.last_lsn


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Statistics of a store. Bytes are the sizes that the files or arrays have."""

    outputs: int
    payloads: int
    tokens: int
    bytes_used: int
    last_lsn: int
    expiry_grace_seconds: float = 0.0  #: remainder of the grace period of :mod:`suffixsvc.clock`
    reopened: int = 0  #: times that the file was opened again after an I/O error
    defects: int = 0  #: unexpected exceptions in the store's thread; each is logged
    queued: int = 0  #: operations that wait for the store's thread


class DraftSource(enum.IntEnum):
    """Origin of a drafted token. The numbers are part of the wire format.

    The suffix layer drafts from SESSION and NAMESPACE, prompt lookup in the driver from PROMPT_LOOKUP, the
    grammar layer from GRAMMAR, the prediction layer from PREDICTION.
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
    #: text that the grammar of the output leaves no choice about
    GRAMMAR = 6
    #: a text that the caller expects as the output
    PREDICTION = 7


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

    def head(self, count: int) -> Draft:
        """The first ``count`` tokens: parents come before their children, so any prefix is a draft."""
        return self if len(self) <= count else self.take(slice(count), self.parents[:count])

    def take(self, index: slice | list[int], parents: TokenArray) -> Draft:
        """The tokens at ``index``, with ``parents`` in the numbering of the result."""
        return Draft(
            self.token_ids[index], parents, self.probs[index], self.sources[index], self.match_lens[index]
        )

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


class ListedDraft(Draft):
    """A draft that the core gave as lists, which a driver reads faster than arrays as short.

    All arrays are made when the first one is read; from then on it is as any other draft.

    Attributes:
        lists: the five fields of :class:`Draft`, in their order; None once there are arrays.
    """

    __slots__ = ("lists",)

    lists: tuple[list[int], list[int], list[float], list[int], list[int]] | None

    @staticmethod
    def of(
        token_ids: list[int],
        parents: list[int],
        probs: list[float],
        sources: list[int],
        match_lens: list[int],
    ) -> ListedDraft:
        """A draft of these lists, which must not be changed."""
        draft = object.__new__(ListedDraft)
        object.__setattr__(draft, "lists", (token_ids, parents, probs, sources, match_lens))
        return draft

    def __len__(self) -> int:
        return len(self.token_ids if self.lists is None else self.lists[0])

    def __getattr__(self, name: str) -> Any:
        """Python calls this for slots that are not set."""
        if name == "lists":  # of a copy
            return None
        lists = self.lists
        if lists is not None:
            for (field_name, dtype), column in zip(_COLUMNS, lists, strict=True):
                object.__setattr__(self, field_name, np.array(column, dtype))
            object.__setattr__(self, "lists", None)
        return object.__getattribute__(self, name)


_COLUMNS: Final = (
    ("token_ids", np.int32),
    ("parents", np.int32),
    ("probs", np.float32),
    ("sources", np.uint8),
    ("match_lens", np.int32),
)
_EMPTY = Draft.chain([], [], DraftSource.NONE)
_UNANSWERED = Draft.chain([], [], DraftSource.NONE)


@dataclass(frozen=True, slots=True)
class Verified:
    """What was sent to the target in the last step, where that was not the last draft of this session.

    Attributes:
        width: tokens sent to the target, the last verified one included (1 = no drafted token).
        accepted: drafted tokens that the target accepted.
        source: origin of the first token of the draft that was sent; the engine does not use it.
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
        *,
        private: bool = False,
    ) -> BackendSession:
        """Begin a generation. See ``suffixsvc.engine.Namespace.open_session``."""


@runtime_checkable
class Backend(Protocol):
    """A cache to draft from: the embedded engine (SuffixCache) or the client."""

    def namespace(self, path: str, tokenizer: str | None = None) -> BackendNamespace:
        """The namespace at ``path``, bound to the tokenizer fingerprint where one is given."""

    def close(self) -> None:
        """Release the backend's resources. Idempotent."""
