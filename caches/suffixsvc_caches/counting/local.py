"""Counting on one machine: worker threads that share the log readers and a journal.

Decompression, encoding and counting release the GIL; parsing does not, so one thread at a time reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, wait
from pathlib import Path
from typing import Final

from suffixsvc.config import PROMPT_TAIL_TOKENS
from suffixsvc.errors import InvalidConfigError
from suffixsvc.runtime.signal_guard import JoinedThreads
from suffixsvc_caches.counting.batches import Batch, BatchReader
from suffixsvc_caches.counting.digest_set import DigestSet
from suffixsvc_caches.counting.journal import Journal
from suffixsvc_caches.counting.memory import resident_bytes
from suffixsvc_caches.counting.plan import CountOptions, CountPlan, CountResult, Progress, ignore
from suffixsvc_caches.counting.spool import TokenSpool
from suffixsvc_caches.counting.worker import Worker
from suffixsvc_caches.logs import ReadReport
from suffixsvc_caches.tokenizers.caching_encoder import WORD_CACHE_BYTES

#: memory of a worker beside its counter: a batch of calls, its tokens as lists and arrays
_BATCH_BYTES: Final = 12 << 20
_SEEN_SHARE: Final = 8  # divisor of the memory for the digests of responses
_MIN_COUNTER_BYTES: Final = 2 << 20


def count_logs(
    plan: CountPlan, journal: Journal, on_progress: Callable[[Progress], None] = ignore
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
    resumed = journal.tokens
    progress = Progress(0, sum(file.size for file in plan.files), resumed)
    left = counter_bytes(plan.options, encodes=plan.tokenizer is not None)
    seen = DigestSet(journal.folder / "seen", left // _SEEN_SHARE) if plan.options.dedupe else None
    share = (left - (left // _SEEN_SHARE if seen else 0)) // plan.options.workers
    spool = open_spool(plan, journal.folder)
    queue = _BatchQueue(plan, journal, seen, progress)
    workers = [Worker(plan, journal, share, spool) for _ in range(plan.options.workers)]
    try:
        with JoinedThreads(len(workers), "count") as pool:
            waiting = {pool.submit(queue.work, worker) for worker in workers}
            try:
                while waiting:
                    done, waiting = wait(waiting, timeout=0.1, return_when=FIRST_EXCEPTION)
                    for future in done:
                        future.result()
                    on_progress(progress)
            except BaseException:  # also on Ctrl-C: workers flush their counts before it propagates
                queue.stopped = True
                raise
    finally:
        if seen is not None:
            seen.close()
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


class _BatchQueue:
    """Queue of batches, read on demand by one thread at a time; counts progress.

    Attributes:
        stopped: workers end after their current batch.
    """

    def __init__(self, plan: CountPlan, journal: Journal, seen: DigestSet | None, progress: Progress) -> None:
        self._plan = plan
        self._journal = journal
        self._rereads = seen is not None
        self._progress = progress
        self.reader = BatchReader(plan, seen.add if seen else None, journal.fingerprint)
        self.report = ReadReport()
        self.duplicates = 0
        self.stopped = False
        self._lock = threading.Lock()
        self._batches = self._all()

    def work(self, worker: Worker) -> None:
        """Count batches until the end, or until an error in any thread."""
        try:
            while (batch := self._next()) is not None:
                tokens = worker.count(batch)
                with self._lock:
                    self._progress.tokens += tokens
        finally:
            worker.flush()

    def _next(self) -> Batch | None:
        """Return the next batch that is not counted yet; None at the end."""
        with self._lock:
            return None if self.stopped else next(self._batches, None)

    def _all(self) -> Iterator[Batch]:
        passed = 0
        for index, file in enumerate(self._plan.files):
            # When deduplicating, every file is read again, because its digests are needed for later files.
            done = None if self._rereads else self._journal.report_of(index)
            if done is not None:
                self.report.merge(ReadReport.from_dict(done))
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
