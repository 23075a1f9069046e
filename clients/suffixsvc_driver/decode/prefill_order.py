"""Order of prefill: which of several incomplete prompts gets the next batch.

The prompt with the fewest missing tokens is next, so that a short prompt does not wait for a long one. Every
fourth batch goes to the oldest prompt, so that short ones that keep coming delay a long one to at most four
times its length.

A prompt that has not begun waits while another one of its principal computes a prefix that both share:
computed once, it is reused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from suffixsvc_driver.drafts.chain import common_prefix

#: one of so many batches goes to the oldest prompt
_OLDEST_EVERY: Final = 4


@dataclass(slots=True, eq=False)
class Filling:
    """An incomplete prompt.

    Attributes:
        prompt, principal: as requested.
        missing: tokens to compute; expected ones until it has begun.
        begun: whether a batch of it was computed.
        fresh: it reuses nothing.
    """

    prompt: Sequence[int]
    principal: str
    missing: int = 0
    begun: bool = False
    fresh: bool = False

    def awaits(self, other: Filling) -> bool:
        """Return whether ``other`` is going to compute tokens that this prompt can reuse."""
        if self.begun or self.fresh or not other.begun or self.principal != other.principal:
            return False
        cached = len(self.prompt) - 1 - self.missing
        computed = len(other.prompt) - 1 - other.missing
        return common_prefix(self.prompt[:-1], other.prompt[:-1]) > max(cached, computed)


class PrefillOrder:
    """Chooses the prompt of each batch. Not thread-safe.

    Args:
        shares: whether a prompt reuses KV that another lane has computed.
    """

    def __init__(self, *, shares: bool = True) -> None:
        self._shares = shares
        self._batches = 0

    def next(self, prompts: Sequence[Filling]) -> int:
        """Return the index of the prompt of the next batch; ``prompts`` are in order of arrival."""
        self._batches += 1
        ready = [i for i, p in enumerate(prompts) if not (self._shares and any(map(p.awaits, prompts)))]
        if self._batches % _OLDEST_EVERY == 0:
            return ready[0]
        return min(ready, key=lambda i: prompts[i].missing)
