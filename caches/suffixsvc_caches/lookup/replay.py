"""Replay of logs against lookup caches: the tokens that llama.cpp would draft and accept. No model is run.

Recorded tokens stand in for the model's: draft, compare the draft with the recorded tokens, append those of
the step. The replay simulates one of three programs (:class:`Program`):

* ``llama-lookup-stats`` reads a log as one text in chunks of a context; the first token of each chunk is
  given. At the end of a chunk its n-grams are merged into the dynamic cache. A last chunk that is not full,
  or exactly full, is skipped, but is part of the ``n_predict`` that it prints.
* ``llama-lookup`` processes call by call: it counts the prompt, generates the first token without a draft,
  and merges the n-grams of the call into the dynamic cache at its end.
* ``llama-server`` (b11434) does the same, but never updates the dynamic cache, and of generated tokens counts
  only n-grams within one step. (It also keeps a slot's context cache for the slot's next request; the replay
  treats each request as the first of its slot.)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from enum import StrEnum
from typing import NamedTuple

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.lookup.algorithm import DRAFT_TOKENS, LookupDrafter, NgramCounts
from suffixsvc_caches.lookup.table import LookupTable

#: progress callback: tokens replayed since the last call
OnTokens = Callable[[int], None]


class Program(StrEnum):
    """The llama.cpp program to simulate."""

    STATS = "llama-lookup-stats"
    LOOKUP = "llama-lookup"
    SERVER = "llama-server"


class TokenCall(NamedTuple):
    """A call of a log as token ids."""

    prompt: Sequence[int]
    response: Sequence[int]


@dataclass(frozen=True, slots=True)
class ReplayStats:
    """Statistics of a replay; the first four under the names that the programs print.

    Attributes:
        n_draft: length limit of a draft.
        n_predict: tokens generated; for llama-lookup-stats including skipped ones.
        n_drafted, n_accept: tokens drafted, and tokens accepted.
        steps: batches that the model would have run.
        tokens: tokens replayed.
    """

    n_draft: int
    n_predict: int = 0
    n_drafted: int = 0
    n_accept: int = 0
    steps: int = 0
    tokens: int = 0

    @property
    def accept(self) -> float:
        """Acceptance rate: accepted / drafted, 0..1; NaN if no token was drafted."""
        return self.n_accept / self.n_drafted if self.n_drafted else float("nan")

    @property
    def hit_rate(self) -> float:
        """Accepted tokens / all tokens, 0..1; NaN if there are no tokens."""
        return self.n_accept / self.tokens if self.tokens else float("nan")

    @property
    def tokens_per_step(self) -> float:
        """MAT: mean accepted tokens per step, bonus token included; NaN if there are no steps."""
        return self.tokens / self.steps if self.steps else float("nan")

    def __add__(self, other: ReplayStats) -> ReplayStats:
        sums = map(operator.add, astuple(self)[1:], astuple(other)[1:])
        return ReplayStats(self.n_draft, *sums)


class LookupReplayer:
    """Replays logs in sequence; the dynamic cache is shared by all of them.

    Args:
        static, dynamic: the caches; None = empty. Neither is modified.
        program: the program to simulate.
        ctx: tokens of a chunk; only for llama-lookup-stats.
        draft_tokens: length limit of a draft.

    Raises:
        InvalidInputError: a table has malformed n-grams, or a number is out of range.
    """

    def __init__(
        self,
        static: LookupTable | None,
        dynamic: LookupTable | None = None,
        *,
        program: Program = Program.SERVER,
        ctx: int = 4096,
        draft_tokens: int = DRAFT_TOKENS,
    ) -> None:
        if ctx < 2 or draft_tokens < 1:
            raise InvalidInputError("ctx must be >= 2 and draft_tokens >= 1", got=f"{ctx} and {draft_tokens}")
        self._program, self._ctx, self._draft_tokens = program, ctx, draft_tokens
        self._drafter = LookupDrafter(
            NgramCounts(static),
            NgramCounts(dynamic),
            draft_tokens=draft_tokens,
            pieces=program is Program.SERVER,
        )

    def add_log(self, calls: Iterable[TokenCall], on_tokens: OnTokens | None = None) -> ReplayStats:
        """Replay a log and return its statistics; ``on_tokens`` reports progress."""
        total = ReplayStats(self._draft_tokens)
        for stats in self._replay(calls):
            total += stats
            if on_tokens is not None:
                on_tokens(stats.n_predict)
        return total

    def _replay(self, calls: Iterable[TokenCall]) -> Iterator[ReplayStats]:
        if self._program is not Program.STATS:
            for call in calls:
                yield self._call(call)
            return
        text: list[int] = []
        for call in calls:
            text += call.response
            while len(text) > self._ctx:
                yield self._chunk(text[: self._ctx])
                del text[: self._ctx]
        if len(text) == self._ctx:  # skipped, but part of n_predict
            yield ReplayStats(self._draft_tokens, n_predict=self._ctx)

    def _chunk(self, chunk: Sequence[int]) -> ReplayStats:
        self._drafter.begin(chunk[:1])
        found = self._replay_text(chunk, 1)
        self._drafter.end()
        return ReplayStats(self._draft_tokens, len(chunk), *found, tokens=len(chunk) - 1)

    def _call(self, call: TokenCall) -> ReplayStats:
        response = call.response
        if not response:
            return ReplayStats(self._draft_tokens)
        self._drafter.begin([*call.prompt, response[0]])
        drafted, accepted, steps = self._replay_text(response, 1)
        if self._program is Program.LOOKUP:
            self._drafter.end()
        return ReplayStats(
            self._draft_tokens, len(response), drafted, accepted, steps + 1, tokens=len(response)
        )

    def _replay_text(self, text: Sequence[int], first: int) -> tuple[int, int, int]:
        """Replay a text from position ``first`` on; return (tokens drafted, tokens accepted, steps)."""
        drafter, end, at = self._drafter, len(text), first
        drafted = accepted = steps = 0
        while at < end:
            draft = drafter.draft()
            matched = 0
            for token in draft:
                if at + matched == end or text[at + matched] != token:
                    break
                matched += 1
            next_at = min(at + matched + 1, end)
            drafter.append(text[at:next_at])
            drafted += len(draft)
            accepted += matched
            steps += 1
            at = next_at
        return drafted, accepted, steps
