"""What llama.cpp would accept with a lookup cache, from logs alone: no model is run.

Every token of a log is written again as if the model wrote it now: draft, compare with what stands there,
go on behind it. Three programs do that, each in its way (:class:`Program`), and the forecast says what theirs
do:

* ``llama-lookup-stats`` takes a log as one text in chunks of a context, the first token of each given. When a
  chunk ends its n-grams go into the dynamic cache. A last chunk that is not full is left out (one that is
  exactly full as well), yet counted in the ``n_predict`` that it prints.
* ``llama-lookup`` writes call after call: the prompt is counted first, the first token comes without a draft,
  and when the call ends its n-grams go into the dynamic cache.
* ``llama-server`` (b11434) does so too, but never adds to the dynamic cache, and of what is written counts
  only n-grams that lie within one step's tokens. (It also keeps a slot's context cache for the next request
  of that slot; the forecast takes each request for the first one.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.lookup.algorithm import DRAFT_TOKENS, LookupDrafter, NgramCounts
from suffixsvc_caches.lookup.pruning import prune_table
from suffixsvc_caches.lookup.table import LookupTable

__all__ = [
    "Forecast",
    "Forecaster",
    "OnTokens",
    "Program",
    "TokenCall",
    "forecast_sizes",
]

#: told how many tokens were written since it was last told
OnTokens = Callable[[int], None]


class Program(StrEnum):
    """Whose way of replaying a text."""

    STATS = "llama-lookup-stats"
    LOOKUP = "llama-lookup"
    SERVER = "llama-server"


class TokenCall(NamedTuple):
    """A call of a log as token ids."""

    prompt: Sequence[int]
    response: Sequence[int]


@dataclass(frozen=True, slots=True)
class Forecast:
    """Figures of a replay; the first five as the program prints them.

    Attributes:
        n_draft: the widest draft.
        n_predict: tokens written; llama-lookup-stats counts what it leaves out as well.
        n_drafted, n_accept: tokens drafted, and those that were right.
        steps: batches that the model would have run.
        tokens: tokens that really were written.
    """

    n_draft: int
    n_predict: int = 0
    n_drafted: int = 0
    n_accept: int = 0
    steps: int = 0
    tokens: int = 0

    @property
    def accept(self) -> float:
        """Accepted of what was drafted, 0..1; NaN where nothing was."""
        return self.n_accept / self.n_drafted if self.n_drafted else float("nan")

    @property
    def hit_rate(self) -> float:
        """Accepted of what was written, 0..1; NaN where nothing was."""
        return self.n_accept / self.tokens if self.tokens else float("nan")

    @property
    def tokens_per_step(self) -> float:
        """MAT: what a batch of the model brings on average, its own token included."""
        return self.tokens / self.steps if self.steps else float("nan")

    def __add__(self, other: Forecast) -> Forecast:
        return Forecast(
            self.n_draft,
            self.n_predict + other.n_predict,
            self.n_drafted + other.n_drafted,
            self.n_accept + other.n_accept,
            self.steps + other.steps,
            self.tokens + other.tokens,
        )


class Forecaster:
    """Replays logs one after the other; what the dynamic cache learns from one it has for the next.

    Args:
        static, dynamic: the caches; None = empty. Neither is changed.
        program: whose way.
        ctx: tokens of a chunk; of llama-lookup-stats alone.
        draft_tokens: the widest draft.

    Raises:
        InvalidInputError: a table has n-grams that are none, or a number makes no sense.
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
            raise InvalidInputError(
                "nothing could be drafted", expected="ctx >= 2, draft_tokens >= 1", got=(ctx, draft_tokens)
            )
        self._program, self._ctx, self._draft_tokens = program, ctx, draft_tokens
        self._drafter = LookupDrafter(
            NgramCounts(static),
            NgramCounts(dynamic),
            draft_tokens=draft_tokens,
            pieces=program is Program.SERVER,
        )

    def add_log(self, calls: Iterable[TokenCall], on_tokens: OnTokens | None = None) -> Forecast:
        """Replay a log. ``on_tokens`` is for progress bars."""
        total = Forecast(self._draft_tokens)
        for written in self._written(calls):
            total += written
            if on_tokens is not None:
                on_tokens(written.n_predict)
        return total

    def _written(self, calls: Iterable[TokenCall]) -> Iterator[Forecast]:
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
        if len(text) == self._ctx:  # left out, and counted
            yield Forecast(self._draft_tokens, n_predict=self._ctx)

    def _chunk(self, chunk: Sequence[int]) -> Forecast:
        self._drafter.begin(chunk[:1])
        found = self._write(chunk, 1)
        self._drafter.end()
        return Forecast(self._draft_tokens, len(chunk), *found, tokens=len(chunk) - 1)

    def _call(self, call: TokenCall) -> Forecast:
        response = call.response
        if not response:
            return Forecast(self._draft_tokens)
        self._drafter.begin([*call.prompt, response[0]])
        drafted, accepted, steps = self._write(response, 1)
        if self._program is Program.LOOKUP:
            self._drafter.end()
        return Forecast(self._draft_tokens, len(response), drafted, accepted, steps + 1, tokens=len(response))

    def _write(self, text: Sequence[int], first: int) -> tuple[int, int, int]:
        """Write a text from position ``first`` on: tokens drafted, tokens accepted, steps."""
        drafter, end, at = self._drafter, len(text), first
        drafted = accepted = steps = 0
        while at < end:
            draft = drafter.draft()
            right = 0
            for token in draft:
                if at + right == end or text[at + right] != token:
                    break
                right += 1
            after = min(at + right + 1, end)
            drafter.append(text[at:after])
            drafted += len(draft)
            accepted += right
            steps += 1
            at = after
        return drafted, accepted, steps


def forecast_sizes(
    table: LookupTable, forecast: Callable[[LookupTable], Forecast], sizes: int = 10
) -> list[tuple[int, Forecast]]:
    """Forecasts with a static cache cut down to fewer and fewer bytes, by rising size: (bytes, forecast).

    The largest is the whole cache; the others are even steps, by ratio, down to a thousandth of it. Sizes at
    which nothing more can be cut are left out.
    """
    whole = table.file_bytes()
    found = {whole: table}
    for step in range(1, sizes):
        cut = prune_table(table, int(whole * 1000 ** -(step / (sizes - 1))), static=True)
        if len(cut):
            found.setdefault(cut.file_bytes(), cut)
    return [(size, forecast(found[size])) for size in sorted(found)]
