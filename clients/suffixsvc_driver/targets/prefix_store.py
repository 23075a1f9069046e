"""KV of ended generations in main memory, for later prompts with the same prefix.

Left in the KV cache it would slow down every step, since llama.cpp passes through the cells of all sequences:
Qwen2.5-Coder-1.5B after 600 tokens on two cores with flash attention, a plain step beside 11,000 cells of
others takes 1.10 times as long as alone, beside 4,000 1.04 times. To save or restore 500 tokens (14 MB) takes
4 ms, to compute them 5 s.

This module records tokens and serialised KV; the caller changes the KV cache itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from suffixsvc_driver.drafts.chain import common_prefix
from suffixsvc_driver.targets.llama.context import State
from suffixsvc_driver.targets.slots import CHEAP_TAIL

#: every prompt is compared with all entries
_MAX_ENTRIES: Final = 256


@dataclass(frozen=True, slots=True, eq=False)
class StoredPrefix:
    """The KV of one text.

    Attributes:
        principal: its owner.
        token_ids: the text.
        state: the serialised KV.
        shortest: fewest tokens of the text whose KV can be used by itself: all of them if layers have
            windows, whose state is that of the last tokens only.
    """

    principal: str
    token_ids: tuple[int, ...]
    state: State
    shortest: int = 0


class PrefixStore:
    """Stored prefixes of all principals. If they are too many, the principal with the most tokens loses its
    least recently used one.

    Attributes:
        capacity: largest number of tokens of all prefixes together.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._entries: list[StoredPrefix] = []  # the most recently used last

    @property
    def tokens(self) -> int:
        """Tokens of all prefixes together."""
        return sum(len(entry.token_ids) for entry in self._entries)

    def longest(self, prompt: Sequence[int], principal: str) -> tuple[int, StoredPrefix | None]:
        """Return how many tokens of a prompt, except its last one, the best of the principal's prefixes
        begins with, and that prefix; (0, None) if there is none."""
        best, length, most = None, 0, len(prompt) - 1
        for entry in reversed(self._entries):
            if entry.principal != principal or length >= min(most, len(entry.token_ids)):
                continue
            if entry.token_ids[length] == prompt[length]:  # otherwise it has no more tokens in common
                common = min(most, common_prefix(entry.token_ids, prompt))
                if common > length and common >= entry.shortest:
                    best, length = entry, common
        return length, best

    def covers(self, principal: str, token_ids: Sequence[int]) -> bool:
        """Whether one of the principal's prefixes can serve all of these tokens; it counts as used."""
        wanted, count = tuple(token_ids), len(token_ids)
        for entry in self._entries:
            if (
                entry.principal == principal
                and entry.shortest <= count <= len(entry.token_ids)
                and entry.token_ids[count - 1] == wanted[-1]  # most differ there
                and entry.token_ids[:count] == wanted
            ):
                self.use(entry)
                return True
        return False

    def use(self, entry: StoredPrefix) -> None:
        """Record a use of an entry, which may have been dropped."""
        if entry in self._entries:
            self._entries.remove(entry)
            self._entries.append(entry)

    def add(self, entry: StoredPrefix) -> None:
        """Store a prefix of at most ``capacity`` tokens. It replaces those of its principal that it begins
        with, but for a short rest."""
        for other in tuple(self._entries):
            if other.principal == entry.principal:
                common = common_prefix(other.token_ids, entry.token_ids)
                if common >= entry.shortest and len(other.token_ids) - common <= min(CHEAP_TAIL, common):
                    self.drop(other)
        self._entries.append(entry)
        while self.tokens > self.capacity or len(self._entries) > _MAX_ENTRIES:
            self.drop(self._excess())

    def _excess(self) -> StoredPrefix:
        """The least recently used prefix of the principal with the most tokens."""
        held: Counter[str] = Counter()
        for entry in self._entries:
            held[entry.principal] += len(entry.token_ids)
        [(largest, _)] = held.most_common(1)
        return next(entry for entry in self._entries if entry.principal == largest)

    def drop(self, entry: StoredPrefix) -> None:
        """Remove an entry, if it is stored."""
        if entry in self._entries:
            self._entries.remove(entry)

    def clear(self) -> None:
        """Drop all prefixes."""
        self._entries.clear()
