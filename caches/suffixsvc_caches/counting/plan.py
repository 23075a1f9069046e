"""What is to be counted, and how: the values that the engines share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final

import xxhash

from suffixsvc import __version__
from suffixsvc.core.ngram_count import MAX_COUNTED_ORDER
from suffixsvc.errors import InvalidConfigError
from suffixsvc.values import MAX_TOKEN_ID
from suffixsvc_caches.logs import LogCall, LogFile, LogTally, ReadOptions, read_calls
from suffixsvc_caches.tokenizers import Tokenizer

__all__ = ["MIN_MEMORY", "CountOptions", "CountPlan", "Counted", "Progress", "as_plain"]

#: less cannot hold the interpreter, a tokenizer and something to count in
MIN_MEMORY: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class CountOptions:
    """How to count.

    Attributes:
        lowest, highest: orders of the n-grams.
        context_tokens: tokens of a call's prompt that n-grams may begin in; they are not counted themselves,
            and more than ``highest`` are none that an n-gram reaches.
        dedupe: count equal responses once.
        workers: threads that encode and count.
        memory_bytes: what the whole process may take.
        checkpoint_seconds: what a crash may cost: a worker writes down what it counted at least so often.
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
                "no such n-grams",
                expected=f"1 <= lowest <= highest <= {MAX_COUNTED_ORDER}",
                got=f"{self.lowest} to {self.highest}",
            )
        if self.workers < 1:
            raise InvalidConfigError("nobody to count", expected="1 worker or more", got=self.workers)
        if self.memory_bytes < MIN_MEMORY:
            raise InvalidConfigError(
                "too little memory to count in",
                expected=f"{MIN_MEMORY >> 20} MiB or more",
                got=f"{self.memory_bytes >> 20} MiB",
                remedy="Give more with --memory.",
            )
        if self.context_tokens < 0:
            raise InvalidConfigError("no such context", expected="0 tokens or more", got=self.context_tokens)


@dataclass(frozen=True, slots=True)
class CountPlan:
    """One build.

    Attributes:
        files: the logs, in order.
        reading: how to read them.
        tokenizer: for texts; None where the logs hold token ids.
        options: how to count.
        keep_tokens: whether the encoded calls are kept in the work folder, for loading a corpus.
    """

    files: Sequence[LogFile]
    reading: ReadOptions
    tokenizer: Tokenizer | None
    options: CountOptions
    keep_tokens: bool = False

    @property
    def largest_token(self) -> int:
        return MAX_TOKEN_ID if self.tokenizer is None else self.tokenizer.vocab_size - 1

    def calls(
        self, file: LogFile, tally: LogTally, on_bytes: Callable[[int], None] | None = None
    ) -> Iterator[LogCall]:
        """The calls of a file, every time the same ones."""
        prompts = self.keep_tokens or self.options.context_tokens > 0
        return read_calls(file, replace(self.reading, want_prompt=prompts), tally, on_bytes)

    def key(self) -> str:
        """A hash of everything the counts depend on: a work folder of another key is not gone on with."""
        options = self.options
        read = (*(file.path for file in self.files), *self.reading.batch_input)
        stats = [(str(path), (s := path.stat()).st_size, s.st_mtime_ns) for path in read]
        described = {
            "version": __version__,  # another one may read a log, or divide it, in another way
            "files": stats,
            "tokenizer": self.tokenizer.fingerprint if self.tokenizer else "",
            "orders": [options.lowest, options.highest],
            "context": options.context_tokens,
            "dedupe": options.dedupe,
            "keep_tokens": self.keep_tokens,
            "reading": as_plain(self.reading),
        }
        return xxhash.xxh3_64_hexdigest(json.dumps(described, sort_keys=True).encode())


def as_plain(value: Any) -> Any:
    """A frozen settings value as plain JSON."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, (frozenset, set)):
        return sorted(map(as_plain, value))
    if isinstance(value, (list, tuple)):
        return [as_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value


@dataclass(slots=True)
class Progress:
    """How far a build is; workers write, a progress bar reads.

    Attributes:
        bytes_read, bytes_all: of the log files, as they lie on the disk.
        tokens: encoded and counted.
        calls: read.
    """

    bytes_read: int = 0
    bytes_all: int = 0
    tokens: int = 0
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Counted:
    """What came of counting.

    Attributes:
        runs: files with the counts.
        tally: what was read, and what was wrong with it.
        calls, tokens: counted; responses only.
        duplicates: responses left out because an equal one was counted.
        fingerprint: of the tokenizer that the ids belong to; "" where nobody said.
        resumed_tokens: of ``tokens``, how many an earlier start had counted.
    """

    runs: Sequence[Path]
    tally: LogTally
    calls: int
    tokens: int
    duplicates: int
    fingerprint: str
    resumed_tokens: int = 0
