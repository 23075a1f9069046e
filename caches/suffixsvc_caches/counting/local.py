"""Counting on one machine: worker threads that share the log readers and a journal.

Decompression, encoding and counting release the GIL; parsing does not, so one thread at a time reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from suffixsvc.config import PROMPT_TAIL_TOKENS
from suffixsvc.errors import InvalidConfigError
from suffixsvc_caches.counting.batches import Batch, BatchReader
from suffixsvc_caches.counting.digest_set import DigestSet
from suffixsvc_caches.counting.journal import Journal
from suffixsvc_caches.counting.memory import resident_bytes
from suffixsvc_caches.counting.plan import CountOptions, CountPlan, CountResult, Progress
from suffixsvc_caches.counting.spool import TokenSpool
from suffixsvc_caches.counting.worker import Worker
from suffixsvc_caches.logs import ReadReport
from suffixsvc_caches.tokenizers import WORD_CACHE_BYTES

__all__ = ["count_logs", "counter_bytes", "open_spool"]

#: memory of a worker beside its counter: a batch of calls, its tokens as lists and arrays
_BATCH_BYTES: Final = 12 << 20
_SEEN_SHARE: Final = 8  # divisor of the memory for the digests of responses
_MIN_COUNTER_BYTES: Final = 2 << 20


def count_logs(
    plan: CountPlan, journal: Journal, on_progress: Callable[[Progress], None] | None = None
) -> CountResult:
    """Count the batches of a plan that the journal does not have yet.

    Completed counts stay in the journal if an error is raised.

    Args:
        plan: the build.
        journal: the work folder.
        on_progress: progress callback, called ten times a second.

    Raises:
        InvalidConfigError: too little memory.
        InvalidInputError, TokenizerMismatchError, InvalidTokensError: unusable logs.
        StoreError: a file cannot be written.
    """
    stop = threading.Event()
    resumed = journal.tokens
    progress = Progress(0, sum(file.size for file in plan.files), resumed, journal.calls)
    left = counter_bytes(plan.options, encodes=plan.tokenizer is not None)
    seen = DigestSet(journal.folder / "seen", left // _SEEN_SHARE) if plan.options.dedupe else None
    share = (left - (left // _SEEN_SHARE if seen else 0)) // plan.options.workers
    spool = open_spool(plan, journal.folder)
    queue = _BatchQueue(plan, journal, seen, progress, stop)
    workers = [Worker(plan, journal, share, spool) for _ in range(plan.options.workers)]
    # Events, because Python 3.11 treats a thread as ended when Ctrl-C interrupts join() (bpo-45274).
    ended: list[threading.Event] = []
    try:
        for i, worker in enumerate(workers):
            end = threading.Event()
            threading.Thread(target=queue.guard, args=(end, _work, worker, queue), name=f"count-{i}").start()
            ended.append(end)
        for end in ended:
            while not end.wait(0.1):
                if on_progress is not None:
                    on_progress(progress)
    except BaseException:
        # On Ctrl-C workers flush their counts before the exception propagates.
        stop.set()
        for end in ended:
            end.wait()
        raise
    finally:
        if seen is not None:
            seen.close()
    if queue.error is not None:
        raise queue.error
    return CountResult(
        runs=journal.runs(),
        report=queue.report,
        calls=journal.calls,
        tokens=journal.tokens,
        duplicates=queue.duplicates,
        fingerprint=queue.reader.fingerprint,
        resumed_tokens=resumed,
    )


def open_spool(plan: CountPlan, folder: Path) -> TokenSpool | None:
    """Open the spool of encoded calls in a work folder; None if the plan does not keep tokens."""
    return TokenSpool(folder / "tokens", PROMPT_TAIL_TOKENS) if plan.keep_tokens else None


def counter_bytes(options: CountOptions, *, encodes: bool) -> int:
    """Return the memory for counters: the limit minus what the process uses and workers need.

    Args:
        options: memory limit and number of workers.
        encodes: texts are encoded, which needs a word cache.

    Raises:
        InvalidConfigError: too little memory is left.
    """
    held = resident_bytes() + (WORD_CACHE_BYTES if encodes else 0)
    left = options.memory_bytes - held - options.workers * _BATCH_BYTES
    if left < options.workers * _MIN_COUNTER_BYTES:
        needed = held + options.workers * (_BATCH_BYTES + 2 * _MIN_COUNTER_BYTES)
        raise InvalidConfigError(
            f"memory must be {(needed >> 20) + 1} MiB or more with {options.workers} workers",
            got=f"{options.memory_bytes >> 20} MiB",
            remedy="Give more with --memory, or fewer --workers.",
        )
    return left


def _work(worker: Worker, queue: _BatchQueue) -> None:
    try:
        while (batch := queue.next()) is not None:
            queue.record(batch, worker.count(batch))
    finally:
        worker.flush()


class _BatchQueue:
    """Queue of batches, read on demand by one thread at a time; records progress and the first error."""

    def __init__(
        self,
        plan: CountPlan,
        journal: Journal,
        seen: DigestSet | None,
        progress: Progress,
        stop: threading.Event,
    ) -> None:
        self._plan = plan
        self._journal = journal
        self._seen = seen
        self._progress = progress
        self._stop = stop
        self.reader = BatchReader(plan, seen, journal.fingerprint)
        self.report = ReadReport()
        self.duplicates = 0
        self.error: BaseException | None = None
        self._lock = threading.Lock()
        self._batches = self._all()

    def next(self) -> Batch | None:
        """Return the next batch that is not counted yet; None at the end."""
        with self._lock:
            return None if self._stop.is_set() else next(self._batches, None)

    def record(self, batch: Batch, tokens: int) -> None:
        """Add a counted batch to the progress."""
        with self._lock:
            self._progress.tokens += tokens
            self._progress.calls += len(batch.calls)

    def guard(self, end: threading.Event, work: Callable[..., None], *args: object) -> None:
        """Run the function of a thread and set ``end`` afterwards; the first error stops all threads."""
        try:
            work(*args)
        except BaseException as error:  # raised by count_logs()
            with self._lock:
                self.error = self.error or error
            self._stop.set()
        finally:
            end.set()

    def _all(self) -> Iterator[Batch]:
        passed = 0
        for index, file in enumerate(self._plan.files):
            end = self._journal.end_of(index)
            # When deduplicating, every file is read again, because its digests are needed for later files.
            if end is not None and self._seen is None and self._journal.is_complete(index):
                self.report.merge(ReadReport.from_dict(end[1]))
            else:
                yield from self._of_file(index, passed)
            passed += file.size
            self._progress.bytes_read = passed

    def _of_file(self, index: int, passed: int) -> Iterator[Batch]:
        file = self._plan.files[index]
        report = ReadReport()
        batches = 0
        for batch in self.reader.batches(index, file, report):
            batches += 1
            self.duplicates += batch.duplicates
            self._progress.bytes_read = passed + batch.bytes_read
            if not self._journal.is_done(index, batch.number):
                yield batch
        if self._journal.end_of(index) is None:
            self._journal.add_end(index, batches, report.as_dict(), self.reader.fingerprint)
        self.report.merge(report)
