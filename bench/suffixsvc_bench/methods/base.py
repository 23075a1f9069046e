"""Interface of drafting methods for the replay: begin a call, draft, accept, end it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from suffixsvc.types import Draft, DraftSource, TokenArray, VerifyCost

#: probability of a drafted token from a method without estimates
UNKNOWN: Final = float("nan")


@dataclass(frozen=True, slots=True)
class Settings:
    """Parameters of a method.

    Attributes:
        max_draft_tokens: K, the widest draft of a step.
        verify_cost: cost of verification; methods that ignore costs do not use it.
        starting_weights: of our own methods, see ``SuffixCache``; None = the shipped ones.
    """

    max_draft_tokens: int
    verify_cost: VerifyCost
    starting_weights: bytes | None = None


class Method(ABC):
    """A drafting method with the state it keeps between calls.

    For every recorded call the replay calls :meth:`begin`, then alternates :meth:`draft` and :meth:`accept`
    until the answer is complete, then :meth:`end`. Single-threaded.
    """

    @abstractmethod
    def begin(self, prompt: TokenArray, agent: str) -> None:
        """Start a call with this prompt, int32[n], n >= 0."""

    @abstractmethod
    def draft(self) -> Draft:
        """Draft at most K tokens. Probabilities are :data:`UNKNOWN` where there are none."""

    @abstractmethod
    def accept(self, token_ids: TokenArray, accepted: int) -> None:
        """Append what the target wrote: ``accepted`` drafted tokens and one of its own."""

    @abstractmethod
    def end(self) -> None:
        """End the call; its output may be stored."""

    @abstractmethod
    def memory_bytes(self) -> int:
        """Bytes of the stored state; see :attr:`MethodSpec.memory` for what is counted."""

    def train(self, texts: Iterable[TokenArray]) -> None:
        """Build an offline cache from whole answers, before the first call; see
        :attr:`MethodSpec.trains_offline`.
        """
        raise NotImplementedError

    def own_seconds(self) -> float | None:
        """Seconds of the last ``draft`` and ``accept`` by the method's own clock.

        None where the caller's clock is right; it is not for a method in another process.
        """
        return None

    def close(self) -> None:  # noqa: B027 - most methods have no resources
        """Release resources. Idempotent."""


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """A method with its name in tables and its constructor.

    Attributes:
        key: short name for the command line.
        title: name in tables and plots.
        description: one line for the report.
        default_k: K if none is given: the default of its users.
        make: constructs a cold instance.
        cost_aware: it drafts for the cost at which it is scored, so every cost is a separate replay.
        native: compiled code, whose microseconds are comparable with other compiled code.
        memory: what :meth:`Method.memory_bytes` counts.
        families: names of groups of configurations of which the best is chosen in hindsight, the widest group
            first; empty for single methods.
        swept: part of a sweep over K.
        trains_offline: it builds a cache offline from the warm-up calls (:meth:`Method.train`) instead of
            being replayed over them; it is skipped without warm-up calls.
        instead_of: key of the method for which this one is a drop-in replacement; tables show their ratio.
    """

    key: str
    title: str
    description: str
    default_k: int
    make: Callable[[Settings], Method]
    cost_aware: bool = False
    native: bool = False
    memory: str = "the arrays of a compiled implementation"
    families: tuple[str, ...] = ()
    swept: bool = True
    trains_offline: bool = False
    instead_of: str = ""


def guess(token_ids: Sequence[int], source: DraftSource = DraftSource.NONE) -> Draft:
    """A chain of tokens without probabilities."""
    if not token_ids:
        return Draft.empty()
    return Draft.chain(np.array(token_ids, np.int32), np.full(len(token_ids), UNKNOWN, np.float32), source)
