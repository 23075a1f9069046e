"""N-gram counting in bounded memory: texts -> runs on disk -> records of llama.cpp's lookup caches.

    counter = NgramCounter(1, 4, largest_token=151_935, memory_bytes=1 << 30)
    counter.add(tokens, ends, contexts)        # while counter.room suffices
    counter.spill("a.run")                     # when it does not, and at the end
    tally_runs(["a.run", ...], [TallyOutput("order2.bin", 2)])

An n-gram of order k is k tokens, oldest first, with the token that followed. Runs of counters of one shape
can be merged: the records are the same bytes for every order of the runs and every distribution of the texts.

The native functions, which ``csrc/ngram`` describes, raise InvalidInputError; StoreCorruptError for a damaged
run; StoreFullError and StoreError for disk errors, after which no output is left and no counts are lost;
SegmentCancelledError for a cancelled job.

* ``NgramCounter`` counts n-grams of orders lowest .. highest in about ``memory_bytes``, for one thread at a
  time; ids are 0 .. ``largest_token``, of which a smaller range is faster. InvalidConfigError if the system
  does not provide the memory.
* ``add`` counts concatenated texts, all or none: int32[n] tokens, at most ``room``; int64[m] ends of the
  texts; int64[m] numbers of leading tokens that are context: n-grams may begin in it, but its tokens do not
  count as followers.
* ``tally_runs`` writes records of n-grams whose oldest token is in first_token .. end_token - 1, one file for
  each output, and returns the outputs with their statistics.
* ``combine_runs`` merges runs into one. ``split_runs`` returns ascending token ids, fewer than ``parts``,
  that divide the runs into about equal parts, by the oldest token, for merging in parallel.
* ``check_run`` verifies a run's checksum. ``run_tokens`` is the number of tokens that it counts, context
  included.
* ``record_starts`` returns the offsets in words of a lookup cache's records and the end of the last whole
  one, int64[m + 1]; ``head`` is the number of words before the followers of a record.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from suffixsvc.core._ext import (
    NgramCounter,
    SegmentJob,
    TallyOutput,
    check_run,
    combine_runs,
    record_starts,
    run_tokens,
    split_runs,
    tally_runs,
)
from suffixsvc.lookup_records import RecordFile, TalliedFile
from suffixsvc.values import MAX_TOKEN_ID

__all__ = [
    "MAX_COUNTED_ORDER",
    "NgramCounter",
    "SegmentJob",
    "TallyOutput",
    "check_run",
    "combine_runs",
    "record_starts",
    "run_tokens",
    "split_runs",
    "tally_files",
    "tally_runs",
]

#: maximum order of n-grams
MAX_COUNTED_ORDER: Final = 16


def tally_files(
    runs: Sequence[str | os.PathLike[str]],
    wanted: Sequence[RecordFile],
    paths: Sequence[Path],
    *,
    first_token: int = 0,
    end_token: int = MAX_TOKEN_ID + 1,
    memory_bytes: int = 64 << 20,
    job: SegmentJob | None = None,
) -> list[TalliedFile]:
    """Run :func:`tally_runs` with one path per requested file. Errors as there."""
    found = tally_runs(
        runs,
        [TallyOutput(path, **asdict(each)) for path, each in zip(paths, wanted, strict=True)],
        first_token=first_token,
        end_token=end_token,
        memory_bytes=memory_bytes,
        job=job or SegmentJob(),
    )
    return [
        TalliedFile(path, each.records, each.pairs, each.bytes, each.count_sum, each.occurrences)
        for path, each in zip(paths, found, strict=True)
    ]
