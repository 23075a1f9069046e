"""Counting on this machine: threads that share the readers and a journal.

Decompressing, encoding and counting release the GIL; parsing does not, so one thread at a time reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from suffixsvc.config import PROMPT_TAIL_TOKENS
from suffixsvc.errors import InvalidConfigError
from suffixsvc_caches.counting.batches import Batch, BatchReader
from suffixsvc_caches.counting.journal import Journal
from suffixsvc_caches.counting.memory import resident_bytes
from suffixsvc_caches.counting.plan import Counted, CountOptions, CountPlan, Progress
from suffixsvc_caches.counting.seen import Seen
from suffixsvc_caches.counting.spool import TokenSpool
from suffixsvc_caches.counting.worker import Worker
from suffixsvc_caches.logs import LogTally
from suffixsvc_caches.tokenizers import MEMO_BYTES

__all__ = ["count_logs", "counter_bytes", "open_spool"]

#: what a worker needs beside its counter: a batch of calls, its tokens as lists and arrays
_BATCH_BYTES: Final = 12 << 20
_SEEN_SHARE: Final = 8  # of the memory, a part of so many is for the hashes of responses
_LEAST_COUNTER: Final = 2 << 20


def count_logs(
    plan: CountPlan, journal: Journal, on_progress: Callable[[Progress], None] | None = None
) -> Counted:
    """Count what a plan names and the journal does not have yet.

    Args:
        on_progress: told ten times a second how far it is.

    Raises:
        InvalidConfigError: the memory does not suffice. InvalidInputError, TokenizerMismatchError,
        InvalidTokensError: the logs. StoreError: the disk. What was counted is kept in each case.
    """
    stop = threading.Event()
    resumed = journal.tokens
    progress = Progress(0, sum(file.size for file in plan.files), resumed, journal.calls)
    left = counter_bytes(plan.options, encodes=plan.tokenizer is not None)
    seen = Seen(journal.folder / "seen", left // _SEEN_SHARE) if plan.options.dedupe else None
    share = (left - (left // _SEEN_SHARE if seen else 0)) // plan.options.workers
    spool = open_spool(plan, journal.folder)
    feed = _Feed(plan, journal, seen, progress, stop)
    workers = [Worker(plan, journal, share, spool) for _ in range(plan.options.workers)]
    # Events, since Python 3.11 takes a thread for ended when Ctrl-C interrupts a join (bpo-45274).
    ended: list[threading.Event] = []
    try:
        for i, worker in enumerate(workers):
            end = threading.Event()
            threading.Thread(target=feed.guard, args=(end, _work, worker, feed), name=f"count-{i}").start()
            ended.append(end)
        for end in ended:
            while not end.wait(0.1):
                if on_progress is not None:
                    on_progress(progress)
    except BaseException:
        # Ctrl-C: what was counted is written down before it goes on its way.
        stop.set()
        for end in ended:
            end.wait()
        raise
    finally:
        if seen is not None:
            seen.close()
    if feed.error is not None:
        raise feed.error
    return Counted(
        runs=journal.runs(),
        tally=feed.tally,
        calls=journal.calls,
        tokens=journal.tokens,
        duplicates=feed.duplicates,
        fingerprint=feed.reader.fingerprint,
        resumed_tokens=resumed,
    )


def open_spool(plan: CountPlan, folder: Path) -> TokenSpool | None:
    """Where a build keeps encoded calls, if its plan says so."""
    return TokenSpool(folder / "tokens", PROMPT_TAIL_TOKENS) if plan.keep_tokens else None


def counter_bytes(options: CountOptions, *, encodes: bool) -> int:
    """What is left for counting of the memory of a process.

    Args:
        encodes: it makes ids from texts, and remembers words.

    Raises:
        InvalidConfigError: too little.
    """
    held = resident_bytes() + (MEMO_BYTES if encodes else 0)
    left = options.memory_bytes - held - options.workers * _BATCH_BYTES
    if left < options.workers * _LEAST_COUNTER:
        needed = held + options.workers * (_BATCH_BYTES + 2 * _LEAST_COUNTER)
        raise InvalidConfigError(
            "too little memory to count in",
            expected=f"{(needed >> 20) + 1} MiB or more with {options.workers} workers and this tokenizer",
            got=f"{options.memory_bytes >> 20} MiB",
            remedy="Give more with --memory, or fewer --workers.",
        )
    return left


def _work(worker: Worker, feed: _Feed) -> None:
    try:
        while (batch := feed.next()) is not None:
            feed.count(batch, worker.take(batch))
    finally:
        worker.flush()


class _Feed:
    """Hands out batches, one reader at a time, and keeps the books."""

    def __init__(
        self, plan: CountPlan, journal: Journal, seen: Seen | None, progress: Progress, stop: threading.Event
    ) -> None:
        self._plan = plan
        self._journal = journal
        self._seen = seen
        self._progress = progress
        self._stop = stop
        self.reader = BatchReader(plan, seen, journal.fingerprint)
        self.tally = LogTally()
        self.duplicates = 0
        self.error: BaseException | None = None
        self._lock = threading.Lock()
        self._batches = self._all()

    def next(self) -> Batch | None:
        """The next batch that is not counted yet; None at the end."""
        with self._lock:
            return None if self._stop.is_set() else next(self._batches, None)

    def count(self, batch: Batch, tokens: int) -> None:
        """A batch was counted."""
        with self._lock:
            self._progress.tokens += tokens
            self._progress.calls += len(batch.calls)

    def guard(self, end: threading.Event, work: Callable[..., None], *args: object) -> None:
        """Run a thread, and tell of its end; its first error ends all."""
        try:
            work(*args)
        except BaseException as error:  # handed to the thread that asked for the build
            with self._lock:
                self.error = self.error or error
            self._stop.set()
        finally:
            end.set()

    def _all(self) -> Iterator[Batch]:
        passed = 0
        for index, file in enumerate(self._plan.files):
            end = self._journal.end_of(index)
            # With duplicates left out, what a file holds decides what counts in later ones: it is read again.
            if end is not None and self._seen is None and self._journal.is_whole(index):
                self.tally.merge(LogTally.from_dict(end[1]))
            else:
                yield from self._of_file(index, passed)
            passed += file.size
            self._progress.bytes_read = passed

    def _of_file(self, index: int, passed: int) -> Iterator[Batch]:
        file = self._plan.files[index]
        tally = LogTally()
        batches = 0
        for batch in self.reader.batches(index, file, tally):
            batches += 1
            self.duplicates += batch.duplicates
            self._progress.bytes_read = passed + batch.bytes_read
            if not self._journal.is_done(index, batch.number):
                yield batch
        if self._journal.end_of(index) is None:
            self._journal.add_end(index, batches, tally.as_dict(), self.reader.fingerprint)
        self.tally.merge(tally)
