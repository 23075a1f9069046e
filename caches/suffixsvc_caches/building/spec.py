"""What a build makes of which logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from suffixsvc.errors import InvalidConfigError
from suffixsvc_caches.building.corpus import CorpusTarget
from suffixsvc_caches.building.selection import RECORD_BYTES
from suffixsvc_caches.logs import ReadOptions
from suffixsvc_caches.tokenizers import TokenizerSource

__all__ = ["DYNAMIC_MAX_COUNT", "STATIC_MAX_COUNT", "BuildSpec", "LookupSpec"]

#: llama.cpp multiplies a count of the context or the dynamic cache by 100 times one of the static cache, in
#: int32: 4,000 x 100 x 5,000 fits, with room for what a server counts on top
STATIC_MAX_COUNT: Final = 4_000
DYNAMIC_MAX_COUNT: Final = 5_000


@dataclass(frozen=True, slots=True)
class LookupSpec:
    """A lookup cache to be written.

    Attributes:
        path: the file.
        budget_bytes: how large it may be; what it holds is then chosen (:mod:`.selection`). None: all.
        compact: even without a budget only what changes a draft.
        min_count: followers seen less often are left out.
        top: followers of an n-gram at most; 0 = all.
        exact_counts: counts as counted, up to int32. Otherwise they are kept small enough for llama.cpp's
            products, and two best followers never have the same.
    """

    path: Path
    budget_bytes: int | None = None
    compact: bool = False
    min_count: int = 1
    top: int = 0
    exact_counts: bool = False

    def __post_init__(self) -> None:
        if self.budget_bytes is not None and self.budget_bytes < RECORD_BYTES:
            raise InvalidConfigError(
                "no record fits the budget", expected=f"{RECORD_BYTES} bytes or more", got=self.budget_bytes
            )
        if self.min_count < 1 or self.top < 0:
            raise InvalidConfigError(
                "that leaves no record", expected="min_count >= 1, top >= 0 (0 = all)",
                got=f"{self.min_count} and {self.top}",
            )  # fmt: skip
        if self.chosen and self.top > 1:
            raise InvalidConfigError(
                "a cache that is made small has one follower for each n-gram",
                expected="top 0 or 1, or no budget",
                got=f"top {self.top}",
            )

    @property
    def chosen(self) -> bool:
        """Whether records are chosen by what they are worth."""
        return self.compact or self.budget_bytes is not None


@dataclass(frozen=True, slots=True)
class BuildSpec:
    """A build.

    Attributes:
        logs: files and folders.
        reading: how to read them.
        tokenizer: for texts; None for logs of token ids.
        static, dynamic, corpus: what to make; one at least.
        context_tokens: tokens of a call's prompt that n-grams may begin in.
        dedupe: equal responses count once.
        workers, memory_bytes, checkpoint_seconds: see ``CountOptions``.
        work: folder for what is not finished; removed at the end.
        force: replace files that exist.
        engine: "local", or "ray" for a cluster.
    """

    logs: Sequence[Path]
    work: Path
    reading: ReadOptions = field(default_factory=ReadOptions)
    tokenizer: TokenizerSource | None = None
    static: LookupSpec | None = None
    dynamic: LookupSpec | None = None
    corpus: CorpusTarget | None = None
    context_tokens: int = 0
    dedupe: bool = False
    workers: int = 1
    memory_bytes: int = 2 << 30
    checkpoint_seconds: float = 60.0
    force: bool = False
    engine: str = "local"

    def __post_init__(self) -> None:
        if not (self.static or self.dynamic or self.corpus):
            raise InvalidConfigError(
                "there is nothing to build",
                expected="a static cache, a dynamic cache or a corpus",
                remedy="Give --lookup-static, --lookup-dynamic, --data or --server.",
            )
        if self.static and self.dynamic and self.static.path.absolute() == self.dynamic.path.absolute():
            raise InvalidConfigError("both caches have the same name", got=self.static.path)
        if not self.logs:
            raise InvalidConfigError("there is no log to build from", expected="files or folders")
        if self.engine not in ("local", "ray"):
            raise InvalidConfigError("no such engine", expected="local or ray", got=self.engine)
