"""Plan, options, progress and result of counting, shared by local and cluster counting."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import xxhash

from suffixsvc import __version__
from suffixsvc.core.ngram_count import MAX_COUNTED_ORDER
from suffixsvc.errors import InvalidConfigError
from suffixsvc.values import MAX_TOKEN_ID
from suffixsvc_caches.logs import LogCall, LogFile, ReadOptions, ReadReport, read_calls
from suffixsvc_caches.tokenizers.base import Tokenizer

#: minimum for the interpreter, a tokenizer and counters
MIN_MEMORY: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class CountOptions:
    """Options of counting.

    Attributes:
        lowest, highest: orders of the n-grams.
        context_tokens: prompt tokens, from the end, in which n-grams may begin. They are not counted as
            followers; tokens beyond the last ``highest`` have no effect.
        dedupe: count equal responses once.
        workers: threads that encode and count.
        memory_bytes: memory limit of the process.
        checkpoint_seconds: maximum time between the runs of a worker, which is the work that a crash loses.
    """

    lowest: int = 1
    highest: int = 4
    context_tokens: int = 0
    dedupe: bool = False
    workers: int = 1
    memory_bytes: int = 2 << 30
    checkpoint_seconds: float = 60.0

    def __post_init__(self) -> None:
        if not 1 <= self.lowest <= self.highest <= MAX_COUNTED_ORDER:
            raise InvalidConfigError(
                f"orders must be 1 <= lowest <= highest <= {MAX_COUNTED_ORDER}",
                got=f"{self.lowest} to {self.highest}",
            )
        if self.workers < 1:
            raise InvalidConfigError("workers must be >= 1", got=self.workers)
        if self.memory_bytes < MIN_MEMORY:
            raise InvalidConfigError(
                f"memory must be {MIN_MEMORY >> 20} MiB or more",
                got=f"{self.memory_bytes >> 20} MiB",
                remedy="Give more with --memory.",
            )
        if self.context_tokens < 0:
            raise InvalidConfigError("context_tokens must be >= 0", got=self.context_tokens)


@dataclass(frozen=True, slots=True)
class CountPlan:
    """Plan of a build's counting.

    Attributes:
        files: the logs, in order.
        reading: how to read them.
        tokenizer: for texts; None for logs of token ids.
        options: how to count.
        keep_tokens: spool the encoded calls to the work folder, to load a corpus.
    """

    files: Sequence[LogFile]
    reading: ReadOptions
    tokenizer: Tokenizer | None
    options: CountOptions
    keep_tokens: bool = False

    @property
    def largest_token(self) -> int:
        """Largest valid token id."""
        return MAX_TOKEN_ID if self.tokenizer is None else self.tokenizer.vocab_size - 1

    def calls(
        self, file: LogFile, report: ReadReport, on_bytes: Callable[[int], None] | None = None
    ) -> Iterator[LogCall]:
        """Yield the calls of a file, in every run the same ones."""
        prompts = self.keep_tokens or self.options.context_tokens > 0
        return read_calls(file, replace(self.reading, want_prompt=prompts), report, on_bytes)

    def key(self) -> str:
        """Return a hash of everything that the counts depend on; a build resumes only with the same key."""
        options = self.options
        read = (*(file.path for file in self.files), *self.reading.batch_input)
        stats = [(str(path), (s := path.stat()).st_size, s.st_mtime_ns) for path in read]
        described = {
            "version": __version__,  # another version may read or divide logs differently
            "files": stats,
            "tokenizer": self.tokenizer.fingerprint if self.tokenizer else "",
            "orders": [options.lowest, options.highest],
            "context": options.context_tokens,
            "dedupe": options.dedupe,
            "keep_tokens": self.keep_tokens,
            "reading": as_plain(self.reading),
        }
        return xxhash.xxh3_64_hexdigest(json.dumps(described, sort_keys=True).encode())


def as_plain(settings: ReadOptions) -> dict[str, Any]:
    """Convert settings to plain JSON values."""

    def plain(value: Any) -> Any:
        return sorted(value) if isinstance(value, frozenset) else str(value)

    found: dict[str, Any] = json.loads(json.dumps(asdict(settings), default=plain))
    return found


@dataclass(slots=True)
class Progress:
    """Progress of counting; written by workers, read by a progress bar.

    Attributes:
        bytes_read, bytes_all: bytes of the log files on disk.
        tokens: tokens counted.
    """

    bytes_read: int = 0
    bytes_all: int = 0
    tokens: int = 0


def ignore(_progress: object) -> None:
    """Progress callback that does nothing."""


@dataclass(frozen=True, slots=True)
class CountResult:
    """Result of counting.

    Attributes:
        runs: files with the counts.
        report: counts and faults of reading.
        calls, tokens: calls and response tokens counted.
        duplicates: responses dropped because an equal one was counted.
        fingerprint: tokenizer of the ids; "" = unknown.
        resumed_tokens: part of ``tokens`` that earlier runs of the build counted.
    """

    runs: Sequence[Path]
    report: ReadReport
    calls: int
    tokens: int
    duplicates: int
    fingerprint: str
    resumed_tokens: int = 0
