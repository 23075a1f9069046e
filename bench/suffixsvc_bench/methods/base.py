"""What every drafting method looks like to the replay: begin a call, draft, accept, end it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from suffixsvc.types import Draft, DraftSource, TokenArray, VerifyCost

__all__ = ["UNKNOWN", "Method", "MethodSpec", "Settings", "guess"]

#: probability of a drafted token from a method that does not estimate one
UNKNOWN: Final = float("nan")


@dataclass(frozen=True, slots=True)
class Settings:
    """What a method is made with.

    Attributes:
        max_draft_tokens: K, the widest draft of a step.
        verify_cost: what the drafts are priced with; methods that do not look at prices ignore it.
        starting_weights: of our own methods, see ``SuffixCache``; None = the shipped ones.
    """

    max_draft_tokens: int
    verify_cost: VerifyCost
    starting_weights: bytes | None = None


class Method(ABC):
    """A way to draft, with whatever it remembers between calls.

    The replay calls, for every recorded call: :meth:`begin`, then :meth:`draft` and :meth:`accept` in turns
    until the answer is written, then :meth:`end`. One thread, one call at a time.
    """

    @abstractmethod
    def begin(self, prompt: TokenArray, agent: str) -> None:
        """A call starts with this prompt, int32[n], n >= 0."""

    @abstractmethod
    def draft(self) -> Draft:
        """What comes next, at most K tokens. Probabilities are :data:`UNKNOWN` where there are none."""

    @abstractmethod
    def accept(self, token_ids: TokenArray, accepted: int) -> None:
        """What the target really wrote: the ``accepted`` drafted tokens it agreed with and its own one."""

    @abstractmethod
    def end(self) -> None:
        """The call is over; what it wrote may be remembered."""

    @abstractmethod
    def memory_bytes(self) -> int:
        """Bytes of what is remembered now; see :attr:`MethodSpec.memory` for what that counts."""

    def study(self, texts: Iterable[TokenArray]) -> None:
        """Build from whole answers what is built offline, before the first call; see
        :attr:`MethodSpec.studies`."""
        raise NotImplementedError

    def own_seconds(self) -> float | None:
        """Seconds the last ``draft`` and ``accept`` took by the method's own clock, where the caller's
        would time something else as well (a pipe to another process); else None."""
        return None

    def close(self) -> None:  # noqa: B027 - most methods hold nothing
        """Release what is held. Idempotent."""


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """A method as the tables name it, and how to make one.

    Attributes:
        key: short name for the command line.
        title: name in tables and plots.
        explained: one line for the report.
        default_k: K where none is asked for: the value its users get.
        make: a fresh, cold instance.
        priced: it drafts for the cost it is scored at, so every cost is a replay of its own.
        native: compiled code, so that its microseconds can be compared with other compiled code.
        memory: what :meth:`Method.memory_bytes` counts.
        families: groups of configurations of one thing, of which the best is chosen in hindsight; a name
            a group, the widest first. Empty for methods that stand alone.
        swept: part of a sweep over K.
        studies: it builds something offline from the calls that warm the caches (:meth:`Method.study`)
            instead of being replayed over them; where there are none it is left out.
        instead_of: key of the method that this one can replace by an import; tables divide the two.
    """

    key: str
    title: str
    explained: str
    default_k: int
    make: Callable[[Settings], Method]
    priced: bool = False
    native: bool = False
    memory: str = "the arrays of a compiled implementation"
    families: tuple[str, ...] = ()
    swept: bool = True
    studies: bool = False
    instead_of: str = ""


def guess(token_ids: Sequence[int], source: DraftSource = DraftSource.NONE) -> Draft:
    """A linear draft without probabilities."""
    if not token_ids:
        return Draft.empty()
    return Draft.chain(np.array(token_ids, np.int32), np.full(len(token_ids), UNKNOWN, np.float32), source)
